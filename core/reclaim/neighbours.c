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
#include "waiting.h"

/* Where the shortage is not known, the first demand is for this many bytes, and each further one
 * for twice as many. */
#define FIRST_DEMAND (UINT64_C(32) << 20)

/* A process that asks again within SERIES_NANOSECONDS is taking much memory piece by piece. It then
 * asks for SERIES_GROWTH times as much as the last time. Memory that others give is clean, and the
 * driver takes 2 to 3 ms a GiB to prepare it for a new owner. That work is better done in the
 * background than in the call that needs the memory. */
#define SERIES_NANOSECONDS (UINT64_C(100) * 1000 * 1000)
#define SERIES_GROWTH      16u

/* How long the kernel may take to free the memory of a process that has ended: nanoseconds. */
#define ENDED_NANOSECONDS (UINT64_C(500) * 1000 * 1000)

/* After this many answers in a row whose memory did not become free here, others are not asked
 * again. */
#define ANSWERS_WITHOUT_EFFECT 32u

/* How long others that have nothing any more are asked one after the other: nanoseconds. */
#define EMPTY_NANOSECONDS BOARD_SILENCE_NANOSECONDS

/* The most that all listening processes without cached memory publish together. */
#define NOTHING_BYTES (BOARD_SLOTS * BOARD_NEARLY_NOTHING)

/* Pause between two looks for memory of a process that has ended: nanoseconds. */
#define ENDED_NAP (5 * 1000 * 1000)

/* The bytes that a request lacks. */
struct shortage {
    uint64_t bytes;    /* to ask others for */
    uint64_t enough;   /* that must be given before another try is worth it */
    uint64_t at_least; /* that others must have, or the request fails in any case; 0: any help */
    uint64_t needed;   /* given or pending bytes that the request needs at least; 0: not known */
};

/* Returns the next demand of a request whose shortage is not known. */
static struct shortage next_demand(const struct reclaim *progress)
{
    uint64_t demand = progress->others.demand;
    uint64_t first = progress->wanted > FIRST_DEMAND ? progress->wanted : FIRST_DEMAND;
    return (struct shortage){demand ? demand : first, 1, 0, 0};
}

/* Whether memory that others say they gave has not become free here, ANSWERS_WITHOUT_EFFECT times
 * in a row. If a rival takes the memory first, the rival's request is met, so rivals rarely cause
 * this. */
static bool does_not_arrive(struct reclaim_others *others, uint64_t left)
{
    if (left > others->left)
        others->in_vain = 0;
    else if (others->given)
        others->in_vain++;
    others->left = left;
    return others->in_vain >= ANSWERS_WITHOUT_EFFECT;
}

/* Relaxed: several threads may take part in a series, and the answer is a guess. */
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

/* Returns the bytes to ask for. Within a group's limit this is only what is missing, since such
 * bytes need no preparation by the driver. */
static uint64_t bytes_to_ask_for(struct device *device, const struct reclaim *progress,
                                 uint64_t missing)
{
    if (progress->bound == RECLAIM_GROUP)
        return missing;
    uint64_t before = atomic_load_explicit(&device->series_bytes, memory_order_relaxed);
    uint64_t bytes = missing, now = monotonic_now();
    if (is_in_series(device, now))
        bytes = larger_of(missing, smaller_of(before * SERIES_GROWTH, device->total_bytes));
    /* At least the whole request, of which little may have been missing. */
    note_in_series(device, larger_of(bytes, progress->rounded), now);
    return bytes;
}

/* Returns the unused bytes that others' driver pools may hold, which others do not publish. Mostly
 * they are no more than the release threshold that this process would set too. */
static uint64_t kept_by_drivers(const struct pool *pool, const struct device *device)
{
    const struct byte_size *threshold = &pool->settings.stream_ordered.driver_release_threshold;
    uint64_t bytes = byte_size_resolve(threshold, device->total_bytes);
    return pool->settings.stream_ordered.enabled && bytes != UINT64_MAX ? bytes : 0;
}

/* The board asks the processes with most bytes first, and their pending bytes may be those waited
 * for without success. So this adds the waited bytes to the demand, which then reaches further
 * processes. */
static uint64_t ask_beside_waited(struct device *device, const struct reclaim *progress,
                                  uint64_t bytes)
{
    uint64_t waited =
        atomic_load_explicit(waited_for_others(device, progress), memory_order_relaxed);
    return smaller_of(smaller_of(bytes, device->total_bytes) + waited, device->total_bytes);
}

/* Sets *left to the bytes left for the request. Also works where the request's size or device is
 * not known: then *left is of the current device. */
static bool left_on_device(struct pool *pool, const struct device *device,
                           const struct reclaim *progress, uint64_t *left)
{
    return (device || progress->bound == RECLAIM_DEVICE) &&
           bytes_left(pool, device, progress, left);
}

/* Finds out what the request lacks. Returns false where there is nothing to hope for. *has_come:
 * since the driver was asked, all wanted bytes have become free, perhaps by another's doing. Free
 * memory may lie in pieces, so that the request lacks more than the numbers say. */
static bool look_at_shortage(struct pool *pool, struct device *device, struct reclaim *progress,
                             uint64_t own, struct shortage *shortage, bool *has_come)
{
    uint64_t left = 0;
    *has_come = false;
    *shortage = next_demand(progress);
    bool known = left_on_device(pool, device, progress, &left);
    if (!device || progress->wanted == 0 || !known) {
        progress->others.left = known ? left : 0;
        return progress->others.demand != UINT64_MAX;
    }
    uint64_t missing = rest_of(progress->rounded, left);
    *has_come = missing == 0 && left > progress->others.left;
    if (missing) {
        uint64_t needed = rest_of(progress->wanted, left);
        uint64_t of_others = rest_of(needed, own);
        *shortage = (struct shortage){
            ask_beside_waited(device, progress, bytes_to_ask_for(device, progress, missing)),
            missing, rest_of(of_others, kept_by_drivers(pool, device)), needed};
    }
    return !does_not_arrive(&progress->others, left);
}

/* The shortest pause between two looks at a demand, each of which costs some system calls:
 * nanoseconds. */
#define SHORTEST_NAP (UINT64_C(50) * 1000)

/* A demand to others, and its progress. */
struct question {
    struct pool *pool;
    struct device *device;
    const struct reclaim *progress;
    const struct shortage *shortage;
    uint64_t began;      /* when the wait began */
    uint64_t give_up_at; /* when to stop waiting for what others' plain frees have left pending */
    struct board_progress seen;
};

/* Whether this many bytes of others are enough, with what this process may still release. */
static bool would_do(const struct question *question, uint64_t bytes)
{
    uint64_t own = returnable_bytes(question->pool, question->device);
    return rest_of(question->shortage->needed, bytes) <= own;
}

/* Returns what plain frees have left pending in other processes, including those that were asked.
 */
static uint64_t pending_of_frees(struct device *device, const struct reclaim *progress,
                                 const struct board_progress *seen)
{
    struct board_bytes others = ask_board(device, progress);
    return larger_of(others.pending - others.in_order, seen->pending - seen->in_order);
}

/* Whether bytes that plain frees of others have left pending may be enough. Bytes that were waited
 * for without success do not count. */
static bool is_worth_waiting(const struct question *question)
{
    const struct board_progress *seen = &question->seen;
    uint64_t pending = pending_of_frees(question->device, question->progress, seen);
    uint64_t fresh = fresh_bytes(waited_for_others(question->device, question->progress), pending);
    fresh = smaller_of(fresh, seen->pending - seen->in_order);
    return fresh && would_do(question, seen->given + fresh);
}

/* Whether others' stream-ordered frees may be enough, and may have completed without these
 * processes having noticed. */
static bool is_worth_a_look(const struct question *question)
{
    const struct board_progress *seen = &question->seen;
    uint64_t again_at =
        atomic_load_explicit(&question->device->look_again_at, memory_order_relaxed);
    return seen->in_order && would_do(question, seen->given + seen->pending) &&
           question->began >= again_at;
}

static bool goes_on(const struct question *question)
{
    uint64_t now = monotonic_now();
    if (question->seen.given >= question->shortage->enough)
        return false;
    return (now < question->give_up_at && is_worth_waiting(question)) ||
           (now < question->began + TELL_NANOSECONDS && is_worth_a_look(question));
}

/* Notes what was waited for without success, so that the next call does not repeat the wait. */
static void note_what_was_waited_for(const struct question *question)
{
    struct device *device = question->device;
    uint64_t now = monotonic_now();
    if (question->seen.given >= question->shortage->enough)
        return;
    if (now - question->began >= STALLED_WAIT_NANOSECONDS / 2 && now >= question->give_up_at)
        note_waited_bytes(waited_for_others(device, question->progress),
                          pending_of_frees(device, question->progress, &question->seen));
    if (now - question->began >= TELL_NANOSECONDS && question->seen.in_order)
        atomic_store_explicit(&device->look_again_at, now + TELL_AGAIN_NANOSECONDS,
                              memory_order_relaxed);
}

/* Waits until enough bytes were given, or there is nothing more to hope for. */
static void await(struct question *question, struct board_demand *demand)
{
    question->seen = board_demand_look(demand);
    question->began = monotonic_now();
    while (goes_on(question)) {
        seldom_nap(question->began, SHORTEST_NAP);
        question->seen = board_demand_look(demand);
    }
    note_what_was_waited_for(question);
}

static void count(struct device *device, const struct board_progress *seen)
{
    uint64_t total = device->total_bytes;
    if (seen->given)
        neighbours_count_got(device->neighbours, seen->given < total ? seen->given : total,
                             monotonic_now());
    neighbours_count_asked(device->neighbours, seen->silent);
}

/* Asks others, and returns NULL where nobody was asked. shortage: NULL where others are only to
 * publish what they have. *no_place: nobody was asked since other threads of this process use all
 * its demands. */
static struct board_demand *ask(const struct device *device, const struct shortage *shortage,
                                bool of_group, bool *no_place)
{
    return shortage ? board_ask(device->board, device->board_place, device->total_bytes,
                                shortage->bytes, shortage->at_least, of_group, no_place)
                    : board_ask_to_tell(device->board, device->board_place, device->total_bytes,
                                        of_group, no_place);
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

/* Has all others publish what they have now, since they do not publish frees on their fast paths.
 * Returns false where nobody can be asked. */
static bool have_others_tell(const struct device *device, const struct reclaim *progress)
{
    struct board_demand *tell =
        ask_in_turn(device, NULL, progress->bound == RECLAIM_GROUP, end_of_waiting(progress));
    if (!tell)
        return false;
    board_demand_look(tell);
    board_demand_end(tell);
    return true;
}

/* Asks others once, and waits for what they give. Returns false where nobody says that there is
 * anything. */
static bool ask_on(struct pool *pool, struct device *device, struct reclaim *progress,
                   const struct shortage *shortage, bool wait)
{
    uint64_t end = end_of_waiting(progress);
    struct board_demand *demand =
        ask_in_turn(device, shortage, progress->bound == RECLAIM_GROUP, end);
    if (!demand)
        return false;
    /* Without wait, pending bytes still have a short time: they may be just about to be given. */
    struct question question = {
        .pool = pool,
        .device = device,
        .progress = progress,
        .shortage = shortage,
        .give_up_at = wait ? end : monotonic_now() + BOARD_SILENCE_NANOSECONDS,
    };
    await(&question, demand);
    board_demand_end(demand);
    if (progress->bound == RECLAIM_DEVICE && progress->wanted)
        atomic_store_explicit(&device->series_at, monotonic_now(), memory_order_relaxed);
    count(device, &question.seen);
    progress->others.asked_all = question.seen.asked_all;
    progress->others.given |= question.seen.given != 0;
    progress->others.pend |= is_worth_waiting(&question);
    return true;
}

static bool others_say_that_they_have(const struct question *question)
{
    uint64_t bytes = bytes_of_others(question->device, question->progress);
    return bytes > NOTHING_BYTES && would_do(question, bytes);
}

/* Rounds of one request. */
struct rounds_of_asking {
    uint64_t until; /* when to stop asking again */
    bool told;      /* all others were told to publish what they have, as happens once */
};

/* asked: the last round has asked somebody. Before the answer is no, those that were not asked
 * publish what they have. */
static bool is_worth_another_round(const struct question *question, bool asked,
                                   struct rounds_of_asking *rounds)
{
    bool asked_all = asked && question->progress->others.asked_all;
    if (asked && others_say_that_they_have(question) && monotonic_now() < rounds->until)
        return true;
    if (rounds->told || asked_all || !have_others_tell(question->device, question->progress))
        return false;
    *rounds = (struct rounds_of_asking){monotonic_now() + EMPTY_NANOSECONDS, true};
    return !asked || others_say_that_they_have(question);
}

/* Asks until something was given or is pending. Processes that are asked may have used what they
 * published, or be unable to give it. So each round asks for more bytes, and reaches more
 * processes, in the end all. */
static void ask_until_given(struct pool *pool, struct device *device, struct reclaim *progress,
                            struct shortage shortage, bool wait)
{
    const struct reclaim_others *others = &progress->others;
    struct question question = {
        .pool = pool, .device = device, .progress = progress, .shortage = &shortage};
    struct rounds_of_asking rounds = {monotonic_now() + EMPTY_NANOSECONDS, false};
    bool asked;
    do {
        asked = ask_on(pool, device, progress, &shortage, wait);
        if (others->given || others->pend)
            return;
        if (asked)
            shortage.bytes = smaller_of(2 * shortage.bytes, device->total_bytes);
    } while (is_worth_another_round(&question, asked, &rounds));
}

/* Whether more is left than before: bytes given after the last answer, or freed by processes that
 * nobody counts. */
static bool has_more_left(struct pool *pool, const struct device *device,
                          const struct reclaim *progress)
{
    uint64_t left;
    return left_on_device(pool, device, progress, &left) && left > progress->others.left;
}

bool neighbours_may_help(struct pool *pool, const struct device *wanted,
                         const struct reclaim *progress)
{
    const struct device *device = wanted ? wanted : registry_devices(&pool->registry);
    while (device && !device->board)
        device = wanted ? NULL : device->next;
    return device && progress->bound != RECLAIM_LIMIT && monotonic_now() < end_of_waiting(progress);
}

/* Other processes write the time, and their clock may differ. */
static bool one_has_just_ended(const struct device *device)
{
    uint64_t ended = device->board ? board_ended_at(device->board, device->board_place) : 0;
    uint64_t now = monotonic_now();
    return ended && ended <= now && now - ended < ENDED_NANOSECONDS;
}

/* Whether memory of processes that have just ended may become free. */
static bool may_turn_up(const struct pool *pool, const struct device *wanted)
{
    bool ended = false;
    const struct device *device = wanted ? wanted : registry_devices(&pool->registry);
    for (; device && !ended; device = wanted ? NULL : device->next)
        ended = one_has_just_ended(device);
    return ended;
}

/* Asks others on each device. hope: somebody may have something. */
static void ask_each(struct pool *pool, struct device *wanted, struct reclaim *progress,
                     const struct shortage *shortage, bool hope, bool wait)
{
    struct device *device = wanted ? wanted : registry_devices(&pool->registry);
    for (; device && hope; device = wanted ? NULL : device->next)
        if (device->board)
            ask_until_given(pool, device, progress, *shortage, wait);
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
    if (!others->given && may_turn_up(pool, wanted)) {
        nanosleep(&(struct timespec){0, ENDED_NAP}, NULL);
        others->given = true;
    }
    cancellation_restore(cancellation);
    return others->given;
}

void neighbours_note_failure(const struct device *device, const struct reclaim *progress)
{
    uint64_t own = reserved_before(device, progress) +
                   atomic_load_explicit(&device->managed_bytes, memory_order_relaxed);
    uint64_t taken = rest_of(device->total_bytes, progress->others.left);
    if (progress->bound == RECLAIM_DEVICE && progress->others.demand && progress->wanted)
        counter_raise_shared(&device->neighbours->others_held, rest_of(taken, own));
}
