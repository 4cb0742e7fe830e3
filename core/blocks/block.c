#include "block.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "core/base/lines.h"
#include "core/base/numbers.h"

#define SLAB_BLOCKS 128

struct block_slab {
    struct block_slab *next;
    struct block blocks[SLAB_BLOCKS];
};

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
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (!records->unused && !add_slab(records, heap))
        return NULL;
    struct block *block = records->unused;
    records->unused = block->links[LINK_HEAP].next;
    return block;
}

void block_records_put(struct block_records *records, struct block *block)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    block_set(block, 0, BLOCK_UNUSED);
    block_set_part(block, PART_NONE);
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

/* Nodes are cut out of large zeroed mappings, so that a process with many nodes does not reach the
 * kernel's limit on mappings. */
#define CHUNK_BYTES ((size_t)8 << 20)

static void *map_zeroed(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void *take_node(struct block_table *table, size_t bytes)
{
    lock_must_be_held(&table->lock);
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
    pthread_mutex_init(&table->lock, NULL);
    table->chunk = NULL;
    table->chunk_left = 0;
    table->root = map_zeroed(sizeof *table->root << ROOT_BITS);
    return table->root != NULL;
}

/* ---- windows: window N is the addresses of one leaf, from N << WINDOW_BITS on ---- */

#define WINDOW_BITS (GRANULE_BITS + LEAF_BITS)

static struct block_table_middle *middle_of(const struct block_table *table, uint64_t window)
{
    /* Pairs with the release store in grow_middle. */
    return atomic_load_explicit(&table->root[window >> MIDDLE_BITS], memory_order_acquire);
}

static size_t in_middle(uint64_t window)
{
    return (size_t)window & (((size_t)1 << MIDDLE_BITS) - 1);
}

static struct block_table_leaf *leaf_of(const struct block_table_middle *middle, uint64_t window)
{
    /* Pairs with the release store in grow_leaf. */
    return atomic_load_explicit(&middle->leaves[in_middle(window)], memory_order_acquire);
}

static uint64_t last_window(CUdeviceptr address, const struct block *block)
{
    return (address + (block->bytes ? block->bytes - 1 : 0)) >> WINDOW_BITS;
}

/* ---- changes ---- */

static bool grow_middle(struct block_table *table, uint64_t window)
{
    lock_must_be_held(&table->lock);
    struct block_table_middle *middle = middle_of(table, window);
    if (middle)
        return true;
    middle = take_node(table, sizeof *middle);
    if (!middle)
        return false;
    atomic_store_explicit(&table->root[window >> MIDDLE_BITS], middle, memory_order_release);
    return true;
}

static bool grow_leaf(struct block_table *table, uint64_t window)
{
    lock_must_be_held(&table->lock);
    struct block_table_middle *middle = middle_of(table, window);
    struct block_table_leaf *leaf = leaf_of(middle, window);
    if (leaf)
        return true;
    leaf = take_node(table, sizeof *leaf);
    if (leaf)
        atomic_store_explicit(&middle->leaves[in_middle(window)], leaf, memory_order_release);
    return leaf != NULL;
}

static bool has_leaf(const struct block_table *table, uint64_t window)
{
    const struct block_table_middle *middle = middle_of(table, window);
    return middle && leaf_of(middle, window);
}

static bool grow_to(struct block_table *table, uint64_t first, uint64_t last)
{
    lock_must_be_held(&table->lock);
    if (first == last && has_leaf(table, first))
        return true;
    for (uint64_t window = first; window <= last; window++)
        if (!grow_middle(table, window))
            return false;
    return grow_leaf(table, first);
}

static void set_reaching(struct block_table *table, uint64_t window, struct block *block)
{
    lock_must_be_held(&table->lock);
    /* Release: pairs with the acquire load in block_table_find_around. */
    atomic_store_explicit(&middle_of(table, window)->reaching[in_middle(window)], block,
                          memory_order_release);
}

static void drop_reaching(struct block_table *table, uint64_t window, const struct block *block)
{
    lock_must_be_held(&table->lock);
    _Atomic(struct block *) *place = &middle_of(table, window)->reaching[in_middle(window)];
    if (atomic_load_explicit(place, memory_order_relaxed) == block)
        atomic_store_explicit(place, NULL, memory_order_relaxed);
}

/* Returns the number of the address's granule in its window. */
static size_t granule_in_leaf(CUdeviceptr address)
{
    return (size_t)(address >> GRANULE_BITS) & (((size_t)1 << LEAF_BITS) - 1);
}

static struct block *block_in_leaf(const struct block_table_leaf *leaf, size_t granule)
{
    return atomic_load_explicit(&leaf->blocks[block_table_leaf_place(granule)],
                                memory_order_acquire);
}

static bool group_is_empty(const struct block_table_leaf *leaf, size_t group, uint32_t classes)
{
    for (; classes; classes &= classes - 1)
        if (block_in_leaf(leaf, (group << GROUP_BITS) + (size_t)__builtin_ctz(classes)))
            return false;
    return true;
}

/* Puts the record in its place. The address's leaf must exist: grow_to makes it. */
static inline void add_record(struct block_table *table, CUdeviceptr address, struct block *block)
{
    lock_must_be_held(&table->lock);
    uint64_t window = address >> WINDOW_BITS;
    struct block_table_middle *middle = middle_of(table, window);
    size_t in = in_middle(window), granule = granule_in_leaf(address);
    size_t group = granule >> GROUP_BITS;
    /* Pairs with the acquire loads in block_table_find and block_in_leaf. */
    atomic_store_explicit(&leaf_of(middle, window)->blocks[block_table_leaf_place(granule)], block,
                          memory_order_release);
    _Atomic uint32_t *classes = &middle->classes[in];
    uint32_t class = 1u << (granule & ((1u << GROUP_BITS) - 1));
    atomic_store_explicit(classes, atomic_load_explicit(classes, memory_order_relaxed) | class,
                          memory_order_relaxed);
    /* Release: pairs with the acquire load in groups_in_word. A thread that loads the value stored
     * here also sees the record and the bit of its class. */
    _Atomic uint64_t *groups = &middle->groups[in][group / 64];
    uint64_t bit = UINT64_C(1) << group % 64;
    atomic_store_explicit(groups, atomic_load_explicit(groups, memory_order_relaxed) | bit,
                          memory_order_release);
}

static void note_removal(struct block_table *table, CUdeviceptr address)
{
    lock_must_be_held(&table->lock);
    uint64_t window = address >> WINDOW_BITS;
    struct block_table_middle *middle = middle_of(table, window);
    size_t group = granule_in_leaf(address) >> GROUP_BITS;
    _Atomic uint64_t *groups = &middle->groups[in_middle(window)][group / 64];
    uint64_t bit = UINT64_C(1) << group % 64;
    uint32_t classes =
        atomic_load_explicit(&middle->classes[in_middle(window)], memory_order_relaxed);
    if (group_is_empty(leaf_of(middle, window), group, classes))
        atomic_store_explicit(groups, atomic_load_explicit(groups, memory_order_relaxed) & ~bit,
                              memory_order_relaxed);
}

bool block_table_insert(struct block_table *table, CUdeviceptr address, struct block *block)
{
    uint64_t first = address >> WINDOW_BITS, last = last_window(address, block);
    /* The null pointer gets no record, because the driver answers frees of it. */
    if (!address || !block_table_has_place(address) || last < first ||
        last >> (MIDDLE_BITS + ROOT_BITS))
        return false;
    lock_take(&table->lock, LOCK_TABLE);
    bool grown = grow_to(table, first, last);
    if (grown) {
        for (uint64_t window = first + 1; window <= last; window++)
            set_reaching(table, window, block);
        add_record(table, address, block);
    }
    lock_give(&table->lock);
    return grown;
}

bool block_table_remove(struct block_table *table, CUdeviceptr address, struct block *block)
{
    _Atomic(struct block *) *place = block_table_place(table, address);
    if (!place)
        return false;
    struct block *expected = block;
    /* Relaxed: a removal publishes nothing. */
    if (!atomic_compare_exchange_strong_explicit(place, &expected, NULL, memory_order_relaxed,
                                                 memory_order_relaxed))
        return false;
    lock_take(&table->lock, LOCK_TABLE);
    for (uint64_t window = (address >> WINDOW_BITS) + 1; window <= last_window(address, block);
         window++)
        drop_reaching(table, window, block);
    note_removal(table, address);
    lock_give(&table->lock);
    return true;
}

/* ---- lookups ---- */

struct window {
    const struct block_table_leaf *leaf;
    const _Atomic uint64_t *groups;
    const _Atomic uint32_t *classes;
};

static struct window window_of(const struct block_table_middle *middle, uint64_t number)
{
    return (struct window){leaf_of(middle, number), middle->groups[in_middle(number)],
                           &middle->classes[in_middle(number)]};
}

static uint64_t groups_in_word(const struct window *window, size_t word)
{
    /* Acquire: pairs with the release store in add_record. */
    return atomic_load_explicit(&window->groups[word], memory_order_acquire);
}

/* Returns the last record of the granule's group that lies at or before the granule; NULL: none. */
static struct block *last_in_group(const struct window *window, size_t granule)
{
    size_t first = granule >> GROUP_BITS << GROUP_BITS;
    uint32_t classes = atomic_load_explicit(window->classes, memory_order_relaxed);
    struct block *found = NULL;
    for (classes &= (2u << (granule - first)) - 1; classes && !found;) {
        unsigned last = 31u ^ (unsigned)__builtin_clz(classes);
        found = block_in_leaf(window->leaf, first + last);
        classes &= ~(1u << last);
    }
    return found;
}

/* Returns the last record of the window that lies at or before the granule; NULL: none. */
static struct block *last_in_window(const struct window *window, size_t granule)
{
    size_t group = granule >> GROUP_BITS;
    uint64_t wanted = UINT64_MAX >> (63 - group % 64);
    struct block *found = NULL;
    for (size_t word = group / 64 + 1; window->leaf && !found && word-- > 0; wanted = UINT64_MAX) {
        uint64_t groups = wanted & groups_in_word(window, word);
        while (groups && !found) {
            size_t top = 63u ^ (size_t)__builtin_clzll(groups);
            size_t end = ((word * 64 + top + 1) << GROUP_BITS) - 1;
            found = last_in_group(window, smaller_of(end, granule));
            groups &= ~(UINT64_C(1) << top);
        }
    }
    return found;
}

struct block *block_table_find_around(const struct block_table *table, CUdeviceptr address)
{
    uint64_t number = address >> WINDOW_BITS;
    if (address >> ADDRESS_BITS)
        return NULL;
    const struct block_table_middle *middle = middle_of(table, number);
    if (!middle)
        return NULL;
    struct window window = window_of(middle, number);
    struct block *found = last_in_window(&window, granule_in_leaf(address));
    return found ? found
                 : atomic_load_explicit(&middle->reaching[in_middle(number)], memory_order_acquire);
}
