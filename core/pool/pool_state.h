/*
 * The state of a pool, shared by the files of the core; nobody else includes this.
 *
 * Lock order: primary lock, fence lock, registry lock, a heap lock. The table's grow lock and the
 * pitch lock are taken last and alone, and so is the figures lock.
 */
#ifndef CUDAPOOL_CORE_POOL_STATE_H
#define CUDAPOOL_CORE_POOL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/cancellation.h"
#include "core/base/mutation.h"
#include "core/blocks/block.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/host_work.h"
#include "core/figures/figures.h"
#include "core/stream_memory/stream.h"
#include "pool.h"
#include "thread_state.h"

struct pitch {
    CUdevice device;
    unsigned int element_bytes;
    size_t width, pitch;
};

#define PITCHES 64u

struct pool {
    const struct driver *driver;
    struct settings settings;
    struct block_table blocks;
    pthread_mutex_t primary_lock; /* guards nothing of ours: no context ends, and no primary context
                                     is retained for a moment, while another thread does either */
    pthread_mutex_t fence_lock;   /* guards captures.list and the set of live contexts against our
                                     recording of fences; the one lock held across driver calls */
    char apart[64];               /* every call reads what follows, and few write it */
    struct captures captures;
    struct streams *streams; /* stream-ordered memory; NULL where it is switched off */
    struct registry registry;
    struct figures figures;
    struct host_graphs host_graphs;
    _Atomic bool several_contexts; /* two contexts have been alive at a time; never reset. Release
                                      store in context_register, acquire load in
                                      barriers_are_open */
    _Atomic bool stepped_aside;    /* something is going on that the pool does not see */
    pthread_mutex_t pitch_lock;    /* guards pitches */
    struct pitch pitches[PITCHES];
    unsigned pitch_count;
    counter lives;                   /* the next number that block_name gives */
    char launches_apart[64];         /* launches write what follows */
    _Atomic uint64_t threads;        /* that were given an id, see thread_id */
    _Atomic uint64_t launcher;       /* the id of the thread that launched last; 0: none has */
    _Atomic uint64_t alternated_at;  /* nanoseconds of the monotonic clock: when that last changed.
                                        Relaxed, both: they only choose between two safe ways */
    _Atomic uint64_t objects_loaded; /* shared objects ever loaded when last looked through, see
                                        pool_look_at_objects. Relaxed, like the next two */
    _Atomic bool memory_is_pinned;   /* a library that lets devices reach GPU memory is loaded, or
                                        an export had to wait long for a barrier */
    _Atomic bool frees_are_missed; /* one that follows the driver's frees, but not cuMemFreeAsync */
    bool expedited;                /* membarrier works, see thread_cache.h */
    struct thread_functions thread_functions; /* for thread_cache.h, like the next one */
    pid_t process;                            /* whose pool it is */
    _Atomic bool forgotten; /* this is the child of a fork. Relaxed: set before it has threads */
};

/* The calling thread's id: never given to another, unlike its address. */
static inline uint64_t thread_id(struct pool *pool)
{
    /* Relaxed: only that they differ matters. */
    if (__builtin_expect(!thread_state.id, 0))
        thread_state.id = 1 + atomic_fetch_add_explicit(&pool->threads, 1, memory_order_relaxed);
    return thread_state.id;
}

/* Around every driver call of our own that may call back: nested calls pass through, and the thread
 * is not cancelled there. */
static inline void enter_driver(void)
{
    if (thread_state.inside_driver == 0)
        thread_state.cancellation = cancellation_off();
    thread_state.inside_driver += !MUTATED(nested_call_served);
}

static inline void leave_driver(void)
{
    thread_state.inside_driver -= !MUTATED(nested_call_served);
    if (thread_state.inside_driver == 0)
        cancellation_restore(thread_state.cancellation);
}

/* The context current in this thread, made known if it was not. NULL where there is none or it
 * can't be served. green: the current handle is a green context's. */
static inline struct context *context_current(struct pool *pool, bool *green)
{
    CUcontext handle = NULL;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle)
        return NULL;
    if (thread_state.handle == handle &&
        thread_state.generation == registry_generation(&pool->registry)) {
        *green = thread_state.green;
        return thread_state.context;
    }
    return context_current_slowly(pool, handle, green);
}

/* Whether the calling thread runs a host function or a callback, where the driver refuses to
 * allocate and to free: so does the pool, by asking it. */
static inline bool is_in_host_function(const struct pool *pool)
{
    CUcontext handle;
    return pool->driver->cuCtxGetCurrent(&handle) == CUDA_ERROR_NOT_PERMITTED;
}

/* Whether a capture goes on anywhere in the process. */
static inline bool streams_are_captured(const struct pool *pool)
{
    /* Relaxed: see captures_are_going_on. */
    return atomic_load_explicit(&pool->captures.count, memory_order_relaxed) !=
           pool->streams->idle_captures;
}

/* The record of stream-ordered memory at the address, or NULL. */
static inline struct stream_block *stream_block_at(const struct pool *pool, CUdeviceptr address)
{
    return pool->streams ? stream_block_find(&pool->streams->blocks, address) : NULL;
}

static inline CUstream stream_spelled_out(CUstream handle)
{
    return handle ? handle : CU_STREAM_LEGACY;
}

/* The stream that the handle means in this thread, by the driver's number, where the thread has
 * found any stream before; it may have ended since. Else none. */
static inline struct stream_ref stream_ask(struct pool *pool, CUstream handle)
{
    unsigned long long id = 0;
    /* Only where the driver has numbers are streams remembered. */
    if (recent_streams.pool == pool &&
        pool->driver->cuStreamGetId(stream_spelled_out(handle), &id) == CUDA_SUCCESS) {
        const struct recent_stream *found =
            &recent_streams.streams[stream_recent_place(stream_key(handle, id))];
        return __builtin_expect(found->ref.id == id, 1) ? found->ref
                                                        : stream_look_up(pool, handle, id);
    }
    return (struct stream_ref){NULL, 0};
}

/* The same without asking the driver, of a created stream that the thread has found lately: one
 * that was destroyed past the hooks, and whose handle another has now, is still found. For frees of
 * what was allocated on that very stream: then nothing will be allocated on it any more. */
static inline struct stream_ref stream_recall(struct pool *pool, CUstream handle)
{
    if (!stream_is_created(handle))
        return stream_ask(pool, handle);
    uint64_t key = stream_key(handle, 0);
    const struct recent_stream *found = &recent_streams.streams[stream_recent_place(key)];
    return __builtin_expect(recent_streams.pool == pool && found->key == key, 1)
               ? found->ref
               : stream_ask(pool, handle);
}

/* The stream that the handle means in this thread, made known if it was not and make says so. None
 * where the driver knows of none, or it cannot be served. No lock held. */
static inline struct stream_ref stream_find(struct pool *pool, CUstream handle, bool make)
{
    struct stream_ref ref = stream_ask(pool, handle);
    if (ref.stream && stream_id(pool->streams, ref.stream) == ref.id)
        return ref;
    /* Asked by number, all threads' streams have been looked through; but not where the thread
     * remembers a record that has become another's: it may be known in another one again. */
    if (!make && recent_streams.pool == pool)
        return ref.stream && !MUTATED(stream_known_again_overlooked)
                   ? stream_look_up(pool, handle, ref.id)
                   : (struct stream_ref){NULL, 0};
    return stream_find_slowly(pool, handle, make);
}

/* The same where captures may be going on: none where one may have the stream, since asking for its
 * number would spoil the capture. The driver is asked nothing but whether one has it. */
struct stream_ref stream_find_beside_captures(struct pool *pool, CUstream handle, bool make);

/* Whether a capture has the stream, or may have it. */
bool stream_may_be_captured(const struct pool *pool, CUstream handle);

/* Around a driver call that a capture of the calling thread would forbid. */
struct relaxed_mode {
    bool exchanged;
    CUstreamCaptureMode mode;
};
struct relaxed_mode relaxed_mode_begin(const struct pool *pool);
void relaxed_mode_end(const struct pool *pool, struct relaxed_mode mode);

/* Whether later work of a context is all that can reach its memory, so that a barrier protects a
 * block: one context, no capture, and no library that gives devices access behind CUDA's back. */
bool barriers_are_open(struct pool *pool);

/* Looks at what has been loaded since the last time, for libraries that reach GPU memory in other
 * ways than CUDA's, or follow the driver's calls. */
void pool_look_at_objects(struct pool *pool);

/* Whether memory may go back to the driver by cuMemFreeAsync: the driver has it, and nobody was
 * found who follows the driver's frees and would miss it. */
static inline bool returns_in_stream_order(const struct pool *pool)
{
    return pool->driver->cuMemFreeAsync &&
           (!atomic_load_explicit(&pool->frees_are_missed, memory_order_relaxed) ||
            MUTATED(returned_unseen));
}

/* Whether the calling thread is the only one that has launched work lately. */
bool launches_alone(struct pool *pool);

/* Nanoseconds of the monotonic clock. */
uint64_t monotonic_now(void);

#endif
