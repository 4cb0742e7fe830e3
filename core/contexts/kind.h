/*
 * A kind of memory (device, stream-ordered, pinned host, graph memory) is one directory and one
 * struct kind. Kinds call contexts and blocks directly. Contexts, fences and reclaim call kinds
 * through the table that the pool was made with, for example when a context ends or memory is
 * short. So contexts, fences and reclaim include no header of a kind. Kinds do not know each other,
 * except that graph memory is built on device memory. Hits and frees use no table.
 *
 * The table is fixed before the pool is used, so no lock guards it. A function that a kind does not
 * need is NULL. Kinds are called in the order of the table.
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

/* These two have a number for of_kind only. Memory that graphs keep is device memory, with the
 * settings and figures of that kind. Unpooled memory has no settings, and figures of its own. */
#define KIND_GRAPH    ((enum memory_kind)MEMORY_KINDS)
#define KIND_UNPOOLED ((enum memory_kind)(MEMORY_KINDS + 1))
#define KINDS_OF_POOL (MEMORY_KINDS + 2)

/* The program's call inside which memory is returned. RELEASE_IN_TRIM: the program asks for the
 * release of all cached memory, and waits for no work of the GPU. RELEASE_FOR_OTHERS: memory is
 * returned for other processes, in any call or in none. Then the pool must wait for nothing of the
 * program's, but others must get the memory at once. */
enum release_place {
    RELEASE_IN_FREE,
    RELEASE_IN_ALLOCATION,
    RELEASE_OUT_OF_MEMORY,
    RELEASE_IN_TRIM,
    RELEASE_FOR_OTHERS
};

struct kind {
    const char *name;
    /* Its index in of_kind of a pool, a device and a context. Also its index in the figures,
     * where it is less than MEMORY_KINDS. */
    enum memory_kind number;
    bool is_the_machines; /* its memory is host memory: releasing it gives no device memory */
    size_t device_bytes;  /* the size of its data for each device: of_kind of the device */
    size_t context_bytes; /* the size of its data for each context: of_kind of the context */

    /* The pool is new. Sets of_kind of the pool. False where memory is short. */
    bool (*starts)(struct pool *pool);
    /* In the child of a fork: closes the files that the kind keeps open. Async-signal-safe. */
    void (*forget)(struct pool *pool);
    /* The device is about to be listed. Its data for this kind is device_bytes zeroes. The registry
     * lock is held. False where memory is short. */
    bool (*made_device)(struct pool *pool, struct device *device);

    /* ---- contexts ---- */

    /* A context record was made. Its data for this kind is context_bytes zeroes. The fence lock and
     * the registry lock are held. False where memory is short. */
    bool (*made_context)(struct pool *pool, struct context *context);
    /* The record stands for one of the driver's contexts from now on. The fence lock and the
     * registry lock are held. */
    void (*context_began)(struct context *context);
    /* The context has become current in the calling thread, which remembers that in thread_state. A
     * kind whose hits do not take the context's lock sets thread_state.device_cache or
     * thread_state.shard. */
    void (*became_current)(struct context *context);
    /* The driver answers every call in this context from now on. Any locks may be held. */
    void (*disabled)(struct context *context);
    /* The driver is about to be asked to end the context for good. After this call no thread can
     * pin the context. So its fences can be recorded or queried now for the last time. */
    void (*before_end)(struct pool *pool, struct context *context);
    /* Called before (ending) and after (not ending) the driver call that may end the context. The
     * kind serves no allocation in between. The fence lock is held. */
    void (*ending)(struct context *context, bool ending);
    /* No other thread uses the context any more, and the context is about to end for good. The kind
     * releases its memory to the driver. */
    void (*give_back_at_end)(struct pool *pool, struct context *context);
    /* The context has ended, and its memory with it. The fence lock is held. */
    void (*ended)(struct pool *pool, struct context *context);

    /* ---- fences; the context's lock is held unless it says otherwise ---- */

    /* The newest stamp of what may be pending; 0: nothing is. */
    uint64_t (*newest_pending)(const struct context *context);
    /* Lock not held. Whether anything may be pending that was freed in a stream's order, in
     * whichever context. No call waits for it, so newest_pending leaves it out. */
    bool (*pends_in_order)(struct pool *pool);
    /* Every block stamped up to epoch_clean is clean now. */
    void (*became_clean)(struct context *context);
    /* The program is about to submit work that only the host can end, or has submitted it. Or such
     * work may have completed. host_work_limit tells what is left. */
    void (*host_work_changed)(struct context *context);
    /* An allocation has waited for a second in which nothing became clean. Or a release of memory
     * has waited that long for a barrier. May release and retake the lock. */
    void (*wait_stalled)(struct pool *pool, struct context *context);
    /* Lock not held. A free, or the program's synchronise, has failed to record a fence for what
     * was freed. The attempt before it failed, too. The kind frees what is pending at once. */
    void (*is_unfenced)(struct pool *pool, struct context *context);
    /* Lock not held. The program has synchronised the context, or a free has done so. */
    void (*synchronised)(struct pool *pool, struct context *context);

    /* ---- captures; no lock is held unless it says otherwise ---- */

    /* A capture is about to begin on the stream. The kind records fences for what is pending while
     * it still can, and makes the queries that the driver forbids on a captured stream.
     * capture_has_come follows once for each capture_is_coming, whether or not the capture has
     * begun. */
    void (*capture_is_coming)(struct pool *pool, CUstream stream);
    void (*capture_has_come)(struct pool *pool);
    /* The fence lock is held. capture_began: a capture has begun on the stream, but is not counted
     * yet. capture_ended: a capture has ended, and is no longer counted. It comes also for captures
     * without capture_began (captures_began_again). graph is NULL where none is left, or none is
     * known. The kind keeps the pointer until capture_ended, to recognize the capture and for
     * capture_is_spoilt. */
    void (*capture_began)(struct pool *pool, const struct capture *capture, CUstream stream);
    void (*capture_ended)(struct pool *pool, const struct capture *capture, CUgraph graph);

    /* ---- addresses; no lock is held, and no driver call is made ---- */

    /* Someone frees this address without the pool: forgets a live block there. False where the
     * driver must not free it: the block is free already, or is a part of a segment. */
    bool (*freed_outside)(struct pool *pool, CUdeviceptr address);
    /* The driver has just given the address out. So its previous owner freed it without the pool's
     * knowledge: forgets a record of it. */
    void (*forget_address)(struct pool *pool, CUdeviceptr address);

    /* ---- memory; no lock is held. device NULL means all devices, and host memory. A kind that
     * is_the_machines gets release, changes and add_kept with device NULL only. While reclaim
     * looks for host memory (RECLAIM_MACHINE), it calls release, changes and wait_for_the_rest of
     * such kinds only. ---- */

    /* Memory has become short on the device, and this context was the first to find out. */
    void (*memory_is_short)(struct context *context);
    /* Asks the driver with a few queries which pending work has completed. May wait for 0.1 s. */
    void (*ask)(struct pool *pool, struct device *device);
    /* Releases clean blocks to the driver until that many bytes are released. Returns the bytes
     * released. place:
     * - RELEASE_OUT_OF_MEMORY: a thread is out of memory. It calls ask by itself.
     * - RELEASE_IN_TRIM, RELEASE_FOR_OTHERS: the kind queries its pending work first. */
    uint64_t (*release)(struct pool *pool, struct device *device, uint64_t bytes,
                        enum release_place place);
    /* Waits for pending memory, as far as core/reclaim/waiting.h lets the call. The wait ends when
     * the monotonic clock shows progress->give_up_at. True: the wait may also have completed frees
     * that the program made without the pool. */
    bool (*wait_for_the_rest)(struct pool *pool, struct device *device,
                              const struct reclaim *progress);
    /* A sum that changes when a thread allocates, frees, or releases memory to the driver. Opposite
     * changes may cancel out. */
    uint64_t (*changes)(struct pool *pool, struct device *device);
    /* Bytes that a thread that is out of memory may hope for: clean bytes, and bytes that plain
     * frees have left pending. Bytes that were waited for without success do not count
     * (epoch_waited_for). */
    uint64_t (*returnable)(struct pool *pool, struct device *device);
    /* Records a fence for pending memory that has neither a fence nor an event. The fence is only
     * queried. The caller has already called epoch_fence_the_rest for each context. */
    void (*fence_the_rest)(struct pool *pool, struct device *device);
    /* Called by the housekeeper alone, at least once a second while anything is free. Releases what
     * the program has not touched for the kind's release_after_idle at now, in nanoseconds of the
     * monotonic clock. This includes blocks in the caches of idle threads, and pending blocks that
     * nobody has asked about. It waits for none of the program's work. Returns the time of the next
     * such release. UINT64_MAX: nothing is free, or the kind never releases idle memory.
     * RELEASE_MORE_AT_ONCE: HOUSEKEEPING_PORTION was released, and more may be due. */
    uint64_t (*release_idle)(struct pool *pool, struct device *device, uint64_t now);
    /* Called by the housekeeper alone. Releases free memory where the machine's memory is about to
     * run out. Returns when to look again; UINT64_MAX: in about a second. */
    uint64_t (*leave_to_machine)(struct pool *pool, uint64_t now);
    /* The housekeeper is about to end, since nothing is free. Makes sure that the next free of each
     * cache or stream reaches housekeeper_look. True: something is free after all. */
    bool (*watch)(struct pool *pool);
    /* Free bytes that the driver's memory pools hold only because of the kind. Without the kind the
     * driver would have released them. The kind's own free blocks do not count. It asks the
     * driver. */
    uint64_t (*driver_keeps)(struct pool *pool, struct device *device);
    /* Approximate bytes that the driver has taken from the device for the kind, beyond the sizes of
     * the kind's blocks: rests of pages, and of chunks of memory pools. It may ask the driver. */
    uint64_t (*driver_has_taken)(struct pool *pool, struct device *device);
    /* Adds the bytes that the kind holds. */
    void (*add_kept)(struct pool *pool, struct device *device, struct kept_bytes *sum);
    /* add_peaks adds the peaks since the program last reset them (cudapool_reset_peaks).
     * start_peaks_again resets them. */
    void (*add_peaks)(struct pool *pool, struct device *device, struct kept_peaks *sum);
    void (*start_peaks_again)(struct pool *pool, struct device *device);
};

/* Bytes. live: held by the program. cached: free and unused. pending: free, but perhaps still used
 * by the GPU. */
struct kept_bytes {
    uint64_t live, cached, pending;
    uint64_t in_order; /* part of pending: freed in stream order, so nobody waits for them */
};

/* Peaks, in bytes. live: held by the program, as it asked for it. reserved: live, cached and
 * pending together. */
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
