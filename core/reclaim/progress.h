/*
 * How far reclaim has come for one call that is out of memory. It begins zeroed, but for what the
 * caller knows of the request, and belongs to the calling thread.
 */
#ifndef CUDAPOOL_CORE_PROGRESS_H
#define CUDAPOOL_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* What is in the way of a request. */
enum reclaim_bound {
    RECLAIM_DEVICE, /* the driver has no memory */
    RECLAIM_LIMIT,  /* the process's own hard limit: others cannot help */
    RECLAIM_GROUP,  /* that of the group: only its processes can */
    RECLAIM_MACHINE /* the driver has no host memory: no device's helps */
};

/* Of asking other processes, see neighbours.h. */
struct reclaim_others {
    uint64_t demand;      /* for the next time, if nobody knows what is missing; 0: not asked yet */
    uint64_t left;        /* bytes that were there for the request as they were asked last */
    unsigned in_vain;     /* times in a row that they gave, and no more was there afterwards */
    uint64_t ended_until; /* until then what one of them had that has ended may turn up; 0: none */
    bool given, pend;     /* as they were asked last: something was given; is pending */
};

/* What is done in turn. */
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
    uint64_t bytes;       /* to give back at first: as many as are wanted, 0 if that is not known */
    uint64_t wanted;      /* at least so many will do; 0 as above */
    uint64_t rounded;     /* what bytes were at first, or wanted */
    uint64_t released;    /* bytes, by the steps since the first */
    uint64_t started;     /* nanoseconds of the monotonic clock; 0: not yet */
    uint64_t give_up_at;  /* of wait_for_the_rest of struct kind: on the same clock */
    uint64_t seen;        /* of what other threads may change, as the first step began */
    bool unreserved;      /* what is wanted counts in no sum of the pool's: the memory is the
                             program's and the driver's business alone */
    bool in_stream_order; /* for an allocation in a stream's order: the driver would not have waited
                             for what others free meanwhile */
    struct reclaim_others others;
};

#endif
