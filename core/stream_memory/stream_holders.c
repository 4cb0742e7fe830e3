#include "stream_holders.h"

#include "core/base/lines.h"

/* Fibonacci hashing, since the low bits of the key tell little. Sizes are multiples of large powers
 * of two, and records lie at multiples of their size. */
static unsigned hash_of(const void *of, uint64_t bytes)
{
    uint64_t key = bytes + (uint64_t)(uintptr_t)of;
    return (unsigned)(key * UINT64_C(0x9E3779B97F4A7C15) >> 54);
}
_Static_assert(STREAMS_SIZES == 1u << (64 - 54), "hash_of gives as many");

static struct stream_holders *find(struct stream_holders *first, const void *of, uint64_t bytes)
{
    while (first && (first->of != of || first->bytes != bytes))
        first = first->next;
    return first;
}

static struct stream_holders *make(const void *of, uint64_t bytes)
{
    struct stream_holders *made = allocate_apart(STREAM_APART, sizeof *made);
    if (made) {
        made->of = of;
        made->bytes = bytes;
    }
    return made;
}

/* A new set is put first in its list, and only if the list still begins with the set where the
 * search began. So no other thread has made the same set meanwhile. */
struct stream_holders *stream_holders_get(struct streams *streams, const void *of, uint64_t bytes)
{
    _Atomic(struct stream_holders *) *list = &streams->holders[hash_of(of, bytes)];
    struct stream_holders *first = atomic_load_explicit(list, memory_order_acquire), *made = NULL;
    for (;;) {
        struct stream_holders *found = find(first, of, bytes);
        if (!found && !made)
            made = make(of, bytes);
        if (found) {
            free_apart(made);
            return found;
        }
        if (!made)
            return NULL;
        made->next = first;
        /* The release pairs with the acquire loads of the list's first set, above. */
        if (atomic_compare_exchange_weak_explicit(list, &first, made, memory_order_acq_rel,
                                                  memory_order_acquire))
            return made;
    }
}
