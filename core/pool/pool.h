/*
 * The pool: what the hooks ask for memory.
 *
 * One struct pool serves the process. Inside it every context has its own heap of device memory;
 * the design of reuse (epochs, fences, the ladder) is told in ladder.h and epoch.h.
 *
 * Every function may be called by any thread at any time, with any context current, and answers as
 * the driver function that it stands for would. None is called with a lock held.
 */
#ifndef CUDAPOOL_CORE_POOL_H
#define CUDAPOOL_CORE_POOL_H

#include <stdbool.h>

#include "core/base/threads.h"
#include "core/contexts/host_work.h"
#include "core/contexts/kind.h"
#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "core/driver/driver.h"
#include "core/figures/report.h"
#include "core/reclaim/reclaim.h"
#include "core/settings/config.h"
#include "core/stream_memory/stream_clock.h"

struct pool;

/* Starts a pool on a driver. All arguments are copied or outlive it; no driver call is made.
 * Without thread functions threads have no caches, since nobody would be told of their ends. NULL
 * with errno where memory is short. A pool is never destroyed: it lives as long as the process,
 * because threads may be inside it until the last moment. */
struct pool *pool_create(const struct driver *driver, const struct settings *settings,
                         const struct thread_functions *threads);

/* Around a fork, in the thread that forks: no thread of the pool's, and none inside it, then holds
 * a lock of the C library's that the child could not get. Waits a tenth of a second at most. */
void pool_fork_coming(struct pool *pool);
void pool_fork_over(struct pool *pool);

/* In the child of a fork, before anything else there: the pool is its parent's, and the threads
 * that hold its locks are not here. */
void pool_forget(struct pool *pool);

/* The process ends by itself: no thread of the pool's own calls the driver any more, and neighbours
 * need not ask. Async-signal-safe. */
void pool_ends(struct pool *pool);

/* ---- device memory: cuMemAlloc, cuMemAllocPitch, cuMemFree, cuMemFreeAsync, cuMemGetInfo ---- */

typedef CUresult allocate_pitch(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
typedef CUresult free_async(CUdeviceptr, CUstream);

CUresult pool_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes);

/* driver: what is asked for a width that is new, since only the driver knows its pitch. */
CUresult pool_allocate_pitch(struct pool *pool, allocate_pitch *driver, CUdeviceptr *address,
                             size_t *pitch, size_t width, size_t height,
                             unsigned int element_bytes);

CUresult pool_free(struct pool *pool, CUdeviceptr address);

/* cuMemAllocFromPoolAsync where a free block of the same stream is all that it takes; memory_pool
 * NULL: cuMemAllocAsync. Where it takes more, nothing was done, and otherwise answers: it is to
 * call pool_allocate_async. */
typedef CUresult allocate_otherwise(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                                    CUstream stream);
CUresult pool_allocate_async_at_once(struct pool *pool, CUdeviceptr *address, size_t bytes,
                                     CUmemoryPool memory_pool, CUstream stream,
                                     allocate_otherwise *otherwise);

/* cuMemFreeAsync of a stream-ordered block on the stream that it was allocated on. Where it is
 * another one, nothing was done, and otherwise answers: it is to call pool_free_async. */
CUresult pool_free_async_at_once(struct pool *pool, CUdeviceptr address, CUstream stream,
                                 free_async *otherwise);

/* driver: answers for everything that is not a block of the pool, and in captures. */
CUresult pool_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                         CUstream stream);

/* What is cached and pending is free as far as giving it back would free whole pages of the
 * driver's: that is worked out here, block by block, so that nothing else has to keep count. */
CUresult pool_memory_info(struct pool *pool, size_t *free, size_t *total);

/* Before cuMemAllocManaged in the current context, which never says that there is no room, and
 * after it has succeeded: see managed.h. */
void pool_managed_coming(struct pool *pool, size_t bytes);
void pool_managed_came(struct pool *pool, size_t bytes);

/* While is_inside_driver: this thread, called back by the driver, frees the address
 * past the pool. False where it must not: the block is free. */
bool pool_let_go(struct pool *pool, CUdeviceptr address);

/* The driver has given out this address by another call than the pool's own. */
void pool_forget_address(struct pool *pool, CUdeviceptr address);

/* ---- pinned host memory: cuMemHostAlloc, cuMemAllocHost, cuMemFreeHost ---- */

CUresult pool_allocate_host(struct pool *pool, void **address, size_t bytes, unsigned int flags);
CUresult pool_allocate_host_plainly(struct pool *pool, void **address, size_t bytes);
CUresult pool_free_host(struct pool *pool, void *memory);

/* After the driver has told them: flags of pinned memory as the program has asked for them. For a
 * small block the driver tells those of the piece that it is cut out of, which are those of the
 * first block there; without the pool that would often be another one. */
void pool_tell_host_flags(struct pool *pool, const void *memory, unsigned int *flags);

/* Whether the memory is in a block, live or free, that the pool has registered by itself. */
bool pool_has_registered(struct pool *pool, const void *memory);

/* ---- what the driver says of a pointer ---- */

enum pointer_kind {
    POINTER_FOREIGN, /* not the pool's: the driver's answer stands */
    POINTER_LIVE,    /* inside what the program asked for */
    POINTER_HIDDEN,  /* inside a free block, or beyond what was asked for: nobody's */
};

struct pointer_answer {
    enum pointer_kind kind;
    CUdeviceptr base;   /* not of a foreign pointer, like the others */
    size_t bytes;       /* that were requested */
    size_t block_bytes; /* of cuMemAlloc's own, else 0: for such a block the driver has mapped as
                           many whole pages as it takes */
    bool of_host;       /* pinned host memory */
    bool part; /* cut out of a larger block of the driver's, which alone the driver knows */
};

/* Without asking the driver. */
struct pointer_answer pool_ask_pointer(struct pool *pool, CUdeviceptr pointer);

/* What CU_POINTER_ATTRIBUTE_BUFFER_ID is of a live pointer: another number each time that its block
 * is handed out. 0: the driver's stands. */
uint64_t pool_buffer_id(struct pool *pool, const struct pointer_answer *answer);

/* Others than this process's streams are about to reach the block around a live pointer: waits for
 * what a barrier still orders before it, and lets the driver free it one day. */
void pool_share(struct pool *pool, CUdeviceptr pointer);

/* Somebody has asked for such a part to be exported, or told something of, which the driver could
 * do only to the whole: counts it for the report. */
void pool_refused_export(struct pool *pool, const struct pointer_answer *answer);

/* A pointer that no driver has ever given out: queries about hidden memory are made with it. */
#define NOBODYS_POINTER ((CUdeviceptr)256)

/* ---- contexts ---- */

/* The calling thread's context has just been created; a device's primary one retained; a green
 * one's handle taken. */
void pool_context_created(struct pool *pool, CUcontext handle);
void pool_primary_retained(struct pool *pool, CUcontext handle, CUdevice device);
void pool_green_context_created(struct pool *pool, CUgreenCtx green, CUdevice device);
void pool_green_context_converted(struct pool *pool, CUcontext handle, CUgreenCtx green);
void pool_green_context_destroyed(struct pool *pool, CUgreenCtx green);

/* Around a driver call that may end a context: by handle (NULL: the current one), of a device, or
 * of a green context's device. Every begin is followed by end in the same thread; what the driver
 * calls back in between passes through. */
enum context_fate { CONTEXT_LIVES, CONTEXT_DIED, CONTEXT_PRIMARY_MAY_HAVE_DIED };
struct ending {
    struct context *context; /* NULL: not known to the pool */
    bool primary;
    bool release;        /* of the primary context, which lives on where others retain it */
    uint64_t generation; /* of the context, as its end began */
    int cancellation;
};
struct ending pool_context_ending(struct pool *pool, CUcontext handle);
struct ending pool_primary_releasing(struct pool *pool, CUdevice device);
struct ending pool_primary_resetting(struct pool *pool, CUdevice device); /* ends in any case */
struct ending pool_green_ending(struct pool *pool, CUgreenCtx green);
void pool_context_ended(struct pool *pool, struct ending ending, enum context_fate fate);

/* Before the program makes the later work of the current context, or of the one with this handle,
 * wait for an event. */
void pool_barrier_coming(struct pool *pool, CUcontext handle);
void pool_green_barrier_coming(struct pool *pool, CUgreenCtx green);

/* Around a context-wide synchronise of the current context, or of the one with this handle. */
struct order_marks;
struct synchronising {
    struct context *context; /* NULL: not known to the pool */
    bool cleans;             /* what was freed before is over with it */
    uint64_t epoch;
    struct order_marks *streams; /* NULL: nothing is pending on them */
};
struct synchronising pool_synchronise_begin(struct pool *pool, const CUcontext *handle);
void pool_synchronise_end(struct pool *pool, struct synchronising state, CUresult result);

/* The calling thread launches work on the stream, or records an event or waits there: a stream is
 * named as in the functions without _ptsz. Where several threads launch, or work is on several
 * streams, one that runs ahead must not make the others wait, so the pool raises no barriers. */
void pool_note_launch(struct pool *pool, CUstream stream);
void pool_note_stream(struct pool *pool, CUstream stream);

/* Before the launch of a graph: what its capture has allocated and not freed comes to life. */
void pool_graph_launch_begins(struct pool *pool, CUgraphExec executable);

/* An executable graph was launched, or uploaded: counted where captures may allocate. */
void pool_note_graph_launch(struct pool *pool, bool upload);

/* ---- stream-ordered memory: see stream_heap.h ----
 *
 * A stream is named as in the functions without _ptsz: who means the calling thread's own says
 * CU_STREAM_PER_THREAD. */

/* cuMemAllocAsync, and (memory_pool not NULL) cuMemAllocFromPoolAsync. False: the driver is to
 * answer the program's own call; *result is changed where a failure was counted already. */
bool pool_allocate_async(struct pool *pool, CUdeviceptr *address, size_t bytes,
                         const CUmemoryPool *memory_pool, CUstream stream, CUresult *result);

/* The driver has answered such an allocation. Counted as a request where the pool would have served
 * it, had it known the stream; and where a capture has the stream and captures may allocate, by the
 * graph. */
struct pool_request {
    size_t bytes;
    const CUmemoryPool *memory_pool;
    CUstream stream;
};
void pool_note_driver_allocation(struct pool *pool, const struct pool_request *request,
                                 CUresult result);

/* Whether stream-ordered memory is in use: if not, nothing needs to be told of streams and events.
 */
bool pool_follows_streams(struct pool *pool);

/* Before the driver destroys a stream: afterwards its handle may be another's already. Where the
 * driver does not, the pool takes it for a new one. */
void pool_stream_ending(struct pool *pool, CUstream stream);

/* Around a synchronise with a stream, or a query. */
void pool_stream_wait_begin(struct pool *pool, CUstream stream, struct order_mark *mark);
void pool_stream_wait_end(struct pool *pool, const struct order_mark *mark, CUresult result);

/* The same with an event; and around cuStreamWaitEvent. */
void pool_event_wait_begin(struct pool *pool, CUevent event, struct event_look *look);
void pool_event_wait_end(struct pool *pool, CUevent event, const struct event_look *look,
                         CUresult result);
void pool_event_wait_queued(struct pool *pool, CUevent event, const struct event_look *look,
                            CUstream stream, CUresult result);

/* Around the driver's record of an event: on the stream, or (NULL) where the pool cannot follow it.
 */
struct recording {
    uint64_t version;
    struct order_mark mark;
};
void pool_record_begin(struct pool *pool, CUevent event, const CUstream *stream,
                       struct recording *recording);
void pool_record_end(struct pool *pool, CUevent event, const struct recording *recording,
                     CUresult result);
void pool_event_destroyed(struct pool *pool, CUevent event);

/* Before the event is recorded by something that the pool cannot follow. */
void pool_event_lost(struct pool *pool, CUevent event);

/* Events are recorded by graphs or by other processes from now on. */
void pool_events_are_lost(struct pool *pool);

/* A launch with programmatic stream serialization was made on the stream. */
void pool_early_launch(struct pool *pool, CUstream stream);

/* The program's memory pools: see mempool.h. Each is called after the driver, where it succeeded,
 * unless the name says otherwise. */
void pool_mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice device);
/* One that the program was given by what its memory is. */
void pool_mempool_met(struct pool *pool, CUmemoryPool handle, const CUmemLocation *location,
                      CUmemAllocationType type);
/* An allocation from a pool, or a free in a stream's order, was the driver's. */
void pool_mempool_passed_by(struct pool *pool);
void pool_mempool_chosen(struct pool *pool);
void pool_mempool_destroying(struct pool *pool, CUmemoryPool handle);
void pool_mempool_destroyed(struct pool *pool, CUmemoryPool handle, CUresult result);
void pool_mempool_trimming(struct pool *pool, CUmemoryPool handle, size_t keep);
void pool_mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute);
void pool_mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                      const void *value);
void pool_mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                      void *value);

/* Live, free and over, and pending bytes of one stream. False: the pool does not know it. */
bool pool_stream_bytes(struct pool *pool, CUstream stream, struct kept_bytes *bytes);

/* Waits until pending frees are over, stream by stream, as far as an event tells of them; of how
 * many streams. */
unsigned pool_reap(struct pool *pool);

/* What the program tells of a block's uses: see use.h. */
uint64_t pool_generation(struct pool *pool, CUdeviceptr address);
CUresult pool_record_use(struct pool *pool, CUdeviceptr address, uint64_t generation,
                         CUstream stream, bool write);

/* ---- pools of captures: see graph_pools.h ---- */

uint64_t pool_graph_pool_create(struct pool *pool);
CUresult pool_graph_pool_use(struct pool *pool, uint64_t number, CUstream stream);
CUresult pool_graph_pool_seal(struct pool *pool, uint64_t number);
CUresult pool_graph_pool_clear(struct pool *pool, uint64_t number);
CUresult pool_graph_pool_bytes(struct pool *pool, uint64_t number, struct kept_bytes *bytes);
CUresult pool_graph_pool_destroy(struct pool *pool, uint64_t number);

/* ---- device scalars: see core/scalars/scalars.h ---- */

/* 0 where there can be none, for the number and for the address. */
uint64_t pool_scalar_create(struct pool *pool, size_t bytes);
CUdeviceptr pool_scalar_address(struct pool *pool, uint64_t number);
CUresult pool_scalar_set(struct pool *pool, uint64_t number, const void *value, CUstream stream);
CUresult pool_scalar_destroy(struct pool *pool, uint64_t number);

/* ---- captures: see capture.h ---- */

bool pool_captures_are_going_on(struct pool *pool);
/* Before a capture begins on the stream, with no lock held: what is pending gets a fence, as long
 * as there can be one, so that it can be given back if memory runs out meanwhile. */
void pool_capture_about_to_begin(struct pool *pool, CUstream stream);
void pool_capture_has_come(struct pool *pool); /* or not: once for each of the former */
void pool_captures_lock(struct pool *pool);
void pool_captures_unlock(struct pool *pool);
void pool_capture_began(struct pool *pool, CUstream stream, bool per_thread);
void pool_capture_began_again(struct pool *pool, CUstream stream);
void pool_capture_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph);
void pool_capture_stream_destroyed(struct pool *pool, CUstream stream);

/* After a call that may have ended a graph or an executable: what these have kept for themselves
 * goes back. No lock is held. */
void pool_graphs_may_be_gone(struct pool *pool);

/* ---- out of memory, caches, report ---- */

/* After a driver call of the program's has failed for want of memory. progress starts zeroed; true:
 * try the call again. */
bool pool_make_room(struct pool *pool, struct reclaim *progress);

/* The same where so many bytes, at least, are wanted on the device with this ordinal; -1: that of
 * the current context. */
bool pool_make_room_on(struct pool *pool, CUdevice ordinal, uint64_t bytes,
                       struct reclaim *progress);

/* Gives everything back that can be given back without waiting for the GPU; the bytes. */
uint64_t pool_trim(struct pool *pool);

/* Bytes of one device, all contexts together. */
struct kept_bytes pool_device_bytes(struct pool *pool, CUdevice device);

/* The most that there was since these were begun anew, likewise. */
struct kept_peaks pool_device_peaks(struct pool *pool, CUdevice device);
void pool_start_peaks_again(struct pool *pool, CUdevice device);

/* The pool's figures may have a file, see figures_file.h. To be called before any other thread
 * knows the pool. complain is told why there is none where the settings name a directory; may be
 * NULL. */
void pool_show_figures(struct pool *pool, void (*complain)(const char *line));

/* From now on limits that the environment says hold, too (core/settings/limits.h). To be called
 * before any other thread knows the pool. complain is told, at most once, what cannot be read. */
void pool_read_limits(struct pool *pool, void (*complain)(const char *line));

/* Whether there was such a file, and somebody has taken it away. */
bool pool_figures_are_taken(struct pool *pool);

/* Whether somebody has truncated it: there is nothing to report then. */
bool pool_figures_are_lost(struct pool *pool);

/* When the process ends by itself: the file goes, unless it is to stay. */
void pool_end_figures(struct pool *pool, bool stay);

/* Fills the devices of a report (the caller has filled process and settings), without a driver
 * call and without waiting for a lock. 0, or -1 with errno. */
int pool_report(struct pool *pool, struct report *report);

#endif
