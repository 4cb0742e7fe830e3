/*
 * Pieces: what the driver cuts small blocks of pinned memory out of.
 *
 * The driver takes 2 MiB of the machine's memory at a time, at addresses that are multiples of
 * that, and gives them back when no block is left in them. So what free blocks cost is not their
 * bytes: where one of them, or one that lives, keeps a piece, nothing comes of giving the others
 * back but room for the driver's next small blocks. Larger blocks take pages of
 * their own, which the program's would have taken as well: they count as their bytes.
 *
 * The context's lock guards all of it.
 */
#ifndef CUDAPOOL_CORE_HOST_PIECE_H
#define CUDAPOOL_CORE_HOST_PIECE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/blocks/block.h"

#define HOST_PIECE (UINT64_C(2) << 20)

struct host_piece {
    uint64_t number;          /* its address / HOST_PIECE */
    struct block_list blocks; /* all that lie in it, through their heap links */
    struct host_piece *next;  /* of those with the same hash */
};

#define HOST_PIECE_HASHES 1024u

/* Zeroes are no pieces. */
struct host_pieces {
    struct host_piece *by_number[HOST_PIECE_HASHES];
    counter taken; /* bytes of all pieces, and of all larger blocks */
};

/* A block of the driver's has come, at that address. False where memory is short. */
bool host_pieces_add(struct host_pieces *pieces, struct block *block, CUdeviceptr address);

/* It is about to be forgotten. */
void host_pieces_remove(struct host_pieces *pieces, struct block *block);

/* The piece of a small block; NULL of a larger one. */
struct host_piece *host_piece_of(const struct host_pieces *pieces, const struct block *block);

#endif
