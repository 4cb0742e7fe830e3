/*
 * Which of a context's free pinned blocks go back to the driver next.
 */
#ifndef CUDAPOOL_CORE_HOST_CHOICE_H
#define CUDAPOOL_CORE_HOST_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct host_heap;

struct host_choice {
    bool pending;          /* those that are pending, the oldest first; else clean ones */
    bool lru;              /* the one that was freed first, rather than one of the largest */
    uint64_t key;          /* of these only; 0: of all */
    uint64_t freed_before; /* and only if they were freed by then: the monotonic clock */
};

/* Takes what is to be given back next into the calling thread's hand: a block, or where it is a
 * small one, and any may be taken, a whole piece. They are chained through their bucket links;
 * NULL: there is none. The context's lock is held. */
struct block *host_take_chosen(const struct host_heap *heap, const struct host_choice *choice);

#endif
