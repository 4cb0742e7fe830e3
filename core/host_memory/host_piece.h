/*
 * Pieces: the 2 MiB of memory from which the driver cuts small blocks of pinned memory.
 *
 * The driver takes 2 MiB of the machine's memory at a time, at addresses that are multiples of 2
 * MiB. It returns them when no block is left in them. So the cost of free blocks is not their
 * bytes. While any block of a piece is live or cached, releasing the others only makes room for the
 * driver's next small blocks. Blocks of 2 MiB and more have pages of their own, as they would
 * without the pool, and count as their bytes.
 *
 * The context's lock guards everything here.
 */
#ifndef CUDAPOOL_CORE_HOST_PIECE_H
#define CUDAPOOL_CORE_HOST_PIECE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/blocks/block.h"

#define HOST_PIECE (UINT64_C(2) << 20)

struct host_piece {
    uint64_t number;          /* address / HOST_PIECE */
    struct block_list blocks; /* all blocks in the piece, through LINK_HEAP */
    struct host_piece *next;  /* the next piece with the same hash */
};

#define HOST_PIECE_HASHES 1024u

/* All zeroes: there are no pieces. */
struct host_pieces {
    struct host_piece *by_number[HOST_PIECE_HASHES];
    counter taken; /* bytes of all pieces and of all larger blocks */
};

/* Adds a block that the driver has made, at this address. False where memory is short. */
bool host_pieces_add(struct host_pieces *pieces, struct block *block, CUdeviceptr address);

/* Removes a block that is about to be forgotten. */
void host_pieces_remove(struct host_pieces *pieces, struct block *block);

/* The piece of a small block; NULL for a larger one. */
struct host_piece *host_piece_of(const struct host_pieces *pieces, const struct block *block);

#endif
