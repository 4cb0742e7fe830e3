#include "block.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SLAB_BLOCKS 128

struct block_slab {
    struct block_slab *next;
    struct block blocks[SLAB_BLOCKS];
};

void *allocate_in_whole_lines(size_t bytes)
{
    uintptr_t memory = (uintptr_t)calloc(1, (bytes + 127) & ~(size_t)63);
    return memory ? (void *)((memory + 63) & ~(uintptr_t)63) : NULL;
}

static bool add_slab(struct block_records *records, struct heap *heap)
{
    struct block_slab *slab = allocate_in_whole_lines(sizeof *slab);
    if (!slab)
        return false;
    slab->next = records->slabs;
    records->slabs = slab;
    for (size_t i = SLAB_BLOCKS; i-- > 0;) {
        slab->blocks[i].heap = heap;
        block_records_put(records, &slab->blocks[i]);
    }
    return true;
}

struct block *block_records_take(struct block_records *records, struct heap *heap)
{
    if (!records->unused && !add_slab(records, heap))
        return NULL;
    struct block *block = records->unused;
    records->unused = block->links[LINK_HEAP].next;
    return block;
}

void block_records_put(struct block_records *records, struct block *block)
{
    block_set(block, 0, BLOCK_UNUSED);
    counter_set(&block->epoch, 0);
    block->links[LINK_HEAP].next = records->unused;
    records->unused = block;
}

void block_records_visit(struct block_records *records, void (*visit)(struct block *, void *),
                         void *argument)
{
    for (struct block_slab *slab = records->slabs; slab; slab = slab->next)
        for (size_t i = 0; i < SLAB_BLOCKS; i++)
            if (block_state(&slab->blocks[i]) != BLOCK_UNUSED)
                visit(&slab->blocks[i], argument);
}

/* Nodes come out of large zeroed mappings, so that a process with many of them does not run into
 * the kernel's limit on mappings. */
#define CHUNK_BYTES ((size_t)8 << 20)

static void *map_zeroed(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* grow_lock is held. */
static void *take_node(struct block_table *table, size_t bytes)
{
    if (table->chunk_left < bytes) {
        char *chunk = map_zeroed(CHUNK_BYTES);
        if (!chunk)
            return NULL;
        table->chunk = chunk;
        table->chunk_left = CHUNK_BYTES;
    }
    void *node = table->chunk;
    table->chunk += bytes;
    table->chunk_left -= bytes;
    return node;
}

bool block_table_init(struct block_table *table)
{
    pthread_mutex_init(&table->grow_lock, NULL);
    table->chunk = NULL;
    table->chunk_left = 0;
    table->root = map_zeroed(sizeof *table->root << ROOT_BITS);
    return table->root != NULL;
}

/* grow_lock is held. */
static bool grow_to(struct block_table *table, CUdeviceptr address)
{
    size_t at = (size_t)(address >> (GRANULE_BITS + LEAF_BITS + MIDDLE_BITS));
    struct block_table_middle *middle =
        atomic_load_explicit(&table->root[at], memory_order_relaxed);
    if (!middle) {
        middle = take_node(table, sizeof *middle);
        if (!middle)
            return false;
        atomic_store_explicit(&table->root[at], middle, memory_order_release);
    }
    at = block_table_index(address, GRANULE_BITS + LEAF_BITS, MIDDLE_BITS);
    if (!atomic_load_explicit(&middle->leaves[at], memory_order_relaxed)) {
        struct block_table_leaf *leaf = take_node(table, sizeof *leaf);
        if (!leaf)
            return false;
        atomic_store_explicit(&middle->leaves[at], leaf, memory_order_release);
    }
    return true;
}

bool block_table_insert(struct block_table *table, CUdeviceptr address, struct block *block)
{
    /* Freeing the null pointer is the driver's business. */
    if (!address || !block_table_has_place(address))
        return false;
    _Atomic(struct block *) *place = block_table_place(table, address);
    if (!place) {
        pthread_mutex_lock(&table->grow_lock);
        bool grown = grow_to(table, address);
        pthread_mutex_unlock(&table->grow_lock);
        if (!grown)
            return false;
        place = block_table_place(table, address);
    }
    /* Pairs with the acquire load in block_table_find. */
    atomic_store_explicit(place, block, memory_order_release);
    return true;
}

void block_table_remove(struct block_table *table, CUdeviceptr address, struct block *block)
{
    _Atomic(struct block *) *place = block_table_place(table, address);
    if (!place)
        return;
    struct block *expected = block;
    /* Relaxed: a removal publishes nothing. */
    atomic_compare_exchange_strong_explicit(place, &expected, NULL, memory_order_relaxed,
                                            memory_order_relaxed);
}
