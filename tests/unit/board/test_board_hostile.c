/*
 * The board among processes of the same user that write anything into it (core/board/board.h).
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board_fixture.h"
#include "core/base/clock.h"
#include "core/base/futex.h"

TestSuite(board_hostile, .init = board_base_make, .fini = board_base_remove, .timeout = 60);

#define MILLISECOND UINT64_C(1000000)
#define BUSY        (2000 * MILLISECOND)
#define LASTS       (1500 * MILLISECOND)

static struct board *board;
static int device;

static void join(void)
{
    board = board_join_here("g");
    device = board_device(board, board_uuid);
    board->silence = BOARD_SILENCE_NANOSECONDS;
}

static uint64_t anything(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    switch (state >> 60) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX;
    case 2:
        return state & 31;
    default:
        return state;
    }
}

static void fill_with_anything(uint64_t *words, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = anything();
}

/* Some of it so that it is looked at: a listening process of the group with the device, and
 * demands. */
static void make_likely(struct board_slot *slot)
{
    slot->token = anything() | 1;
    slot->listens = 1;
    slot->visits = 0;
    if (anything() & 1)
        slot->device_count = (uint32_t)anything();
    memcpy((void *)slot->group, (uint64_t[8]){'g'}, sizeof slot->group);
    for (unsigned i = 0; i < BOARD_DEVICES; i++)
        if (anything() & 1)
            memcpy((void *)slot->devices[i].uuid, board_uuid, sizeof slot->devices[i].uuid);
    for (unsigned i = 0; i < BOARD_ENTRIES; i++) {
        struct board_entry *entry = &slot->entries[i];
        entry->open = (uint32_t)anything() & 1;
        entry->kind = (uint32_t)anything() & 3;
        memcpy((void *)entry->uuid, board_uuid, sizeof entry->uuid);
        if (anything() & 1)
            entry->slot = BOARD_EVERYBODY;
    }
}

static void lie(struct peer *parent)
{
    join();
    struct board_slot *own = &board->map->slots[board->slot];
    peer_say(parent, board->slot);
    for (;;) {
        fill_with_anything((uint64_t *)own, sizeof *own);
        make_likely(own);
        usleep((useconds_t)(anything() & 127));
    }
}

/* Everything that a process does, each of it in bounded time. */
static void use_board(struct board_bytes most)
{
    uint64_t began = monotonic_now();
    struct board_bytes others = board_others(board, device, DEVICE_TOTAL, false);
    cr_assert(others.cached <= most.cached && others.pending <= most.pending);
    struct board_demand *demand =
        board_ask(board, device, DEVICE_TOTAL, 100 * MiB, 0, anything() & 1, NULL);
    if (demand) {
        struct board_progress progress = board_demand_look(demand);
        cr_assert_leq(progress.asked, BOARD_ENTRIES);
        cr_assert_leq(progress.silent, progress.asked);
        cr_assert_leq(progress.pending, most.pending);
        board_demand_end(demand);
    }
    struct board_wish wish = board_take(board, device);
    board_give(board, device, wish.bytes < MiB ? wish.bytes : MiB);
    board_publish(board, device, anything() & (MiB - 1), anything() & (MiB - 1));
    board_answered(board);
    board_sleep(board, monotonic_now() + MILLISECOND);
    if (board_group_take(board, device, 1, 1000))
        board_group_give(board, device, 1);
    board_group_held(board, device);
    cr_assert_lt(monotonic_now() - began, 3 * BOARD_SILENCE_NANOSECONDS + BUSY);
}

static void look_at_all(void)
{
    struct board_process process;
    for (unsigned slot = 0; board_next_process(board, &slot, &process);) {
        cr_assert_leq(process.device_count, BOARD_DEVICES);
        cr_assert_lt(strnlen(process.group, BOARD_GROUP_BYTES), BOARD_GROUP_BYTES);
        for (const char *c = process.group; *c; c++)
            cr_assert(*c > ' ' && *c <= '~');
    }
}

static void expect_others_to_do_their_work(unsigned liars)
{
    struct board_bytes most = {.cached = (liars + 1) * DEVICE_TOTAL,
                               .pending = (liars + 1) * DEVICE_TOTAL};
    for (uint64_t began = monotonic_now(); monotonic_now() - began < LASTS;) {
        use_board(most);
        look_at_all();
    }
    cr_expect(is_joined(board));
}

Test(board_hostile, lies_in_their_own_slots_are_survived)
{
    struct peer liars[2] = {peer_start(lie), peer_start(lie)};
    struct peer giver = peer_start_giver(50 * MiB, 0, NULL);
    peer_hear(&liars[0]);
    peer_hear(&liars[1]);
    join();
    board_publish_listening(board, BOARD_LISTENS);
    expect_others_to_do_their_work(2);
    for (int i = 0; i < 2; i++)
        peer_end(&liars[i]);
    cr_expect_eq(waitpid(giver.pid, NULL, WNOHANG), 0, "the other one lives");
    peer_end(&giver);
    /* What they have said is no longer there. */
    look_again_who_lives(board);
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).cached, 0);
    cr_expect(board_group_take(board, device, 1000, 1000));
}

/* The next of which stands on a slot that is nobody's. */
static void have_many_devices(struct peer *parent)
{
    join();
    struct board_slot *slot = &board->map->slots[board->slot];
    slot[1].devices[0].uuid[0] = slot->devices[device].uuid[0];
    slot[1].devices[0].uuid[1] = slot->devices[device].uuid[1];
    slot[1].devices[0].cached = MiB;
    slot->devices[device].uuid[0] = 0;
    slot->device_count = UINT32_MAX;
    board_publish_listening(board, BOARD_LISTENS);
    peer_say(parent, 0);
    peer_hear(parent);
}

static void look_at_devices(struct peer *parent)
{
    join();
    peer_say(parent, 0);
    peer_hear(parent);
    if (board_others(board, device, DEVICE_TOTAL, false).cached != 0)
        _exit(1);
    board_group_take(board, device, 1, 1);
    look_at_all();
}

Test(board_hostile, no_number_of_devices_is_trusted)
{
    int status;
    struct peer peer = peer_start(look_at_devices);
    peer_hear(&peer);
    struct peer liar = peer_start(have_many_devices);
    peer_hear(&liar);
    peer_say(&peer, 0);
    cr_assert_eq(waitpid(peer.pid, &status, 0), peer.pid);
    cr_expect_eq(status, 0);
    peer_end(&liar);
}

/* Of one that says anything, but what it says of its memory is no more than is possible. */
Test(board_hostile, no_more_than_the_device_is_believed_of_one)
{
    struct peer liar = peer_start(lie);
    peer_hear(&liar);
    join();
    for (int i = 0; i < 20000; i++) {
        struct board_bytes others = board_others(board, device, DEVICE_TOTAL, false);
        cr_assert_leq(others.cached + others.pending, DEVICE_TOTAL);
    }
    peer_end(&liar);
}

static void scribble(struct peer *parent)
{
    join();
    uint64_t *words = (uint64_t *)board->map;
    peer_say(parent, board->slot);
    for (;;) {
        for (int i = 0; i < 100; i++)
            words[anything() % (8 * sizeof(struct board_slot) / sizeof *words)] = anything();
        usleep((useconds_t)(anything() & 127));
    }
}

/* Where they write into everything, nothing is right, but nothing crashes, or waits for long. */
Test(board_hostile, lies_everywhere_are_survived)
{
    struct peer liar = peer_start(scribble);
    struct peer giver = peer_start_giver(50 * MiB, 0, NULL);
    peer_hear(&liar);
    struct board_bytes most = {.cached = UINT64_MAX, .pending = UINT64_MAX};
    for (int i = 0; i < 10; i++) {
        join();
        board_publish_listening(board, BOARD_LISTENS);
        for (uint64_t began = monotonic_now(); monotonic_now() - began < LASTS / 10;) {
            use_board(most);
            look_at_all();
        }
        board_leave(board);
        board_discard(board);
    }
    cr_expect_eq(waitpid(giver.pid, NULL, WNOHANG), 0, "the other one lives");
    peer_end(&liar);
    peer_end(&giver);
}

static void cut(struct peer *parent)
{
    peer_say(parent, 0);
    for (;;) {
        if (truncate(board_path(), (off_t)(anything() % (2 * sizeof(struct board_map)))) != 0)
            usleep(1000);
        usleep((useconds_t)(anything() & 1023));
    }
}

Test(board_hostile, truncating_again_and_again_is_survived)
{
    struct peer cutter;
    join();
    cutter = peer_start(cut);
    peer_hear(&cutter);
    struct board_bytes most = {.cached = UINT64_MAX, .pending = UINT64_MAX};
    for (int i = 0; i < 20; i++) {
        const char *why;
        use_board(most);
        look_at_all();
        struct board *next = board_join_below(board_base, "g", &why);
        if (next) {
            board_discard(board);
            board = next;
            device = board_device(board, board_uuid);
        }
    }
    peer_end(&cutter);
}

/* Those who ask for too much, and never stop, are given what there is, once. */
static void ask_for_all(struct peer *parent)
{
    join();
    for (unsigned i = 0; i < BOARD_ENTRIES; i++) {
        struct board_entry *entry = &board->map->slots[board->slot].entries[i];
        memcpy((void *)entry->uuid, board_uuid, sizeof entry->uuid);
        entry->slot = BOARD_EVERYBODY;
        entry->kind = BOARD_RECLAIM;
        entry->bytes = UINT64_MAX - i;
        entry->open = 1;
    }
    peer_say(parent, 0);
    peer_hear(parent);
}

Test(board_hostile, demands_are_added_up_without_overflow)
{
    struct peer peer = peer_start(ask_for_all);
    peer_hear(&peer);
    join();
    board_publish_listening(board, BOARD_LISTENS);
    cr_expect_eq(board_take(board, device).bytes, UINT64_MAX);
    board_give(board, device, UINT64_MAX);
    board_give(board, device, UINT64_MAX);
    board_answered(board);
    peer_end(&peer);
}
