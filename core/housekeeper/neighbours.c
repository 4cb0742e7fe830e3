#include "neighbours.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/board/board.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "core/figures/stats.h"
#include "core/reclaim/kept.h"
#include "core/reclaim/managed.h"
#include "core/reclaim/reclaim.h"

/* ---- what is here ---- */

static uint64_t on_the_way(const struct device *device)
{
    return atomic_load_explicit(&device->on_the_way, memory_order_relaxed);
}

/* Also counts, as pending, the bytes that threads are releasing: they are in no heap, and not with
 * the driver yet. */
static struct kept_bytes kept_or_returning(struct pool *pool, struct device *device)
{
    struct kept_bytes kept = kept_bytes(pool, device);
    /* Pairs with the release fence in returning_begin. */
    counter_fence(memory_order_acquire);
    kept.pending += atomic_load_explicit(&device->returning, memory_order_relaxed);
    return kept;
}

/* Publishes what the device's memory has cached and pending. Frees on the fast path are not
 * published before the next look. So a process with a thread that could answer never publishes that
 * it has nothing: others then ask, and learn what there is. */
static struct kept_bytes publish(struct pool *pool, struct device *device)
{
    struct kept_bytes kept = kept_or_returning(pool, device);
    kept.pending +=
        on_the_way(device) + atomic_load_explicit(&device->promised, memory_order_relaxed);
    bool nothing = kept.cached == 0 && kept.pending == 0;
    board_publish_in_order(device->board, device->board_place, kept.in_order);
    board_publish(device->board, device->board_place, nothing ? BOARD_NEARLY_NOTHING : kept.cached,
                  kept.pending);
    return kept;
}

void neighbours_publish(struct pool *pool)
{
    struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next)
        if (device->board)
            publish(pool, device);
}

void neighbours_listen(struct pool *pool, enum board_listens listens)
{
    struct board *board = atomic_load_explicit(&pool->board, memory_order_acquire);
    if (board)
        board_publish_listening(board, listens);
}

/* ---- what others want ---- */

/* Fences pending memory that has no fence. Otherwise it would be pending until the program's next
 * free. */
static void fence_what_is_pending(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        epoch_fence_the_rest(pool, c);
    TELL_KINDS(pool, fence_the_rest, pool, device);
}

/* Whether all releases have reached the driver. Barriers of a context also delay its return
 * streams. */
static bool returns_are_over(struct pool *pool, struct device *device)
{
    bool over = true;
    struct context *c = context_next(pool, NULL, device);
    for (; c && over; c = context_next(pool, c, device))
        over = return_is_over(pool, c);
    return over;
}

/* Reports bytes on the way as given once all of them have reached the driver. */
static void tell_what_is_given(struct pool *pool, struct device *device)
{
    uint64_t given = on_the_way(device);
    if (given == 0 || !returns_are_over(pool, device))
        return;
    atomic_store_explicit(&device->on_the_way, 0, memory_order_relaxed);
    neighbours_count_given(device->neighbours, given, monotonic_now());
    board_give(device->board, device->board_place, given);
}

/* The most that one answer releases, in bytes. The driver needs some milliseconds for it. A process
 * that asks for more than it lacks now (core/reclaim/neighbours.c) goes on with this part, and may
 * have enough before all is given. */
#define GIVEN_AT_A_TIME (UINT64_C(16) << 30)

static uint64_t give_portion(struct pool *pool, struct device *device, uint64_t portion)
{
    uint64_t sent = portion ? kinds_make_room(pool, device, portion) : 0;
    if (sent < portion && kept_bytes(pool, device).pending) {
        fence_what_is_pending(pool, device);
        sent += kinds_make_room(pool, device, portion - sent);
    }
    return sent;
}

/* Answers the demands on one device. Returns true where more may be given soon. */
static bool answer(struct pool *pool, struct device *device)
{
    struct board_wish wish = board_take(device->board, device->board_place);
    uint64_t wanted = rest_of(wish.bytes, on_the_way(device));
    uint64_t portion = smaller_of(wanted, GIVEN_AT_A_TIME);
    uint64_t sent = give_portion(pool, device, portion), rest = rest_of(wanted, sent);
    struct kept_bytes kept = kept_or_returning(pool, device);
    uint64_t promise = sent < portion ? 0 : smaller_of(rest, kept.cached);
    atomic_fetch_add_explicit(&device->on_the_way, sent, memory_order_relaxed);
    uint64_t promised = atomic_exchange_explicit(&device->promised, promise, memory_order_relaxed);
    /* board_give before publish: a process that waits gives up if nothing is pending and too little
     * was given. */
    tell_what_is_given(pool, device);
    /* Publishing also removes bytes that were promised while another device's were given. They
     * would still count as pending. */
    if (wish.bytes || promised || wish.tell)
        publish(pool, device);
    return (rest && (promise || kept.pending)) || on_the_way(device);
}

/* Takes over limits that a tool has lowered, and gives back what is cached beyond them. A hit takes
 * nothing from the device, so it asks for no limit. */
static void keep_inside_limits(struct pool *pool, struct device *device)
{
    device_follow_limits(pool, device);
    uint64_t limit = device_limit(device, BOARD_LIMIT_OF_GROUP), over_group = 0;
    if (limit != UINT64_MAX)
        over_group = rest_of(board_group_held(device->board, device->board_place), limit);
    uint64_t over = larger_of(
        rest_of(device_reserved(device), device_limit(device, BOARD_LIMIT_OF_PROCESS)), over_group);
    uint64_t returning = atomic_load_explicit(&device->returning, memory_order_relaxed);
    if (over > returning)
        kinds_make_room(pool, device, over - returning);
}

/* Above this many bytes, the first answer only says that they are on the way, like pending ones. On
 * a nearly full device the driver may take 1.5 ms for each block. A process that gets no answer in
 * BOARD_SILENCE_NANOSECONDS would take this one for a stopped one. */
#define GIVEN_AT_ONCE (UINT64_C(64) << 20)

static bool takes_long(struct pool *pool, struct device *device)
{
    uint64_t wanted = board_take(device->board, device->board_place).bytes;
    return wanted > GIVEN_AT_ONCE && kept_bytes(pool, device).cached > GIVEN_AT_ONCE;
}

/* Publishes cached bytes of all devices as promised, since processes that asked for another
 * device's memory wait meanwhile too. */
static void promise(struct pool *pool)
{
    struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next) {
        if (!device->board)
            continue;
        atomic_store_explicit(&device->promised, kept_bytes(pool, device).cached,
                              memory_order_relaxed);
        publish(pool, device);
    }
}

bool neighbours_answer(struct pool *pool)
{
    struct board *board = atomic_load_explicit(&pool->board, memory_order_acquire);
    struct device *device = registry_devices(&pool->registry);
    bool more = false, long_one = false;
    if (!board)
        return false;
    for (; device; device = device->next)
        long_one |= device->board && takes_long(pool, device);
    if (long_one) {
        promise(pool);
        board_answered(board);
    }
    for (device = registry_devices(&pool->registry); device; device = device->next)
        if (device->board) {
            more |= answer(pool, device);
            keep_inside_limits(pool, device);
        }
    board_answered(board);
    return more;
}

/* ---- what others cannot ask for ---- */

/* With fewer cached bytes the driver is not asked what is free. Growth of what others hold by more
 * than min(WATERMARK_BYTES, leave_free / 4) is a sign of other processes. */
#define WATERMARK_BYTES (UINT64_C(64) << 20)

/* What others have held throughout this time counts as what the driver itself needs: nanoseconds.
 */
#define WATERMARK_SPAN (UINT64_C(60) * 1000 * 1000 * 1000)

/* Asks the driver how much of the device is free. Returns false where it cannot be asked. */
static bool ask_what_is_free(struct pool *pool, struct device *device, size_t *left, size_t *total)
{
    struct context *context = context_next(pool, NULL, device);
    bool pushed, known = false;
    if (!context || !context_pin(context, context_generation(context)))
        return false;
    if (context_push(pool, context, &pushed)) {
        known = driver_memory_info(pool->driver, left, total) == CUDA_SUCCESS;
        context_pop(pool, pushed);
    }
    context_unpin(context);
    return known;
}

/* Whether others hold more now than at some time lately. Memory that this process has taken without
 * the pool counts as others'. Exceptions are what the pool knows of: unpooled memory that is
 * counted, managed memory, the rest of pages, and what the driver's own pools have taken. */
static bool others_have_grown(struct watermark *mark, uint64_t others, uint64_t wanted,
                              uint64_t now)
{
    if (!mark->span_began || now - mark->span_began > WATERMARK_SPAN) {
        mark->least_before = mark->span_began ? mark->least : others;
        mark->least = others;
        mark->span_began = now;
    }
    if (others < mark->least)
        mark->least = others;
    uint64_t least = mark->least < mark->least_before ? mark->least : mark->least_before;
    return others - least > (wanted / 4 < WATERMARK_BYTES ? wanted / 4 : WATERMARK_BYTES);
}

static void leave_free_on(struct pool *pool, struct device *device, uint64_t wanted, uint64_t now)
{
    size_t left, total;
    uint64_t before = device_resident(device);
    /* The first call asks in any case, so that it is known what others had when this process had
     * nothing to give. */
    bool is_known = device->watermark.span_began != 0;
    if ((is_known && kept_bytes(pool, device).cached < WATERMARK_BYTES) ||
        !ask_what_is_free(pool, device, &left, &total))
        return;
    /* Bytes that are taken or released between the two reads do not count as others'. */
    uint64_t after = device_resident(device), own = before > after ? before : after;
    own += managed_bytes(device) + bytes_around_blocks(pool, device);
    uint64_t others = rest_of(total - left, own);
    bool grown = others_have_grown(&device->watermark, others, wanted, now);
    if (!grown || left >= wanted)
        return;
    uint64_t given = kinds_make_room(pool, device, wanted - left);
    if (given)
        neighbours_count_left(device->neighbours, given, monotonic_now());
}

void neighbours_leave_free(struct pool *pool, uint64_t now)
{
    struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next) {
        uint64_t wanted =
            byte_size_resolve(&pool->settings.neighbours.leave_free, device->total_bytes);
        if (wanted && !housekeeping_is_stopped(&pool->housekeeping))
            leave_free_on(pool, device, wanted, now);
    }
}
