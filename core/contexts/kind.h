/*
 * Kinds of memory: what the floors below them may ask of each.
 *
 * A kind (device memory, stream-ordered memory, pinned host memory) is one directory and one struct
 * kind. Calls go down from a kind to contexts and blocks; what has to go the other way, because a
 * context ends, a fence is over or memory is short, goes through the table of kinds that the pool
 * was made with. So nothing here knows a kind by name, kinds do not know each other, and hits and
 * frees go through no table.
 *
 * The table is fixed before the pool is used, so that no lock guards it. A function that a kind
 * does not need is NULL. Kinds are asked in the order of the table.
 */
#ifndef CUDAPOOL_CORE_KIND_H
#define CUDAPOOL_CORE_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "core/settings/config.h"

struct capture;
struct context;
struct device;
struct kept_bytes;
struct kept_peaks;
struct pool;
struct reclaim;

/* What graphs keep is device memory, with its settings and its figures: that kind has a place in
 * of_kind and nothing else that goes by numbers. */
#define KIND_GRAPH    ((enum memory_kind)MEMORY_KINDS)
#define KINDS_OF_POOL (MEMORY_KINDS + 1)

struct kind {
    const char *name;
    enum memory_kind
        number;           /* its place in of_kind of a pool and of a device, and in the figures */
    bool is_the_machines; /* its memory is: no device gets any by what it gives back */
    size_t device_bytes;  /* kept for each device, behind its record: of_kind of the device */
    size_t context_bytes; /* kept for each context, behind its record: of_kind of the context */

    /* The pool is new. Sets of_kind of the pool. False where memory is short. */
    bool (*starts)(struct pool *pool);
    /* In the child of a fork: closes what is kept open. Async-signal-safe. */
    void (*forget)(struct pool *pool);
    /* The device is about to be listed, with device_bytes zeroes for this kind. The registry lock
     * is held. False where memory is short. */
    bool (*made_device)(struct pool *pool, struct device *device);

    /* ---- contexts ---- */

    /* A record was made, with context_bytes zeroes for this kind. False where memory is short. */
    bool (*made)(struct pool *pool, struct context *context);
    /* The record stands for a context of the driver's from now on. */
    void (*came_to_life)(struct context *context);
    /* It is what is current in the calling thread, which remembers that in thread_state; a kind
     * whose hits take no lock of the context's sets thread_state.kept, or shard. */
    void (*became_current)(struct context *context);
    /* The driver answers everything in this context from now on. Any locks may be held. */
    void (*stepped_aside)(struct context *context);
    /* The context is about to end for good: the last moment at which it can be asked about. */
    void (*before_end)(struct pool *pool, struct context *context);
    /* Around the driver call that may end it: nothing is handed out meanwhile. Its own lock is not
     * held, others may be. */
    void (*ending)(struct context *context, bool ending);
    /* Nobody else uses it any more, and it is about to end for good: memory goes back. */
    void (*give_back_at_end)(struct pool *pool, struct context *context);
    /* It has ended, and its memory with it. */
    void (*ended)(struct pool *pool, struct context *context);

    /* ---- fences; the context's lock is held unless it says otherwise ---- */

    /* The newest stamp of what may be pending; 0: nothing is. */
    uint64_t (*newest_pending)(const struct context *context);
    /* Everything stamped up to epoch_clean is unused now. */
    void (*became_clean)(struct context *context);
    /* There is work that only the host ends, or there is none any more: see host_work_limit. */
    void (*host_work_changed)(struct context *context);
    /* Lock perhaps released in between. An allocation has waited for a second in which nothing
     * became clean. */
    void (*waited_in_vain)(struct pool *pool, struct context *context);
    /* Lock not held. No fence could be recorded for what was freed, again. Inside a free. */
    void (*is_unfenced)(struct pool *pool, struct context *context);
    /* Lock not held. The program has synchronised the context. */
    void (*synchronised)(struct pool *pool, struct context *context);

    /* ---- captures; no lock is held ---- */

    /* A capture is about to begin on the stream: what is pending is given fences, as long as there
     * can be some, and what a captured stream must not be asked is asked. And then: it has begun,
     * or has not, once for each of the former. */
    void (*capture_is_coming)(struct pool *pool, CUstream stream);
    void (*capture_has_come)(struct pool *pool);
    /* The fence lock is held. A capture has begun on the stream, and is not counted yet; it is
     * over, and counted no more; NULL: it has left no graph, or none is known. The pointer is its
     * name alone. */
    void (*capture_began)(struct pool *pool, const struct capture *capture, CUstream stream);
    void (*capture_ended)(struct pool *pool, const struct capture *capture, CUgraph graph);

    /* ---- addresses; no lock is held, and no driver call is made ---- */

    /* Someone frees this address past the pool: forgets a live block there. False where the block
     * is free, and so nobody's to free. */
    bool (*let_go)(struct pool *pool, CUdeviceptr address);
    /* The driver has just given the address out, so whoever had it before was freed behind our
     * back: forgets a record of it. */
    void (*forget_address)(struct pool *pool, CUdeviceptr address);

    /* ---- memory; no lock is held. A device that is NULL means all, and the machine. Kinds whose
     * memory is the machine's are not asked for a device's sake, nor others for the machine's ----
     */

    /* Memory has become short on the device, and this context was the first to find that. */
    void (*memory_is_short)(struct context *context);
    /* Asks the driver, as far as that costs no more than a few questions, what is over. */
    void (*ask)(struct pool *pool, struct device *device);
    /* For a thread that is out of memory: gives back what is clean until so many bytes are; returns
     * how many were. Every kind has it. */
    uint64_t (*give_back)(struct pool *pool, struct device *device, uint64_t bytes);
    /* Waits for what is pending, as far as core/reclaim/waiting.h lets the call, but not longer
     * than until the monotonic clock shows progress->give_up_at. True: what the program has freed
     * past the pool may be back by that. */
    bool (*wait_for_the_rest)(struct pool *pool, struct device *device,
                              const struct reclaim *progress);
    /* A sum that changes whenever threads allocate, free or give back. */
    uint64_t (*changes)(struct pool *pool, struct device *device);
    /* Bytes that a thread which is out of memory may hope for: what is clean, and what plain frees
     * have left pending, but for what was waited for without success (epoch_waited_for). */
    uint64_t (*returnable)(struct pool *pool, struct device *device);
    /* Makes room for others' sake, with nothing waited for: gives back so many bytes, or what there
     * is. Returns how many. Every kind has it. */
    uint64_t (*make_room)(struct pool *pool, struct device *device, uint64_t bytes);
    /* What is pending without a fence, or an event that tells of it, gets one that is only asked
     * about. The fences of contexts come before. */
    void (*fence_the_rest)(struct pool *pool, struct device *device);
    /* The program asks for all that can be given back. The bytes. */
    uint64_t (*trim)(struct pool *pool);
    /* Called by the housekeeper alone, about once a second while anything is free. Gives back what
     * the program has not touched for the kind's release_after_idle at now, nanoseconds of the
     * monotonic clock, wherever it is: in caches of threads that do nothing, and pending where
     * nobody has asked. Nothing of the program's is waited for. When something will be idle for so
     * long next; UINT64_MAX: nothing is free, or nothing goes back for that reason;
     * RELEASE_MORE_AT_ONCE: HOUSEKEEPING_PORTION has gone back, and more may be due. */
    uint64_t (*release_idle)(struct pool *pool, struct device *device, uint64_t now);
    /* Called by the housekeeper alone. Gives back what is free where the machine's memory is about
     * to run out, and says when to look again; UINT64_MAX: in about a second. */
    uint64_t (*leave_to_machine)(struct pool *pool, uint64_t now);
    /* The housekeeper is about to end, since nothing is free: every free from now on is to pass
     * where housekeeper_look is called, at least once. True: there is something free after all. */
    bool (*watch)(struct pool *pool);
    /* Bytes that memory pools of the driver's hold for the kind's sake, beside what it holds
     * itself. The driver is asked. */
    uint64_t (*driver_keeps)(struct pool *pool, struct device *device);
    /* Bytes of the device that the driver has taken for the kind's sake beside what its blocks
     * count: whole pages, and chunks of its memory pools. About; the driver may be asked. */
    uint64_t (*driver_has_taken)(struct pool *pool, struct device *device);
    /* Memory is short on a device, or (of_machine) on the machine: pools of the driver's that the
     * kind does not serve, but keeps from giving back at once, give back. False: there was none. */
    bool (*trim_unserved)(struct pool *pool, bool of_machine);
    /* Adds what the kind holds. */
    void (*add_kept)(struct pool *pool, struct device *device, struct kept_bytes *sum);
    /* Adds the peaks since the program began them anew (cudapool_reset_peaks); begins them anew. */
    void (*add_peaks)(struct pool *pool, struct device *device, struct kept_peaks *sum);
    void (*start_peaks_again)(struct pool *pool, struct device *device);
};

/* Bytes in the program's hands, free and unused, and free but perhaps still used by the GPU. */
struct kept_bytes {
    uint64_t live, cached, pending;
    uint64_t in_order; /* of pending: freed in a stream's order, so that nobody waits for them */
};

/* The most that was in the program's hands, as it asked for it, and the most of all of these. */
struct kept_peaks {
    uint64_t live, reserved;
};

/* Calls this function of each kind that has it. of: the pool, or a context. */
#define TELL_KINDS(of, function, ...)                                                              \
    do {                                                                                           \
        for (const struct kind *const *kind_ = (of)->kinds; *kind_; kind_++)                       \
            if ((*kind_)->function)                                                                \
                (*kind_)->function(__VA_ARGS__);                                                   \
    } while (0)

#endif
