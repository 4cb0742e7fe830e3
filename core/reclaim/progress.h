/*
 * The progress of reclaim for one call that is out of memory. It belongs to the calling thread. It
 * begins zeroed, except for what the caller knows of the request.
 */
#ifndef CUDAPOOL_CORE_PROGRESS_H
#define CUDAPOOL_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* The bound that is in the way of a request. */
enum reclaim_bound {
    RECLAIM_DEVICE, /* the driver has no memory */
    RECLAIM_LIMIT,  /* the process's own hard limit; other processes cannot help */
    RECLAIM_GROUP,  /* the group's limit; only its processes can help */
    RECLAIM_MACHINE /* the driver has no host memory; no device's memory helps */
};

/* The state of asking other processes, see neighbours.h. */
struct reclaim_others {
    uint64_t demand;  /* bytes to ask for next if the shortage is not known; 0: not asked yet */
    uint64_t left;    /* bytes that were left for the request when others were last asked */
    unsigned in_vain; /* times in a row that others released memory, but the bytes left for the
                         request did not grow */
    bool given, pend; /* when last asked, others: released something; had some pending */
    bool asked_all;   /* when others were last asked, all were */
};

/* The steps of reclaim, in order. */
enum reclaim_step {
    RECLAIM_CLEAN,
    RECLAIM_FENCED,
    RECLAIM_DRIVER,
    RECLAIM_NEIGHBOURS,
    RECLAIM_THE_REST,
    RECLAIM_NEIGHBOURS_REST,
    RECLAIM_DONE
};
struct reclaim {
    enum reclaim_step step;
    enum reclaim_bound bound;
    uint64_t bytes;      /* to release next; at first what the call asks for; 0: not known */
    uint64_t wanted;     /* the least bytes that the request needs; 0: not known */
    uint64_t rounded;    /* max(bytes, wanted) before the first step */
    uint64_t released;   /* bytes that the steps have released since the first step began */
    uint64_t started;    /* nanoseconds of the monotonic clock; 0: not yet */
    uint64_t give_up_at; /* when wait_for_the_rest of struct kind must end; monotonic clock */
    uint64_t seen;       /* a sum that changes as other threads allocate and free; read when the
                            first step began */
    bool unreserved; /* no sum of the pool counts the wanted bytes, since only the program and the
                        driver deal with their memory */
    bool in_stream_order; /* the request is a stream-ordered allocation: the driver alone would not
                             wait for what others free meanwhile */
    bool trimmed;         /* the driver has trimmed its graphs' memory for this call */
    struct reclaim_others others;
};

#endif
