#include "kept.h"

#include "core/contexts/pool_state.h"

struct kept_bytes kept_bytes(struct pool *pool, struct device *device)
{
    struct kept_bytes sum = {0};
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->add_kept && !(*kind)->is_the_machines)
            (*kind)->add_kept(pool, device, &sum);
    return sum;
}

struct kept_bytes kept_bytes_of_machine(struct pool *pool)
{
    struct kept_bytes sum = {0};
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->add_kept && (*kind)->is_the_machines)
            (*kind)->add_kept(pool, NULL, &sum);
    return sum;
}

uint64_t bytes_the_driver_keeps(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        sum += (*kind)->driver_keeps ? (*kind)->driver_keeps(pool, device) : 0;
    return sum;
}

uint64_t bytes_around_blocks(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        sum += (*kind)->driver_has_taken ? (*kind)->driver_has_taken(pool, device) : 0;
    return sum;
}

uint64_t kinds_release(struct pool *pool, struct device *device, bool of_machine, uint64_t bytes,
                       enum release_place place)
{
    const struct housekeeping *housekeeping = &pool->housekeeping;
    uint64_t released = 0;
    for (const struct kind *const *kind = pool->kinds; *kind && released < bytes; kind++) {
        /* The process is ending, and its memory with it. */
        if (place == RELEASE_FOR_OTHERS && housekeeping_is_stopped(housekeeping))
            break;
        if ((*kind)->release && kind_may_help(*kind, device, of_machine))
            released += (*kind)->release(pool, device, bytes - released, place);
    }
    return released;
}
