#include "host_piece.h"

#include <stdlib.h>

static struct host_piece **place_of(struct host_pieces *pieces, uint64_t number)
{
    struct host_piece **place = &pieces->by_number[number % HOST_PIECE_HASHES];
    while (*place && (*place)->number != number)
        place = &(*place)->next;
    return place;
}

static void count(struct host_pieces *pieces, uint64_t bytes)
{
    counter_add(&pieces->taken, bytes);
}

static bool is_small(const struct block *block)
{
    return block_bytes(block) < HOST_PIECE;
}

bool host_pieces_add(struct host_pieces *pieces, struct block *block, CUdeviceptr address)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (!is_small(block)) {
        count(pieces, block_bytes(block));
        return true;
    }
    struct host_piece **place = place_of(pieces, address / HOST_PIECE);
    if (!*place) {
        *place = calloc(1, sizeof **place);
        if (!*place)
            return false;
        (*place)->number = address / HOST_PIECE;
        count(pieces, HOST_PIECE);
    }
    block_list_append(&(*place)->blocks, block, LINK_HEAP);
    return true;
}

struct host_piece *host_piece_of(const struct host_pieces *pieces, const struct block *block)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (!is_small(block))
        return NULL;
    return *place_of((struct host_pieces *)(uintptr_t)pieces, block_address(block) / HOST_PIECE);
}

void host_pieces_remove(struct host_pieces *pieces, struct block *block)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (!is_small(block)) {
        count(pieces, 0 - block_bytes(block));
        return;
    }
    struct host_piece **place = place_of(pieces, block_address(block) / HOST_PIECE);
    struct host_piece *piece = *place;
    if (!piece) /* cannot happen: the piece exists since its first block was added */
        return;
    block_list_remove(&piece->blocks, block, LINK_HEAP);
    if (piece->blocks.first)
        return;
    *place = piece->next;
    count(pieces, 0 - HOST_PIECE);
    free(piece);
}
