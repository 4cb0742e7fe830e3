/*
 * Contexts and devices that the pool knows, and how long they live.
 *
 * A struct context is found by its handle, lives as long as the driver's context and is then kept
 * for the next context of its device, so its address is always readable. Whoever touches another
 * thread's context (its events, its stream) pins it; a context that dies waits for its pins.
 *
 * Green contexts are aliases: their memory, fences and barriers are the primary context's.
 *
 * Locking: the registry lock guards the list of handles, the devices and the spare contexts. The
 * fence lock is held whenever the set of live contexts changes, and the primary lock across the
 * driver calls that may end primary ones, one at a time.
 */
#ifndef CUDAPOOL_CORE_CONTEXT_H
#define CUDAPOOL_CORE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/base/size_class.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "epoch.h"
#include "kind.h"
#include "thread_state.h"

struct pool;

struct device {
    CUdevice ordinal;
    char name[256];
    CUuuid uuid;
    uint64_t total_bytes;
    uint64_t cached_cap;             /* bytes */
    uint64_t growth_budget;          /* bytes */
    uint64_t limit;                  /* bytes, UINT64_MAX: none */
    void *of_kind[MEMORY_KINDS];     /* what each kind keeps, behind the record; or NULL */
    char apart[64];                  /* every call reads what is above, few write it */
    _Atomic uint64_t reserved_bytes; /* taken from the driver: live, cached, pending, on the way */
    _Atomic uint64_t managed_bytes;  /* of managed memory that the process holds, see managed.h.
                                        Relaxed: it orders nothing */
    _Atomic uint64_t managed_due;    /* of these, since room was last looked for. Relaxed */
    struct kind_counters *memory;    /* in the figures; set before the device is listed */
    _Atomic uint64_t
        returning; /* blocks that a thread has taken out of a heap and is giving back */
    _Atomic uint64_t fence_bytes; /* freed without a fence of their own, at most; 0 while memory is
                                     short: every free records one. Relaxed: it orders nothing */
    _Atomic bool is_short;        /* of memory. Relaxed: it orders nothing */
    _Atomic uint64_t could_hold;  /* bytes that this process could have reserved when the driver was
                                     last asked: what was left, and reserved_bytes. Relaxed, like
                                     the next one */
    _Atomic uint64_t could_hold_at;     /* nanoseconds of the monotonic clock; 0: never asked */
    _Atomic uint32_t frees_while_short; /* since it became so at first, as a clock for looks */
    _Atomic uint32_t retains; /* of the primary context, by the program, as far as they were seen.
                                 Relaxed: one that is only just coming is not counted on */
    struct device *next;      /* of the pool's devices */
};

struct context {
    struct short_lock lock; /* guards epochs, and what each kind says that it guards */
    char after_lock[64];    /* those who wait for it look at no other line */
    CUcontext handle;
    _Atomic unsigned long long id; /* the driver's, 0 where it has none: tells a handle's next
                                      owner. Written under the registry lock; relaxed: whoever
                                      looks without it looks again with it */
    bool primary;
    struct device *device;
    const struct kind *const *kinds;
    struct heap_counters *counters; /* in the figures */
    uint64_t figures_id;            /* of these */
    struct epochs epochs;
    _Atomic(CUstream) return_stream;
    _Atomic(CUstream) late_stream; /* for memory behind work that is not over: never waited for */
    _Atomic uint32_t pins;         /* pairs with dying, sequentially consistent: see context_pin */
    char apart[64];                /* every call reads what follows, and few write it */
    _Atomic bool unusable; /* the driver answers, the pool does not: an error stays in it, or no
                              fence can be had */
    _Atomic bool barred; /* the program has made its work wait for an event: what is submitted from
                            now on, by us too, may wait for what no free would have waited for */
    _Atomic bool dying;  /* from before the driver is told until it has answered */
    _Atomic uint64_t generation; /* even: dead or spare; odd: alive */
    struct context *next;        /* of all contexts ever made; written before it is listed */
    char apart_behind[64];
    _Alignas(64) char memory[]; /* what each kind keeps, in the order of the table; whole lines */
};

/* What the first kind of the table keeps for the context, and back from there: an offset that the
 * compiler knows, since hits take this way. Other kinds look with context_memory. */
static inline void *context_memory_of_first(struct context *context)
{
    return context->memory;
}

static inline struct context *context_of_first(const void *memory)
{
    return (struct context *)((uintptr_t)memory - offsetof(struct context, memory));
}

void *context_memory(struct context *context, const struct kind *kind);

/* A thread knows how many context locks it holds: where a signal handler ends the process in the
 * middle of a slow path, no lock is taken on the way out. */
#define context_lock(context)   context_lock_from(context, LOCK_HERE)
#define context_unlock(context) context_unlock_from(context, LOCK_HERE)

static inline void context_lock_from(struct context *context, const char *place)
{
    thread_state.context_locks++;
    lock_take_from(&context->lock, LOCK_CONTEXT, place);
}

static inline void context_unlock_from(struct context *context, const char *place)
{
    lock_give_from(&context->lock, place);
    thread_state.context_locks--;
}

/* A handle that a program may make current, and what it stands for. */
struct context_handle {
    CUcontext handle;
    CUgreenCtx green; /* NULL: the context itself; else handle may be NULL: not converted yet */
    struct context *context;
    unsigned long long id; /* of the green context, by the driver; 0: it has none */
    uint64_t generation;   /* in a copy that was looked up: the context's at that time */
};

struct registry {
    pthread_mutex_t lock;
    struct context_handle *handles;
    size_t handle_count, handle_capacity;
    _Atomic(struct device *) devices;   /* the list only grows, and is walked without the lock. The
                                           release store pairs with the acquire load in
                                           registry_devices */
    _Atomic(struct context *) contexts; /* all ever made, dead ones included. The release store
                                           pairs with the acquire load in context_next */
    _Atomic uint64_t generation; /* even, and REGISTRY_CAPTURING besides while captures go on.
                                    Changes when a handle stops being valid: threads cache handles.
                                    The release store pairs with the acquire load in
                                    context_current */
    _Atomic uint64_t records;    /* of contexts ever made. Relaxed: only that they differ matters */
    uint64_t set_generation;     /* changes with the set of live contexts; guarded by the fence
                                    lock */
};

/* So that a thread looks at one word for both. Written under the fence lock, relaxed like the count
 * of captures. */
#define REGISTRY_CAPTURING UINT64_C(1)
#define REGISTRY_STEP      UINT64_C(2)
#define REGISTRY_POOL      (UINT64_C(1) << 48) /* no two pools of a process have the same */

static inline uint64_t registry_generation(const struct registry *registry)
{
    return atomic_load_explicit(&registry->generation, memory_order_acquire) & ~REGISTRY_CAPTURING;
}

/* A handle has stopped being valid. */
static inline bool registry_has_forgotten(const struct registry *registry)
{
    return registry_generation(registry) % REGISTRY_POOL != 0;
}

/* The first of all devices ever seen. */
static inline struct device *registry_devices(const struct registry *registry)
{
    return atomic_load_explicit(&registry->devices, memory_order_acquire);
}

/* The known context with this handle, which is current in this thread; made known if it was not.
 * NULL where it can't be served. green: the handle is a green context's. Remembered by the thread,
 * see context_current in pool_state.h. */
struct context *context_current_slowly(struct pool *pool, CUcontext handle, bool *green);

/* Makes a context known: after its creation or retention. No lock held. The later work of a context
 * that is not the only one is put behind the barriers that others have raised. */
struct context *context_register(struct pool *pool, CUcontext handle, CUdevice device,
                                 bool primary);

/* The same for a context of which only the handle is known; it must be current. */
struct context *context_register_current(struct pool *pool, CUcontext handle);

/* The same for a device's primary context, where there is one. */
struct context *context_register_primary(struct pool *pool, CUdevice device);

/* A green context of the device was created: its primary context is in use through it. */
void context_note_green(struct pool *pool, CUgreenCtx green, CUdevice device);

/* Takes a green context's handle as an alias of its device's primary context. */
void context_alias(struct pool *pool, CUcontext handle, CUgreenCtx green);
void context_drop_alias(struct pool *pool, CUgreenCtx green);

/* Whether a green context is known that keeps this one alive. */
bool context_has_green(struct pool *pool, const struct context *context);

/* The known context with this handle, or the device's primary one; NULL if unknown. */
struct context *context_find(struct pool *pool, CUcontext handle);

/* The same, also by the handle of a green context of its device's. Takes the registry lock only,
 * and calls no driver. */
struct context *context_named(struct pool *pool, CUcontext handle);
struct context *context_find_primary(struct pool *pool, CUdevice device);
CUdevice context_green_device(struct pool *pool, CUgreenCtx green);

/*
 * Around a driver call that may end a context: begin waits until nobody else uses the context and
 * keeps it out of new fences, and returns its generation; finish forgets the context's memory if it
 * died, and is still of that generation: another thread may have done so first. No lock is held
 * in between, since the driver may wait for long; for primary contexts the callers hold the primary
 * lock. The context may be NULL (unknown to us). ends: the call is known to end it, if it succeeds:
 * only then is stream-ordered memory given back before, after the context's work as the driver
 * would.
 */
uint64_t context_end_begin(struct pool *pool, struct context *context, bool ends);
void context_end_finish(struct pool *pool, struct context *context, uint64_t generation, bool died);

/* Whether the primary context that we know is still the device's. */
bool context_primary_lives_on(struct pool *pool, const struct context *context);

/* True while a primary context exists, as the driver sees it. */
bool context_primary_is_active(struct pool *pool, CUdevice device);

/* Keeps a context of this generation from dying. False if it is dying or has died. */
bool context_pin(struct context *context, uint64_t generation);
void context_unpin(struct context *context);
static inline uint64_t context_generation(const struct context *context)
{
    /* Relaxed: compared again under a pin, or read by a thread in which the context is current. */
    return atomic_load_explicit(&context->generation, memory_order_relaxed);
}

/* The device with this ordinal, made known if it was not; NULL where that is not possible. */
struct device *context_device(struct pool *pool, CUdevice ordinal);

/* The next live context after this one (NULL: the first), of the device unless it is NULL. The
 * list only grows, so it is walked without a lock. */
struct context *context_next(struct pool *pool, struct context *context, struct device *device);

/* Makes a context current around driver calls that need it, if it is not already. False where the
 * driver refuses; else pop undoes what push did. */
bool context_push(struct pool *pool, struct context *context, bool *pushed);
void context_pop(struct pool *pool, bool pushed);

/* What may be freed without a fence of its own. */
static inline uint64_t device_fence_bytes(const struct device *device)
{
    return atomic_load_explicit(&device->fence_bytes, memory_order_relaxed);
}

/* Whether memory is short on the device. */
void device_set_short(struct device *device, bool is_short);
static inline bool device_is_short(const struct device *device)
{
    return atomic_load_explicit(&device->is_short, memory_order_relaxed);
}

/* The same for all contexts, those to come included: something goes on that the pool does not see.
 */
void context_step_aside_everywhere(struct pool *pool);

/* Marks the context as one in which the driver answers everything from now on. */
void context_step_aside(struct context *context);

#endif
