/*
 * The state of a pool, shared by the files of the core; nobody else includes this.
 */
#ifndef CUDAPOOL_CORE_POOL_STATE_H
#define CUDAPOOL_CORE_POOL_STATE_H

#include <stdatomic.h>

#include "core/base/lock.h"
#include "core/base/mutation.h"
#include "core/base/threads.h"
#include "core/blocks/block.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/host_work.h"
#include "core/driver/calls.h"
#include "core/figures/figures.h"
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
    const struct kind *const *kinds; /* NULL behind the last one */
    struct block_table blocks;
    pthread_mutex_t primary_lock; /* guards nothing of ours: no context ends, and no primary context
                                     is retained for a moment, while another thread does either */
    pthread_mutex_t fence_lock;   /* guards captures.list and the set of live contexts against our
                                     recording of fences */
    char apart[64];               /* every call reads what follows, and few write it */
    struct captures captures;
    void *of_kind[MEMORY_KINDS]; /* what each kind keeps, set as the pool starts; or NULL */
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
                                        look_at_objects. Relaxed, like the next two */
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

#endif
