#include "house.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>

#include "core/base/bus_guard.h"
#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/base/numbers.h"
#include "core/board/board.h"
#include "core/contexts/housekeeping.h"
#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/reclaim/reclaim.h"
#include "neighbours.h"

/* The thread ends when this many looks in a row have found nothing free. */
#define EMPTY_LOOKS 2u

/* Looks for idle blocks are at least 1 / LOOKS_PER_SPAN of the idle span apart, and at least
 * SHORTEST_SLEEP: nanoseconds. */
#define LOOKS_PER_SPAN 16u
#define SHORTEST_SLEEP (UINT64_C(10) * 1000 * 1000)

/* The thread's own state. Times are nanoseconds of the monotonic clock. */
struct house {
    struct pool *pool;
    uint64_t next_look;     /* for idle blocks */
    uint64_t next_shortage; /* for a shortage of host memory, which cannot wait for next_look */
    uint64_t next_answer;   /* to processes that wait for pending memory; UINT64_MAX: none does */
    uint64_t awaited_since; /* with next_answer: since when a process waits */
    uint64_t next_watermark;
    unsigned empty; /* looks in a row that found nothing free */
};

/* ---- the thread ---- */

static void present_thread(void)
{
    prctl(PR_SET_NAME, "cudapool");
    /* The thread that makes this one may have a real-time priority, which this one must not have.
     */
    int policy = sched_getscheduler(0);
    if (policy == SCHED_FIFO || policy == SCHED_RR)
        sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &(int){0});
}

void house_count_state(const struct pool *pool, enum housekeeper_state state)
{
    if (pool->housekeeper_counters)
        counter_set(&pool->housekeeper_counters->state, state);
}

static void sleep_until(struct pool *pool, uint64_t until)
{
    struct board *board = atomic_load_explicit(&pool->board, memory_order_acquire);
    if (board)
        board_sleep(board, until);
    else
        futex_sleep(until);
    if (pool->housekeeper_counters)
        counter_add(&pool->housekeeper_counters->wakeups, 1);
}

/* ---- idle blocks ---- */

static uint64_t shortest_span(const struct pool *pool)
{
    uint64_t shortest = UINT64_MAX;
    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        uint64_t span =
            settings_of_kind(&pool->settings, (enum memory_kind)kind).release_after_idle_ns;
        if (span)
            shortest = smaller_of(shortest, span);
    }
    return shortest;
}

/* Releases idle blocks. Returns when the next block is due, as the kinds say. */
static uint64_t release_idle(struct pool *pool, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next)
        for (const struct kind *const *kind = pool->kinds; *kind; kind++)
            if ((*kind)->release_idle && !housekeeping_is_stopped(&pool->housekeeping))
                due = smaller_of(due, (*kind)->release_idle(pool, device, now));
    return due;
}

/* Releases idle blocks, and plans the next look for when a block is due, but after
 * HOUSEKEEPING_INTERVAL at most: no other look notices what threads use. */
static void look_for_idle(struct house *house, uint64_t now)
{
    uint64_t due = release_idle(house->pool, now);
    if (due == RELEASE_MORE_AT_ONCE) {
        house->next_look = now;
        return;
    }
    uint64_t apart = larger_of(shortest_span(house->pool) / LOOKS_PER_SPAN, SHORTEST_SLEEP);
    uint64_t soonest = now + smaller_of(apart, HOUSEKEEPING_INTERVAL);
    house->next_look = larger_of(soonest, smaller_of(due, now + HOUSEKEEPING_INTERVAL));
}

/* ---- the machine's memory ---- */

/* Looks for a shortage of host memory, once in the interval or as soon as kinds say. */
static void look_for_shortage(struct house *house, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (const struct kind *const *kind = house->pool->kinds; *kind; kind++)
        if ((*kind)->leave_to_machine && !housekeeping_is_stopped(&house->pool->housekeeping))
            next = smaller_of(next, (*kind)->leave_to_machine(house->pool, now));
    house->next_shortage = smaller_of(next, now + HOUSEKEEPING_INTERVAL);
}

/* ---- the end ---- */

/* Whether anything is free. Bytes that are on the way to other processes count until these were
 * told. */
static bool is_anything_free(struct pool *pool)
{
    struct kept_bytes kept = kept_bytes(pool, NULL), of_machine = kept_bytes_of_machine(pool);
    uint64_t on_the_way = of_machine.cached + of_machine.pending;
    struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next)
        on_the_way += atomic_load_explicit(&device->on_the_way, memory_order_relaxed);
    return kept.cached || kept.pending || on_the_way;
}

/* Whether the thread may end. housekeeping.h says why it misses no free. */
static bool may_end(struct house *house)
{
    struct pool *pool = house->pool;
    uint32_t watched = HOUSEKEEPING_WATCHED;
    bool any = false;
    house->empty = is_anything_free(pool) ? 0 : house->empty + 1;
    if (house->empty < EMPTY_LOOKS)
        return false;
    neighbours_listen(pool, BOARD_LEAVES);
    house_count_state(pool, HOUSEKEEPER_WENT);
    atomic_store(&pool->housekeeping.phase, HOUSEKEEPING_WATCHED);
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        any |= (*kind)->watch && (*kind)->watch(pool);
    /* If the phase has changed, a free came first and has made another thread. */
    if (!any) {
        neighbours_listen(pool, BOARD_DEAF);
        return true;
    }
    if (!atomic_compare_exchange_strong(&pool->housekeeping.phase, &watched, HOUSEKEEPING_MADE))
        return true;
    house_count_state(pool, HOUSEKEEPER_RUNS);
    neighbours_listen(pool, BOARD_LISTENS);
    house->empty = 0;
    return false;
}

/* ---- neighbours ---- */

/* The shortest sleep while another process waits for pending memory: nanoseconds. */
#define SHORTEST_NAP (UINT64_C(100) * 1000)

static void answer_neighbours(struct house *house)
{
    bool awaited = house->next_answer != UINT64_MAX;
    bool more = neighbours_answer(house->pool);
    uint64_t now = monotonic_now();
    if (!awaited)
        house->awaited_since = now;
    uint64_t nap = nap_after(now - house->awaited_since, SHORTEST_NAP);
    house->next_answer = more ? now + nap : UINT64_MAX;
}

/* ---- all of it ---- */

/* Does what is due about once a second. Returns false where the thread is to end, since nothing is
 * free any more. */
static bool look_around(struct house *house, uint64_t now)
{
    struct pool *pool = house->pool;
    look_for_idle(house, now);
    if (now >= house->next_watermark) {
        house->next_watermark = now + HOUSEKEEPING_INTERVAL;
        neighbours_leave_free(pool, now);
    }
    neighbours_publish(pool);
    return !may_end(house);
}

void *house_keep(void *argument)
{
    struct house house = {.pool = argument, .next_answer = UINT64_MAX};
    struct pool *pool = house.pool;
    uint64_t now = monotonic_now();
    present_thread();
    /* For the thread's whole life: another thread may begin a capture before the pool knows of it.
     */
    relaxed_mode_begin(pool->driver);
    atomic_store_explicit(&pool->housekeeping.began_at, now, memory_order_relaxed);
    while (!housekeeping_is_stopped(&pool->housekeeping)) {
        answer_neighbours(&house);
        if (now >= house.next_shortage)
            look_for_shortage(&house, now);
        if (now >= house.next_look && !look_around(&house, now))
            break;
        uint64_t next = smaller_of(house.next_look, house.next_shortage);
        if (next > now)
            sleep_until(pool, smaller_of(next, house.next_answer));
        bus_guard_thread();
        now = monotonic_now();
    }
    return NULL;
}
