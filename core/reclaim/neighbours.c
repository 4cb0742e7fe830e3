#include "neighbours.h"

#include <time.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/board/board.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "progress.h"

/* Where nobody knows what is missing, so much is asked for at first, and twice as much each time
 * that it was not enough. */
#define FIRST_DEMAND (UINT64_C(32) << 20)

/* Others publish what they cache on some of their slow paths, and about once a second: so much may
 * have been freed in all of them since, but no more than that share of the device. */
#define UNPUBLISHED_BYTES (UINT64_C(1) << 30)
#define UNPUBLISHED_SHARE 16u

/* Who asks again so soon, in nanoseconds, is taking much, piece by piece: it asks for so many times
 * as much as the last time, since what is given is clean, and the driver takes 2 to 3 ms a GiB to
 * prepare memory for a new owner: sooner in the background than in the call that needs it. */
#define SERIES_NANOSECONDS (UINT64_C(100) * 1000 * 1000)
#define SERIES_GROWTH      16u

/* The kernel takes a moment to give back what a process had that has ended: nanoseconds. */
#define ENDED_NANOSECONDS (UINT64_C(500) * 1000 * 1000)

/* So many times others are believed who give what does not turn up. */
#define VAIN_ANSWERS 32u

/* So long others are asked one after the other who have nothing any more: nanoseconds. */
#define EMPTY_NANOSECONDS BOARD_SILENCE_NANOSECONDS

/* Of what listeners publish who have nothing, this is the most. */
#define NOTHING_BYTES (BOARD_SLOTS * BOARD_NEARLY_NOTHING)

/* Between two looks for what a process had that has ended: nanoseconds. */
#define ENDED_NAP (5 * 1000 * 1000)

/* What a request misses. */
struct shortage {
    uint64_t bytes;    /* to ask for */
    uint64_t enough;   /* given, for another try */
    uint64_t at_least; /* others must have so many, or the request fails in any case; 0: any help */
};

/* Bytes that are there for a request; false where nobody knows. Of a device's memory the driver
 * says so, of a group's the board. */
static bool bytes_left(struct pool *pool, const struct device *device,
                       const struct reclaim *progress, uint64_t *left)
{
    if (progress->bound == RECLAIM_GROUP) {
        *left = device_group_left(device);
        return true;
    }
    size_t free, total;
    CUresult result = driver_memory_info(pool->driver, &free, &total);
    *left = free;
    return result == CUDA_SUCCESS;
}

/* Of a request whose shortage nobody knows. */
static struct shortage next_demand(const struct reclaim *progress)
{
    uint64_t demand = progress->others.demand;
    uint64_t first = progress->wanted > FIRST_DEMAND ? progress->wanted : FIRST_DEMAND;
    return (struct shortage){demand ? demand : first, 1, 0};
}

/* Whether what others say that they gave does not turn up over and over. A rival who takes it
 * before this thread can is served then, and does not come so often. */
static bool is_given_in_vain(struct reclaim_others *others, uint64_t left)
{
    if (left > others->left)
        others->in_vain = 0;
    else if (others->given)
        others->in_vain++;
    others->left = left;
    return others->in_vain >= VAIN_ANSWERS;
}

/* Relaxed: several threads may take part in a series, and it is a guess. */
static bool is_in_series(const struct device *device, uint64_t now)
{
    uint64_t last = atomic_load_explicit(&device->series_at, memory_order_relaxed);
    return last && rest_of(now, last) < SERIES_NANOSECONDS;
}

static void note_in_series(struct device *device, uint64_t bytes, uint64_t now)
{
    atomic_store_explicit(&device->series_bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&device->series_at, now, memory_order_relaxed);
}

void neighbours_note_taken(struct device *device, uint64_t bytes)
{
    if (!device->board)
        return;
    uint64_t now = monotonic_now();
    if (!is_in_series(device, now))
        note_in_series(device, bytes, now);
}

/* What a group's limit leaves needs no preparing: no more of it is asked for than is missing. */
static uint64_t bytes_to_ask_for(struct device *device, const struct reclaim *progress,
                                 uint64_t missing)
{
    if (progress->bound == RECLAIM_GROUP)
        return missing;
    uint64_t before = atomic_load_explicit(&device->series_bytes, memory_order_relaxed);
    uint64_t bytes = missing, now = monotonic_now();
    if (is_in_series(device, now))
        bytes = larger_of(missing, smaller_of(before * SERIES_GROWTH, device->total_bytes));
    /* Of the request little may have been missing. */
    note_in_series(device, larger_of(bytes, progress->rounded), now);
    return bytes;
}

/* Nor do they publish what lies unused in the driver's own pools: mostly no more than the threshold
 * that this process would set, too. */
static uint64_t kept_by_drivers(const struct pool *pool, const struct device *device)
{
    const struct byte_size *threshold = &pool->settings.stream_ordered.driver_release_threshold;
    uint64_t bytes = byte_size_resolve(threshold, device->total_bytes);
    return pool->settings.stream_ordered.enabled && bytes != UINT64_MAX ? bytes : 0;
}

/* *has_come: since the driver was asked, all that is wanted has come, be it for somebody else.
 * False where there is nothing to hope for. Memory that is there may lie in pieces, so that more is
 * missing than the numbers say. */
static bool look_at_shortage(struct pool *pool, struct device *device, struct reclaim *progress,
                             uint64_t own, struct shortage *shortage, bool *has_come)
{
    uint64_t left;
    *has_come = false;
    *shortage = next_demand(progress);
    if (!device || progress->wanted == 0 || !bytes_left(pool, device, progress, &left))
        return progress->others.demand != UINT64_MAX;
    uint64_t missing = rest_of(progress->rounded, left);
    *has_come = missing == 0 && left > progress->others.left;
    if (missing) {
        uint64_t needed = rest_of(progress->wanted, left);
        uint64_t of_others = rest_of(needed, own);
        uint64_t unseen = smaller_of(UNPUBLISHED_BYTES, device->total_bytes / UNPUBLISHED_SHARE) +
                          kept_by_drivers(pool, device);
        *shortage = (struct shortage){bytes_to_ask_for(device, progress, missing), missing,
                                      rest_of(of_others, unseen)};
    }
    return !is_given_in_vain(&progress->others, left);
}

/* Between two looks at a demand, each of which costs some system calls: nanoseconds. */
#define SHORTEST_NAP (UINT64_C(50) * 1000)

/* Until so many bytes were given, nothing is pending any more, or the time has come. */
static struct board_progress await(struct board_demand *demand, uint64_t bytes, uint64_t give_up_at)
{
    struct board_progress seen = board_demand_look(demand);
    uint64_t began = monotonic_now();
    while (seen.given < bytes && seen.pending && monotonic_now() < give_up_at) {
        seldom_nap(began, SHORTEST_NAP);
        seen = board_demand_look(demand);
    }
    return seen;
}

static void count(struct device *device, const struct board_progress *seen)
{
    uint64_t total = device->total_bytes;
    if (seen->given)
        neighbours_count_got(device->neighbours, seen->given < total ? seen->given : total,
                             monotonic_now());
    neighbours_count_asked(device->neighbours, seen->silent);
}

/* NULL: nobody is asked. *no_place: since other threads of this process have all demands that it
 * can have under way. */
static struct board_demand *ask(const struct device *device, const struct shortage *shortage,
                                bool of_group, bool *no_place)
{
    return board_ask(device->board, device->board_place, device->total_bytes, shortage->bytes,
                     shortage->at_least, of_group, no_place);
}

static struct board_demand *ask_in_turn(const struct device *device,
                                        const struct shortage *shortage, bool of_group,
                                        uint64_t give_up_at)
{
    bool no_place;
    struct board_demand *demand = ask(device, shortage, of_group, &no_place);
    uint64_t began = monotonic_now();
    while (!demand && no_place && monotonic_now() < give_up_at) {
        seldom_nap(began, SHORTEST_NAP);
        demand = ask(device, shortage, of_group, &no_place);
    }
    return demand;
}

static uint64_t end_of_waiting(const struct reclaim *progress)
{
    return progress->started + LAST_RESORT_NANOSECONDS;
}

/* False: nobody says that there is anything. */
static bool ask_on(struct device *device, struct reclaim *progress, const struct shortage *shortage,
                   bool wait)
{
    uint64_t end = end_of_waiting(progress);
    struct board_demand *demand =
        ask_in_turn(device, shortage, progress->bound == RECLAIM_GROUP, end);
    if (!demand)
        return false;
    /* What is pending may be there at once, and be only just on its way. */
    uint64_t give_up_at = wait ? end : monotonic_now() + BOARD_SILENCE_NANOSECONDS;
    struct board_progress seen = await(demand, shortage->enough, give_up_at);
    board_demand_end(demand);
    if (progress->bound == RECLAIM_DEVICE && progress->wanted)
        atomic_store_explicit(&device->series_at, monotonic_now(), memory_order_relaxed);
    count(device, &seen);
    if (seen.ended)
        progress->others.ended_until = monotonic_now() + ENDED_NANOSECONDS;
    progress->others.given |= seen.given != 0;
    progress->others.pend |= seen.pending != 0;
    return true;
}

static bool others_say_that_they_have(const struct device *device, bool of_group)
{
    struct board_bytes others =
        board_others(device->board, device->board_place, device->total_bytes, of_group);
    return others.cached + others.pending > NOTHING_BYTES;
}

/* Those that are asked may have used what they said they had, or cannot give it: so each time more
 * are asked, and in the end all. */
static void ask_until_given(struct device *device, struct reclaim *progress,
                            struct shortage shortage, bool wait)
{
    struct reclaim_others *others = &progress->others;
    uint64_t until = monotonic_now() + EMPTY_NANOSECONDS;
    while (ask_on(device, progress, &shortage, wait) && !others->given && !others->pend &&
           others_say_that_they_have(device, progress->bound == RECLAIM_GROUP) &&
           monotonic_now() < until)
        shortage.bytes = smaller_of(2 * shortage.bytes, device->total_bytes);
}

/* What was given after the last answer, or comes from where nobody counts it. */
static bool has_more_left(struct pool *pool, const struct device *device,
                          const struct reclaim *progress)
{
    uint64_t left;
    return device && progress->wanted && bytes_left(pool, device, progress, &left) &&
           left > progress->others.left;
}

bool neighbours_may_help(struct pool *pool, const struct device *wanted,
                         const struct reclaim *progress)
{
    const struct device *device = wanted ? wanted : registry_devices(&pool->registry);
    while (device && !device->board)
        device = wanted ? NULL : device->next;
    return device && progress->bound != RECLAIM_LIMIT && monotonic_now() < end_of_waiting(progress);
}

/* What processes had that have just ended. */
static bool may_turn_up(const struct pool *pool, const struct device *wanted,
                        const struct reclaim_others *others)
{
    uint64_t now = monotonic_now(), until = others->ended_until;
    const struct device *device = wanted ? wanted : registry_devices(&pool->registry);
    for (; device; device = wanted ? NULL : device->next) {
        uint64_t ended = device->board ? board_ended_at(device->board, device->board_place) : 0;
        if (ended)
            until = larger_of(until, ended + ENDED_NANOSECONDS);
    }
    return now < until;
}

/* hope: somebody may have something. */
static void ask_each(struct pool *pool, struct device *wanted, struct reclaim *progress,
                     const struct shortage *shortage, bool hope, bool wait)
{
    struct device *device = wanted ? wanted : registry_devices(&pool->registry);
    for (; device && hope; device = wanted ? NULL : device->next)
        if (device->board)
            ask_until_given(device, progress, *shortage, wait);
    progress->others.demand = shortage->bytes > UINT64_MAX / 2 ? UINT64_MAX : 2 * shortage->bytes;
}

bool neighbours_ask(struct pool *pool, struct device *wanted, struct reclaim *progress,
                    uint64_t own, bool wait)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct reclaim_others *others = &progress->others;
    struct shortage shortage;
    int cancellation = cancellation_off();
    bool has_come, hope = look_at_shortage(pool, wanted, progress, own, &shortage, &has_come);
    others->given = has_come;
    others->pend = false;
    if (!has_come)
        ask_each(pool, wanted, progress, &shortage, hope, wait);
    if (!others->given && hope)
        others->given = has_more_left(pool, wanted, progress);
    if (!others->given && may_turn_up(pool, wanted, others)) {
        nanosleep(&(struct timespec){0, ENDED_NAP}, NULL);
        others->given = true;
    }
    cancellation_restore(cancellation);
    return others->given;
}

void neighbours_note_failure(const struct device *device, const struct reclaim *progress)
{
    /* What is wanted is reserved, too. */
    uint64_t own = rest_of(device_reserved(device), progress->rounded) +
                   atomic_load_explicit(&device->managed_bytes, memory_order_relaxed);
    uint64_t taken = rest_of(device->total_bytes, progress->others.left);
    if (progress->bound == RECLAIM_DEVICE && progress->others.demand && progress->wanted)
        counter_raise_shared(&device->neighbours->others_held, rest_of(taken, own));
}
