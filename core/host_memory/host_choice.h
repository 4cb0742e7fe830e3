/*
 * Which of a context's free pinned blocks are released to the driver next.
 */
#ifndef CUDAPOOL_CORE_HOST_CHOICE_H
#define CUDAPOOL_CORE_HOST_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct host_heap;

struct host_choice {
    bool pending;          /* true: only pending blocks, the oldest first; false: only clean
                              blocks */
    bool lru;              /* true: the block that was freed first; false: one of the largest */
    uint64_t key;          /* only blocks of this key; 0: of any key */
    uint64_t freed_before; /* only blocks freed by this time: nanoseconds of the monotonic clock */
};

/* Takes the block to release next out of its bin. If any clean block will do and the chosen one is
 * small, it takes all blocks of an entirely clean piece, where there is one. The blocks then belong
 * to the calling thread, chained through their bucket links. NULL: there is none. The context's
 * lock is held. */
struct block *host_take_chosen(const struct host_heap *heap, const struct host_choice *choice);

#endif
