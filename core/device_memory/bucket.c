#include "bucket.h"

#include <stdlib.h>

#include "core/contexts/thread_state.h"

static uint32_t first_slot(uint64_t bytes, uint32_t slots)
{
    /* Fibonacci hashing: the sizes are multiples of large powers of two. */
    return (uint32_t)((bytes * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (slots - 1);
}

/* The place of this size, which may be empty. */
static _Atomic(struct bucket *) *find_place(struct bucket_table *table, uint64_t bytes)
{
    uint32_t i = first_slot(bytes, table->slots);
    struct bucket *bucket;
    while ((bucket = atomic_load_explicit(&table->buckets[i], memory_order_relaxed)) != NULL &&
           bucket->bytes != bytes)
        i = (i + 1) & (table->slots - 1);
    return &table->buckets[i];
}

static struct bucket_table *make_table(uint32_t slots, struct bucket_table *previous)
{
    struct bucket_table *table = calloc(1, sizeof *table + slots * sizeof table->buckets[0]);
    if (table) {
        table->slots = slots;
        table->previous = previous;
    }
    return table;
}

static struct bucket_table *table_of(const struct bucket_set *set)
{
    return atomic_load_explicit(&set->table, memory_order_relaxed);
}

/* The old table stays: the report may be reading it. */
static bool grow_table(struct bucket_set *set)
{
    struct bucket_table *old = table_of(set);
    struct bucket_table *table = make_table(2 * old->slots, old);
    if (!table)
        return false;
    for (uint32_t i = 0; i < old->slots; i++) {
        struct bucket *bucket = atomic_load_explicit(&old->buckets[i], memory_order_relaxed);
        if (bucket)
            atomic_store_explicit(find_place(table, bucket->bytes), bucket, memory_order_relaxed);
    }
    /* Pairs with the acquire load in bucket_set_visit. */
    atomic_store_explicit(&set->table, table, memory_order_release);
    return true;
}

bool bucket_set_init(struct bucket_set *set)
{
    struct bucket_table *table = make_table(64, NULL);
    atomic_init(&set->table, table);
    return table != NULL;
}

struct bucket *bucket_set_find(const struct bucket_set *set, uint64_t bytes)
{
    return atomic_load_explicit(find_place(table_of(set), bytes), memory_order_relaxed);
}

bool bucket_set_make_room(struct bucket_set *set)
{
    return 2 * set->count < table_of(set)->slots || grow_table(set);
}

void bucket_set_add(struct bucket_set *set, struct bucket *bucket)
{
    /* Pairs with the acquire load in bucket_set_visit. */
    atomic_store_explicit(find_place(table_of(set), bucket->bytes), bucket, memory_order_release);
    set->count++;
}

void bucket_set_visit(const struct bucket_set *set, void (*visit)(struct bucket *, void *),
                      void *argument)
{
    struct bucket_table *table = atomic_load_explicit(&set->table, memory_order_acquire);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct bucket *bucket = atomic_load_explicit(&table->buckets[i], memory_order_acquire);
        if (bucket)
            visit(bucket, argument);
    }
}

void bucket_take_wait(const struct bucket *bucket)
{
    uint64_t waited = thread_state.waited_ns;
    if (__builtin_expect(!waited, 1))
        return;
    thread_state.waited_ns = 0;
    bucket_count_wait(bucket->counters, waited);
}

void bucket_count_waiting_free(const struct bucket *bucket)
{
    bucket_take_wait(bucket);
    /* Relaxed, like every counter. */
    atomic_fetch_add_explicit(&bucket->counters->waiting_frees, 1, memory_order_relaxed);
}
