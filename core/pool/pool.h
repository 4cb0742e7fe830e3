/*
 * The pool: what the hooks ask for memory.
 *
 * One struct pool serves the process. Every context has its own heap of device memory in it.
 * ladder.h and epoch.h describe how freed memory is reused (epochs, fences, the ladder).
 *
 * Any thread may call any function at any time, with any context current. Each function answers as
 * the driver function that it stands for would. The caller holds no lock of the pool.
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
#include "core/stream_memory/stream_order.h"

struct pool;

/* Creates a pool that uses this driver; no driver call is made. driver must outlive the pool, the
 * other arguments are copied. Without thread functions threads have no caches, since nothing would
 * tell the pool that a thread ends. Returns NULL with errno where memory is short. A pool is never
 * destroyed: it lives as long as the process, because threads may be inside it until the last
 * moment. */
struct pool *pool_create(const struct driver *driver, const struct settings *settings,
                         const struct thread_functions *threads);

/* Called around a fork, by the thread that forks. In between, no thread of the pool's own and no
 * thread inside the pool holds a C library lock that the child would need. pool_fork_coming waits a
 * tenth of a second at most. */
void pool_fork_coming(struct pool *pool);
void pool_fork_over(struct pool *pool);

/* Called in the child of a fork, before anything else there. The pool belongs to the parent, and
 * the threads that hold its locks do not exist in the child. */
void pool_forget(struct pool *pool);

/* The process is exiting. The pool's own threads make no more driver calls, and other processes
 * need not ask this one for memory. Async-signal-safe. */
void pool_ends(struct pool *pool);

/* ---- device memory: cuMemAlloc, cuMemAllocPitch, cuMemFree, cuMemFreeAsync, cuMemGetInfo ---- */

typedef CUresult allocate_pitch(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
typedef CUresult free_async(CUdeviceptr, CUstream);

CUresult pool_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes);

/* driver is the driver's own call. The pool makes it for a new width, because only the driver knows
 * the pitch. */
CUresult pool_allocate_pitch(struct pool *pool, allocate_pitch *driver, CUdeviceptr *address,
                             size_t *pitch, size_t width, size_t height,
                             unsigned int element_bytes);

CUresult pool_free(struct pool *pool, CUdeviceptr address);

/* cuMemAllocFromPoolAsync, or cuMemAllocAsync where memory_pool is NULL, if a free block of the
 * same stream is all that the request needs. In every other case the function has done nothing yet
 * and returns the result of otherwise, which is to call pool_allocate_async. */
typedef CUresult allocate_otherwise(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                                    CUstream stream);
CUresult pool_allocate_async_at_once(struct pool *pool, CUdeviceptr *address, size_t bytes,
                                     CUmemoryPool memory_pool, CUstream stream,
                                     allocate_otherwise *otherwise);

/* cuMemFreeAsync of a stream-ordered block on the stream on which it was allocated. In every other
 * case the function has done nothing yet and returns the result of otherwise, which is to call
 * pool_free_async. */
CUresult pool_free_async_at_once(struct pool *pool, CUdeviceptr address, CUstream stream,
                                 free_async *otherwise);

/* driver is the driver's own call. It answers for memory that is not a block of the pool, and while
 * captures are under way. */
CUresult pool_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                         CUstream stream);

/* cuMemGetInfo. *free includes cached and pending memory as far as releasing it would free whole
 * pages of the driver's. The function computes that block by block, so that no other code has to
 * keep count. */
CUresult pool_memory_info(struct pool *pool, size_t *free, size_t *total);

/* cuDeviceTotalMem has answered total_bytes for this device. Returns what the program is told. */
uint64_t pool_told_total(const struct pool *pool, CUdevice ordinal, uint64_t total_bytes);

/* The calling thread, which the driver has called back (is_inside_driver), is about to free the
 * address without the pool. Returns false where it must not do so, because the block is free
 * already. */
bool pool_freed_outside(struct pool *pool, CUdeviceptr address);

/* The driver has handed out this address by a call that was not the pool's own. */
void pool_forget_address(struct pool *pool, CUdeviceptr address);

/* ---- pinned host memory: cuMemHostAlloc, cuMemAllocHost, cuMemFreeHost ---- */

CUresult pool_allocate_host(struct pool *pool, void **address, size_t bytes, unsigned int flags);
CUresult pool_allocate_host_plainly(struct pool *pool, void **address, size_t bytes);
CUresult pool_free_host(struct pool *pool, void *memory);

/* Called after cuMemHostGetFlags has succeeded. Replaces the flags by those that the program asked
 * for. The driver reports a small block with the flags of the larger piece that it is cut from.
 * Those are the flags of the first block in the piece, and this block's may differ. */
void pool_tell_host_flags(struct pool *pool, const void *memory, unsigned int *flags);

/* Whether the memory lies in a block, live or free, that the pool itself has registered. */
bool pool_has_registered(struct pool *pool, const void *memory);

/* ---- what the driver says of a pointer ---- */

enum pointer_kind {
    POINTER_FOREIGN, /* not the pool's memory: the driver's answer stands */
    POINTER_LIVE,    /* inside what the program asked for */
    POINTER_HIDDEN,  /* inside a free block, or past the requested bytes of a live one: nobody's
                        memory */
};

struct pointer_answer {
    enum pointer_kind kind;
    CUdeviceptr base;   /* unset for a foreign pointer, like all fields below */
    size_t bytes;       /* that the program requested */
    size_t block_bytes; /* size of the block, 0 for stream-ordered memory. The driver has mapped as
                           many whole pages as a block of cuMemAlloc's takes */
    bool of_host;       /* pinned host memory */
    bool part;          /* cut out of a larger block, which alone the driver knows */
};

/* Looks the pointer up in the pool. Makes no driver call. */
struct pointer_answer pool_ask_pointer(struct pool *pool, CUdeviceptr pointer);

/* Returns CU_POINTER_ATTRIBUTE_BUFFER_ID for a live pointer. The number is a new one each time the
 * block is handed out. Returns 0 where the driver's own number stands. */
uint64_t pool_buffer_id(struct pool *pool, const struct pointer_answer *answer);

/* Something other than this process's streams is about to reach the live block around this pointer.
 * The call waits for the work that a barrier still orders before the block. It also marks the block
 * as shared: the pool never reuses it and lets the driver free it. */
void pool_share(struct pool *pool, CUdeviceptr pointer);

/* The program has asked to export a part, or to set an attribute of it. The driver could do that
 * only to the whole block, so the request was refused. Counts it for the report. */
void pool_refused_export(struct pool *pool, const struct pointer_answer *answer);

/* A pointer that no driver ever hands out. Queries about POINTER_HIDDEN memory use it. */
#define NOBODYS_POINTER ((CUdeviceptr)256)

/* ---- contexts ---- */

/* Each function is called after the driver has done one thing: created the calling thread's current
 * context, or retained a device's primary context. For green contexts: created one, converted one
 * to a handle, or destroyed one. */
void pool_context_created(struct pool *pool, CUcontext handle);
void pool_primary_retained(struct pool *pool, CUcontext handle, CUdevice device);
void pool_green_context_created(struct pool *pool, CUgreenCtx green, CUdevice device);
void pool_green_context_converted(struct pool *pool, CUcontext handle, CUgreenCtx green);
void pool_green_context_destroyed(struct pool *pool, CUgreenCtx green);

/* Called around a driver call that may end a context. The context is named by handle (NULL: the
 * current one), is a device's primary one, or is the primary one of a green context's device. Every
 * begin is followed by pool_context_ended in the same thread. Calls that the driver makes back into
 * the hooks in between pass through. */
enum context_fate { CONTEXT_LIVES, CONTEXT_DIED, CONTEXT_PRIMARY_MAY_HAVE_DIED };
struct ending {
    struct context *context; /* NULL: not known to the pool */
    bool primary;
    bool release;        /* the call releases the primary context, which survives where others
                            retain it */
    uint64_t generation; /* of the context, when the call began */
    int cancellation;
};
struct ending pool_context_ending(struct pool *pool, CUcontext handle);
struct ending pool_primary_releasing(struct pool *pool, CUdevice device);
struct ending pool_primary_resetting(struct pool *pool, CUdevice device); /* always ends it */
struct ending pool_green_ending(struct pool *pool, CUgreenCtx green);
void pool_context_ended(struct pool *pool, struct ending ending, enum context_fate fate);

/* Called before the program makes the later work of a context wait for an event. The context is the
 * one with this handle (NULL: the current one), or a green one. */
void pool_barrier_coming(struct pool *pool, CUcontext handle);
void pool_green_barrier_coming(struct pool *pool, CUgreenCtx green);

/* Called around a context-wide synchronise of the context with this handle, or (NULL) of the
 * current one. */
struct synchronising {
    struct context *context; /* NULL: not known to the pool */
    bool cleans;             /* success makes clean what was freed before it */
    uint64_t epoch;
};
struct synchronising pool_synchronise_begin(struct pool *pool, const CUcontext *handle);
void pool_synchronise_end(struct pool *pool, struct synchronising state, CUresult result);

/* The calling thread launches work on the stream (pool_note_launch), or records an event or waits
 * there (pool_note_stream). The stream is named as in the functions without _ptsz. Where several
 * threads launch, or several streams have work, the pool raises no barriers: they would make
 * everybody wait for whoever runs ahead. */
void pool_note_launch(struct pool *pool, CUstream stream);
void pool_note_stream(struct pool *pool, CUstream stream);

/* Called before the launch of a graph. Memory that the graph's capture allocated and did not free
 * becomes live. */
void pool_graph_launch_begins(struct pool *pool, CUgraphExec executable);

/* An executable graph was launched, or uploaded. The pool counts these where captures may
 * allocate. */
void pool_note_graph_launch(struct pool *pool, bool upload);

/* ---- stream-ordered memory: see stream_heap.h ----
 *
 * Streams are named as in the functions without _ptsz: the calling thread's own stream is
 * CU_STREAM_PER_THREAD. */

/* cuMemAllocAsync, or cuMemAllocFromPoolAsync where memory_pool is not NULL. False: the driver is
 * to answer the program's call. *result is then unchanged, unless the pool has already counted a
 * failure. */
bool pool_allocate_async(struct pool *pool, CUdeviceptr *address, size_t bytes,
                         const CUmemoryPool *memory_pool, CUstream stream, CUresult *result);

/* The driver has answered such an allocation. It counts as a request where the pool would have
 * served it, had it known the stream. Where a capture has the stream and captures may allocate, it
 * counts as an allocation by the graph. */
struct pool_request {
    size_t bytes;
    const CUmemoryPool *memory_pool;
    CUstream stream;
};
void pool_note_driver_allocation(struct pool *pool, const struct pool_request *request,
                                 CUresult result);

/* Whether stream-ordered memory is in use. If not, callers need not report waits. */
bool pool_follows_streams(struct pool *pool);

/* Called before the driver destroys a stream, because afterwards another stream may have the
 * handle. Where the destruction fails, the pool treats the stream as a new one. */
void pool_stream_ending(struct pool *pool, CUstream stream);

/* Called around a synchronise with a stream, or a query of one. */
struct order_mark pool_stream_wait_begin(struct pool *pool, CUstream stream);
void pool_stream_wait_end(struct pool *pool, struct order_mark mark, CUresult result);

/* Called after a synchronise with an event, or a query of one. */
void pool_event_wait_ended(struct pool *pool, CUresult result);

/* A launch with programmatic stream serialization was made on the stream. */
void pool_early_launch(struct pool *pool, CUstream stream);

/* The program's memory pools: see mempool.h. Each function is called after the driver's call has
 * succeeded, unless the name says otherwise. */
void pool_mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice device);
void pool_mempool_chosen(struct pool *pool);
void pool_mempool_destroying(struct pool *pool, CUmemoryPool handle);
void pool_mempool_destroyed(struct pool *pool, CUmemoryPool handle, CUresult result);
void pool_mempool_trimming(struct pool *pool, CUmemoryPool handle, size_t keep);
void pool_mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute);
void pool_mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                      const void *value);
void pool_mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                      void *value);

/* Live, cached and pending bytes of one stream. False: the pool does not know the stream. */
bool pool_stream_bytes(struct pool *pool, CUstream stream, struct kept_bytes *bytes);

/* Waits until pending frees in a stream's order have completed, as far as fences tell, and for ten
 * seconds at most. Returns the number of streams that have nothing pending any more. */
unsigned pool_reap(struct pool *pool);

/* Uses of a block that the program announces: see use.h. */
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

/* The number or the address is 0 where there is no scalar. */
uint64_t pool_scalar_create(struct pool *pool, size_t bytes);
CUdeviceptr pool_scalar_address(struct pool *pool, uint64_t number);
CUresult pool_scalar_set(struct pool *pool, uint64_t number, const void *value, CUstream stream);
CUresult pool_scalar_destroy(struct pool *pool, uint64_t number);

/* ---- captures: see capture.h ---- */

bool pool_captures_under_way(struct pool *pool);
/* Called before a capture begins on the stream, with no lock held. Pending memory gets a fence
 * while fences are still possible, so that it can be released if memory runs out during the
 * capture. */
void pool_capture_about_to_begin(struct pool *pool, CUstream stream);
void pool_capture_has_come(struct pool *pool); /* or failed to; once per begin */
void pool_captures_lock(struct pool *pool);
void pool_captures_unlock(struct pool *pool);
void pool_capture_began(struct pool *pool, CUstream stream, bool per_thread);
void pool_capture_began_again(struct pool *pool, CUstream stream);
void pool_capture_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph);
void pool_capture_stream_destroyed(struct pool *pool, CUstream stream);

/* Called after a driver call that may have ended a graph or an executable, or given the driver's
 * memory for graphs back, with no lock held. Reclaims the memory that a graph held. */
void pool_graphs_may_be_gone(struct pool *pool);

/* ---- out of memory, caches, report ---- */

/* Called after a driver call of the program's has failed for lack of memory. progress starts
 * zeroed. True: try the call again. */
bool pool_make_room(struct pool *pool, struct reclaim *progress);

/* As pool_make_room, where the call needs at least this many bytes on the device with this ordinal;
 * -1: the current context's device. reserved: device_reserved has the bytes already. */
bool pool_make_room_on(struct pool *pool, CUdevice ordinal, uint64_t bytes, bool reserved,
                       struct reclaim *progress);

/* Releases everything that can be released without waiting for the GPU. Returns the bytes. */
uint64_t pool_trim(struct pool *pool);

/* Bytes of one device, summed over all contexts. */
struct kept_bytes pool_device_bytes(struct pool *pool, CUdevice device);

/* A device's peaks since they were last reset, over all contexts; and the reset. */
struct kept_peaks pool_device_peaks(struct pool *pool, CUdevice device);
void pool_start_peaks_again(struct pool *pool, CUdevice device);

/* Creates the file of the pool's figures, if the settings want one (figures_file.h). To be called
 * before any other thread knows the pool. complain may be NULL; it is told why there is no file
 * although the settings name a directory. */
void pool_show_figures(struct pool *pool, void (*complain)(const char *line));

/* Reads the limits from the environment, which hold from now on in addition
 * (core/settings/limits.h). To be called before any other thread knows the pool. complain is told,
 * at most once, what cannot be read. */
void pool_read_limits(struct pool *pool, void (*complain)(const char *line));

/* Whether the figures had a file and somebody has removed it. */
bool pool_figures_are_taken(struct pool *pool);

/* Whether somebody has truncated the file of the figures. There is nothing to report then. */
bool pool_figures_are_lost(struct pool *pool);

/* Called when the process exits. Removes the file of the figures, unless stay is true. */
void pool_end_figures(struct pool *pool, bool stay);

/* Fills the devices of a report, without a driver call and without waiting for a lock. The caller
 * has filled process and settings. Returns 0, or -1 with errno. */
int pool_report(struct pool *pool, struct report *report);

#endif
