/*
 * Asking others on the board for memory, and giving it (core/board/board.h).
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board_fixture.h"
#include "core/base/clock.h"
#include "core/base/futex.h"

TestSuite(board_demand, .init = board_base_make, .fini = board_base_remove);

#define MILLISECOND UINT64_C(1000000)

/* A busy machine may let a process wait for so long. */
#define BUSY (2000 * MILLISECOND)

static struct board *board;
static int device;

static void join(void)
{
    board = board_join_here(NULL);
    device = board_device(board, board_uuid);
}

/* Caches 3 MiB, and answers. */
static void join_with_memory(void)
{
    join();
    board_publish(board, device, 3 * MiB, 0);
    board_publish_listening(board, BOARD_LISTENS);
}

/* Asks, waits for the answers, and ends the demand. */
static struct board_progress ask(uint64_t bytes)
{
    struct board_progress nothing = {0};
    struct board_demand *demand = board_ask(board, device, DEVICE_TOTAL, bytes, 0, false, NULL);
    if (!demand)
        return nothing;
    struct board_progress progress = board_demand_look(demand);
    board_demand_end(demand);
    return progress;
}

static uint64_t cached_in(unsigned slot)
{
    return board->map->slots[slot].devices[0].cached;
}

Test(board_demand, is_met)
{
    struct peer peer = peer_start_giver(3 * MiB, 2 * MiB, NULL);
    join();
    struct board_demand *demand = board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL);
    cr_assert(demand);
    struct board_progress progress = board_demand_look(demand);
    cr_expect_eq(progress.asked, 1);
    cr_expect_eq(progress.silent, 0);
    cr_expect_eq(progress.given, MiB);
    cr_expect_eq(progress.pending, 2 * MiB);
    board_demand_end(demand);
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).cached, 2 * MiB);
    cr_expect_eq(ask(9 * MiB).given, 2 * MiB, "all that there is");
    peer_end(&peer);
}

Test(board_demand, goes_to_those_that_cache_most)
{
    unsigned few, most, some;
    struct peer peers[3] = {peer_start_giver(MiB, 9 * MiB, &few),
                            peer_start_giver(4 * MiB, 0, &most),
                            peer_start_giver(2 * MiB, 0, &some)};
    join();
    cr_expect_eq(ask(3 * MiB).asked, 1);
    cr_expect_eq(cached_in(most), MiB);
    cr_expect_eq(ask(3 * MiB).asked, 2, "of 2 + 1 + 1");
    cr_expect_eq(cached_in(few) + cached_in(most) + cached_in(some), MiB);
    struct board_progress progress = ask(3 * MiB);
    cr_expect_eq(progress.given, MiB);
    cr_expect_eq(progress.pending, 9 * MiB, "what is pending when nothing else is there");
    for (int i = 0; i < 3; i++)
        peer_end(&peers[i]);
}

Test(board_demand, for_more_than_all_have_asks_nobody)
{
    unsigned slot;
    struct peer peer = peer_start_giver(3 * MiB, 2 * MiB, &slot);
    join();
    bool no_place = true;
    cr_expect_not(board_ask(board, device, DEVICE_TOTAL, 6 * MiB, 6 * MiB, false, &no_place));
    cr_expect_not(no_place);
    cr_expect_eq(cached_in(slot), 3 * MiB);
    struct board_demand *demand =
        board_ask(board, device, DEVICE_TOTAL, 5 * MiB, 5 * MiB, false, NULL);
    cr_expect(demand);
    peer_end(&peer);
}

/* The peer's fast path has freed something since it last published. */
Test(board_demand, who_is_asked_to_tell_publishes_and_gives_nothing)
{
    unsigned slot;
    struct peer peers[] = {peer_start_giver(3 * MiB, 2 * MiB, &slot),
                           peer_start_giver(4 * MiB, 0, NULL)};
    join();
    atomic_store(&board->map->slots[slot].devices[0].cached, 0);
    bool no_place = true;
    struct board_demand *demand = board_ask_to_tell(board, device, DEVICE_TOTAL, false, &no_place);
    cr_assert(demand);
    cr_expect_not(no_place);
    struct board_progress progress = board_demand_look(demand);
    board_demand_end(demand);
    cr_expect_eq(progress.asked, 2);
    cr_expect_eq(progress.given, 0);
    cr_expect_eq(cached_in(slot), 3 * MiB);
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).cached, 7 * MiB);
    for (int i = 0; i < 2; i++)
        peer_end(&peers[i]);
}

Test(board_demand, nobody_is_asked_to_tell_where_there_is_nobody)
{
    join();
    bool no_place = true;
    cr_expect_not(board_ask_to_tell(board, device, DEVICE_TOTAL, false, &no_place));
    cr_expect_not(no_place);
    cr_expect_not(board_ask_to_tell(NULL, device, DEVICE_TOTAL, false, &no_place));
}

Test(board_demand, of_which_there_are_many)
{
    struct peer peer = peer_start_giver(100 * MiB, 0, NULL);
    struct board_demand *demands[BOARD_DEMANDS];
    join();
    for (unsigned i = 0; i < BOARD_DEMANDS; i++)
        cr_assert(demands[i] = board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL));
    bool no_place = false;
    cr_expect_not(board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, &no_place));
    cr_expect(no_place);
    for (unsigned i = 0; i < BOARD_DEMANDS; i++) {
        cr_expect_geq(board_demand_look(demands[i]).given, MiB);
        board_demand_end(demands[i]);
    }
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).cached,
                 (100 - BOARD_DEMANDS) * MiB, "each was given what it asked for, and no more");
    cr_expect_eq(ask(MiB).given, MiB, "and another can be made");
    peer_end(&peer);
}

/* ---- those that do not answer ---- */

Test(board_demand, waits_for_a_stopped_one_once_and_not_for_long)
{
    struct peer peer = peer_start_giver(3 * MiB, 0, NULL);
    join();
    cr_assert_eq(BOARD_SILENCE_NANOSECONDS, 100 * MILLISECOND);
    board->silence = BOARD_SILENCE_NANOSECONDS;
    kill(peer.pid, SIGSTOP);
    waitpid(peer.pid, NULL, WUNTRACED);
    uint64_t began = monotonic_now();
    struct board_demand *demand = board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL);
    cr_assert(demand);
    struct board_progress progress = board_demand_look(demand);
    uint64_t took = monotonic_now() - began;
    cr_expect_eq(progress.silent, 1);
    cr_expect_eq(progress.given, 0);
    cr_expect(took >= BOARD_SILENCE_NANOSECONDS && took < BOARD_SILENCE_NANOSECONDS + BUSY, "%u ms",
              (unsigned)(took / MILLISECOND));
    began = monotonic_now();
    cr_expect_eq(board_demand_look(demand).silent, 1);
    cr_expect_not(board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL), "it was silent");
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).cached, 0, "nor does it count");
    cr_expect_lt(monotonic_now() - began, BUSY);
    kill(peer.pid, SIGCONT);
    while (board_demand_look(demand).given < MiB && monotonic_now() - began < 5000 * MILLISECOND)
        usleep(1000);
    progress = board_demand_look(demand);
    cr_expect_eq(progress.given, MiB, "it answers late");
    cr_expect_eq(progress.silent, 0);
    board_demand_end(demand);
    board->silence = BOARD_PATIENCE;
    cr_expect_eq(ask(MiB).given, MiB, "it is asked again as soon as it has answered");
    peer_end(&peer);
}

/* Sees the demand, and is kept from its processor for so many times the silence. */
static void gives_late(struct peer *parent)
{
    enum { TIMES = 4 };
    join();
    board_publish_listening(board, BOARD_LISTENS);
    board_publish(board, device, 3 * MiB, 0);
    peer_say(parent, board->slot);
    for (;;) {
        board_sleep(board, UINT64_MAX);
        struct board_wish wish = board_take(board, device);
        usleep((useconds_t)(TIMES * BOARD_SILENCE_NANOSECONDS / 1000));
        board_give(board, device, wish.bytes);
        board_answered(board);
    }
}

Test(board_demand, waits_longer_for_a_slow_one_that_is_not_stopped)
{
    struct peer slow = peer_start(gives_late);
    peer_hear(&slow);
    struct peer stopped = peer_start_giver(2 * MiB, 0, NULL);
    kill(stopped.pid, SIGSTOP);
    waitpid(stopped.pid, NULL, WUNTRACED);
    join();
    board->silence = BOARD_SILENCE_NANOSECONDS;
    struct board_progress progress = ask(5 * MiB);
    cr_expect_eq(progress.given, 3 * MiB);
    cr_expect_eq(progress.silent, 1, "the stopped one");
    peer_end(&slow);
    peer_end(&stopped);
}

Test(board_demand, waits_for_several_stopped_ones_together)
{
    enum { PEERS = 24 };
    struct peer peers[PEERS];
    for (int i = 0; i < PEERS; i++) {
        peers[i] = peer_start_giver(MiB, 0, NULL);
        if (i != 2) {
            kill(peers[i].pid, SIGSTOP);
            waitpid(peers[i].pid, NULL, WUNTRACED);
        }
    }
    join();
    board->silence = BOARD_SILENCE_NANOSECONDS;
    uint64_t began = monotonic_now();
    struct board_progress progress = ask(PEERS * MiB);
    uint64_t took = monotonic_now() - began;
    cr_expect_eq(progress.asked, PEERS);
    cr_expect_geq(progress.silent, PEERS - 1);
    cr_expect_lt(took, BOARD_SILENCE_NANOSECONDS + BUSY);
    for (int i = 0; i < PEERS; i++)
        peer_end(&peers[i]);
}

Test(board_demand, does_not_ask_the_dead)
{
    unsigned slot;
    struct peer peer = peer_start_giver(3 * MiB, 0, &slot);
    join();
    peer_end(&peer);
    uint64_t began = monotonic_now();
    cr_expect_not(board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL));
    cr_expect_lt(monotonic_now() - began, BUSY);
    cr_expect_eq(board->map->slots[slot].token, 0, "and clears what they have left");
}

Test(board_demand, is_over_when_the_asked_one_dies)
{
    struct peer peer = peer_start_giver(3 * MiB, 0, NULL);
    join();
    board->silence =
        2 * BOARD_SILENCE_NANOSECONDS; /* a slow one is waited for twice as long as BUSY */
    kill(peer.pid, SIGSTOP);
    waitpid(peer.pid, NULL, WUNTRACED);
    struct board_demand *demand = board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL);
    cr_assert(demand);
    peer_end(&peer);
    uint64_t began = monotonic_now();
    struct board_progress progress = board_demand_look(demand);
    cr_expect_lt(monotonic_now() - began, BUSY);
    cr_expect_eq(progress.silent, 0);
    cr_expect_eq(progress.pending, 0);
    board_demand_end(demand);
}

static void leave_when_asked(struct peer *parent)
{
    struct board *own = board_join_here(NULL);
    board_publish(own, board_device(own, board_uuid), MiB, 0);
    board_publish_listening(own, BOARD_LISTENS);
    peer_say(parent, own->slot);
    board_sleep(own, UINT64_MAX);
    board_leave(own);
    peer_hear(parent);
}

Test(board_demand, is_over_when_the_asked_one_leaves)
{
    struct peer peer = peer_start(leave_when_asked);
    peer_hear(&peer);
    join();
    uint64_t began = monotonic_now();
    cr_expect_eq(ask(MiB).silent, 0);
    cr_expect_lt(monotonic_now() - began, BUSY);
    peer_end(&peer);
}

/* Its memory is the driver's when it is over, and not before. */
Test(board_demand, what_an_ending_one_has_comes_when_it_is_over)
{
    struct peer peer = peer_start(leave_when_asked);
    peer_hear(&peer);
    join();
    cr_expect_eq(ask(MiB).pending, MiB);
    struct board_demand *demand = board_ask(board, device, DEVICE_TOTAL, MiB, MiB, false, NULL);
    cr_assert(demand);
    struct board_progress progress = board_demand_look(demand);
    cr_expect_eq(progress.pending, MiB);
    cr_expect_eq(progress.given, 0);
    cr_expect_eq(progress.silent, 0);
    peer_end(&peer);
    progress = board_demand_look(demand);
    cr_expect_eq(progress.pending, 0);
    cr_expect_eq(progress.given, MiB);
    cr_expect_neq(board_ended_at(board, device), 0);
    board_demand_end(demand);
}

/* It has published 1 MiB, and taken 3. */
static void end_with_three(struct peer *parent)
{
    struct board *own = board_join_here(NULL);
    int place = board_device(own, board_uuid);
    board_publish(own, place, MiB, 0);
    board_publish_listening(own, BOARD_LISTENS);
    board_publish_at_end(own, place, 3 * MiB);
    board_publish_ending(own);
    peer_say(parent, own->slot);
    peer_hear(parent);
}

Test(board_demand, all_that_an_ending_one_has_taken_comes)
{
    struct peer peer = peer_start(end_with_three);
    unsigned slot = (unsigned)peer_hear(&peer);
    join();
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).pending, 3 * MiB);
    struct board_demand *demand =
        board_ask(board, device, DEVICE_TOTAL, 3 * MiB, 3 * MiB, false, NULL);
    cr_assert(demand);
    cr_expect_eq(board_demand_look(demand).pending, 3 * MiB);
    /* It has been at its end for so long that it hangs. */
    board->map->slots[slot].ends_since -= 2000 * MILLISECOND;
    cr_expect_eq(board_demand_look(demand).pending, 0);
    board_demand_end(demand);
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).pending, 0);
    cr_expect_not(board_ask(board, device, DEVICE_TOTAL, 3 * MiB, 3 * MiB, false, NULL));
    peer_end(&peer);
}

/* Publishes about listening whatever it hears. */
static void listen_as_told(struct peer *parent)
{
    struct board *own = board_join_here(NULL);
    board_publish(own, board_device(own, board_uuid), MiB, 0);
    for (;;) {
        board_publish_listening(own, (enum board_listens)peer_hear(parent));
        peer_say(parent, own->slot);
    }
}

static uint64_t others_have_when_told(const struct peer *peer, enum board_listens listens)
{
    peer_say(peer, listens);
    peer_hear(peer);
    return board_others(board, device, DEVICE_TOTAL, false).cached;
}

Test(board_demand, goes_to_one_that_leaves_until_it_has_left)
{
    struct peer peer = peer_start(listen_as_told);
    join();
    cr_expect_eq(others_have_when_told(&peer, BOARD_LISTENS), MiB);
    cr_expect_eq(others_have_when_told(&peer, BOARD_LEAVES), MiB);
    cr_expect_eq(others_have_when_told(&peer, BOARD_LISTENS), MiB);
    cr_expect_eq(others_have_when_told(&peer, BOARD_DEAF), MiB, "one that stays is not deaf");
    cr_expect_eq(others_have_when_told(&peer, BOARD_LEAVES), MiB);
    cr_expect_eq(others_have_when_told(&peer, BOARD_DEAF), 0);
    cr_expect_eq(others_have_when_told(&peer, BOARD_LEAVES), 0);
    cr_expect_eq(others_have_when_told(&peer, BOARD_LISTENS), MiB);
    peer_end(&peer);
}

Test(board_demand, goes_to_nobody_without_a_housekeeper)
{
    unsigned slot;
    struct peer peer = peer_start_giver(3 * MiB, 0, &slot);
    join();
    board->map->slots[slot].listens = 0;
    cr_expect_not(board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL));
    cr_expect_eq(board_others(board, device, DEVICE_TOTAL, false).cached, 0);
    peer_end(&peer);
}

/* ---- who is asked ---- */

/* Asks for all, and does not live to see it. */
static void ask_and_die(struct peer *parent)
{
    join();
    peer_hear(parent);
    cr_assert(board_ask(board, device, DEVICE_TOTAL, 3 * MiB, 0, false, NULL));
    peer_say(parent, board->slot);
    peer_hear(parent);
}

Test(board_demand, of_the_living_alone_is_served)
{
    struct peer peer = peer_start(ask_and_die);
    join_with_memory();
    cr_expect_eq(board_take(board, device).bytes, 0);
    board_answered(board);
    peer_say(&peer, 0);
    unsigned slot = (unsigned)peer_hear(&peer);
    struct board_process process;
    cr_expect(board_next_process(board, &slot, &process) && process.asks);
    cr_expect_eq(board_take(board, device).bytes, 3 * MiB);
    cr_expect_eq(board_take(board, board_device(board, board_other_uuid)).bytes, 0);
    board_give(board, device, MiB);
    cr_expect_eq(board_take(board, device).bytes, 2 * MiB, "what was given is not wanted twice");
    peer_end(&peer);
    cr_expect_eq(board_take(board, device).bytes, 0);
}

static void ask_what_there_is(struct peer *parent)
{
    bool no_place;
    join();
    peer_hear(parent);
    cr_assert(board_ask_to_tell(board, device, DEVICE_TOTAL, false, &no_place));
    peer_say(parent, board->slot);
    peer_hear(parent);
}

Test(board_demand, who_wants_to_know_wakes_nobody_for_nothing)
{
    struct peer peer = peer_start(ask_what_there_is);
    join_with_memory();
    peer_say(&peer, 0);
    peer_hear(&peer);
    struct board_wish wish = board_take(board, device);
    cr_expect_eq(wish.bytes, 0);
    cr_expect(wish.tell);
    cr_expect(board->was_asked);
    cr_expect_not(board_take(board, board_device(board, board_other_uuid)).tell);
    board_answered(board);
    peer_end(&peer);
    cr_expect_not(board_take(board, device).tell);
}

/* Asks a second time when it is told so, with the first demand still under way. */
static void ask_twice(struct peer *parent)
{
    join();
    peer_hear(parent);
    cr_assert(board_ask(board, device, DEVICE_TOTAL, MiB, 0, false, NULL));
    peer_say(parent, board->slot);
    peer_hear(parent);
    board_demand_end(&board->demands[0]);
    cr_assert(board_ask(board, device, DEVICE_TOTAL, 2 * MiB, 0, false, NULL));
    peer_say(parent, 0);
    peer_hear(parent);
}

Test(board_demand, is_not_served_by_what_was_given_for_another)
{
    struct peer peer = peer_start(ask_twice);
    join_with_memory();
    peer_say(&peer, 0);
    peer_hear(&peer);
    cr_expect_eq(board_take(board, device).bytes, MiB);
    peer_say(&peer, 0);
    peer_hear(&peer);
    board_give(board, device, MiB); /* for the first one, when the second one is there */
    board_answered(board);
    cr_expect_eq(board_take(board, device).bytes, 2 * MiB);
    board_give(board, device, 2 * MiB);
    cr_expect_eq(board_take(board, device).bytes, 0);
    peer_end(&peer);
}

Test(board_demand, wakes_who_sleeps_and_is_not_missed)
{
    struct peer peer = peer_start(ask_and_die);
    join_with_memory();
    uint64_t began = monotonic_now();
    board_sleep(board, began + 20 * MILLISECOND);
    cr_expect_geq(monotonic_now() - began, 20 * MILLISECOND, "nobody has asked");
    peer_say(&peer, 0);
    peer_hear(&peer);
    began = monotonic_now();
    board_sleep(board, UINT64_MAX);
    cr_expect_lt(monotonic_now() - began, BUSY, "it was asked before it slept");
    peer_end(&peer);
}

static void wake_again_and_again(struct peer *parent)
{
    join();
    unsigned slot = (unsigned)peer_hear(parent);
    for (;;) {
        board->map->slots[slot].wake++;
        futex_wake(&board->map->slots[slot].wake);
    }
}

Test(board_demand, of_nothing_again_and_again_costs_little)
{
    struct peer peer = peer_start(wake_again_and_again);
    join();
    board_publish_listening(board, BOARD_LISTENS);
    peer_say(&peer, board->slot);
    unsigned woken = 0;
    for (uint64_t began = monotonic_now(); monotonic_now() - began < 500 * MILLISECOND; woken++) {
        board_sleep(board, UINT64_MAX);
        board_take(board, device);
        board_answered(board);
    }
    cr_expect_leq(woken, 60, "%u times", woken);
    peer_end(&peer);
}

/* What has been counted may begin anew at 0. */
Test(board_demand, counts_modulo_2_to_the_32)
{
    unsigned slot;
    struct peer peer = peer_start_giver(100 * MiB, 0, &slot);
    join();
    board->map->slots[slot].wake = UINT32_MAX - 3;
    board->map->slots[slot].answered = UINT32_MAX - 3;
    for (int i = 0; i < 8; i++) {
        struct board_progress progress = ask(MiB);
        cr_expect_eq(progress.given, MiB);
        cr_expect_eq(progress.silent, 0);
    }
    kill(peer.pid, SIGSTOP);
    waitpid(peer.pid, NULL, WUNTRACED);
    board->silence = BOARD_SILENCE_NANOSECONDS;
    board->map->slots[slot].wake = UINT32_MAX;
    board->map->slots[slot].answered = UINT32_MAX;
    cr_expect_eq(ask(MiB).silent, 1, "0 is behind that, and not answered yet");
    kill(peer.pid, SIGCONT);
    peer_end(&peer);
}

/* ---- several who ask ---- */

static void ask_for_two(struct peer *parent)
{
    join();
    peer_hear(parent);
    peer_say(parent, ask(2 * MiB).silent);
    peer_hear(parent);
}

Test(board_demand, of_two_at_once_is_met_for_both)
{
    for (int round = 0; round < 20; round++) {
        unsigned slot;
        struct peer giver = peer_start_giver(5 * MiB, 0, &slot);
        struct peer one = peer_start(ask_for_two), other = peer_start(ask_for_two);
        peer_say(&one, 0);
        peer_say(&other, 0);
        cr_expect_eq(peer_hear(&one) + peer_hear(&other), 0);
        join();
        cr_expect_eq(cached_in(slot), MiB, "%u", (unsigned)(cached_in(slot) / MiB));
        board_discard(board);
        peer_end(&one);
        peer_end(&other);
        peer_end(&giver);
    }
}

static _Atomic uint64_t caches;

static void *keep_house(void *unused)
{
    for (;;) {
        board_sleep(board, UINT64_MAX);
        struct board_wish wish = board_take(board, device);
        uint64_t gives = wish.bytes < caches ? wish.bytes : caches;
        caches -= gives;
        board_give(board, device, gives);
        board_publish(board, device, caches, 0);
        board_answered(board);
    }
    return unused;
}

/* Both cache, both keep house, and both want what the other one has. */
static void ask_the_other(struct peer *parent)
{
    pthread_t thread;
    join();
    caches = 3 * MiB;
    board_publish(board, device, caches, 0);
    board_publish_listening(board, BOARD_LISTENS);
    pthread_create(&thread, NULL, keep_house, NULL);
    peer_say(parent, 0);
    peer_hear(parent);
    uint64_t given = 0;
    for (int i = 0; i < 3; i++)
        given += ask(MiB).given;
    peer_say(parent, given);
    peer_hear(parent);
}

Test(board_demand, of_two_that_ask_each_other_ends)
{
    for (int round = 0; round < 20; round++) {
        struct peer peers[2] = {peer_start(ask_the_other), peer_start(ask_the_other)};
        for (int i = 0; i < 2; i++)
            peer_hear(&peers[i]);
        for (int i = 0; i < 2; i++)
            peer_say(&peers[i], 0);
        for (int i = 0; i < 2; i++)
            cr_expect_eq(peer_hear(&peers[i]), 3 * MiB);
        for (int i = 0; i < 2; i++)
            peer_end(&peers[i]);
    }
}

/* ---- groups, and tools ---- */

static const char *group_of_peer;

static void cache_in_group(struct peer *parent)
{
    struct board *own = board_join_here(group_of_peer);
    board_publish(own, board_device(own, board_uuid), MiB, 0);
    board_publish_listening(own, BOARD_LISTENS);
    peer_say(parent, own->slot);
    peer_hear(parent);
}

Test(board_demand, of_a_group_asks_its_members)
{
    struct peer peers[3];
    const char *const groups[3] = {"a", "b", NULL};
    for (int i = 0; i < 3; i++) {
        group_of_peer = groups[i];
        peers[i] = peer_start(cache_in_group);
        peer_hear(&peers[i]);
    }
    board = board_join_here("a");
    device = board_device(board, board_uuid);
    struct board_demand *demand = board_ask(board, device, DEVICE_TOTAL, 9 * MiB, 0, true, NULL);
    cr_assert(demand);
    cr_expect_eq(demand->count, 1);
    board_demand_end(demand);
    demand = board_ask(board, device, DEVICE_TOTAL, 9 * MiB, 0, false, NULL);
    cr_assert(demand);
    cr_expect_eq(demand->count, 3);
    cr_expect(demand->asked_all);
    board_demand_end(demand);
    demand = board_ask(board, device, DEVICE_TOTAL, 1, 0, false, NULL);
    cr_assert(demand);
    cr_expect_eq(demand->count, 1);
    cr_expect_not(demand->asked_all, "one was enough");
    board_demand_end(demand);
    for (int i = 0; i < 3; i++)
        peer_end(&peers[i]);
}

Test(board_demand, of_a_tool_takes_all)
{
    unsigned slots[3];
    struct peer peers[3] = {peer_start_giver(3 * MiB, MiB, &slots[0]),
                            peer_start_giver(4 * MiB, 0, &slots[1]),
                            peer_start_giver(5 * MiB, 0, &slots[2])};
    const char *why = NULL;
    board = board_visit_below(board_base, &why);
    cr_assert(board, "%s", why ? why : "");
    struct board_demand *demand = board_trim_number(board, peers[1].pid, NULL, &why);
    cr_assert(demand, "%s", why ? why : "");
    struct board_progress progress = board_demand_look(demand);
    cr_expect_eq(progress.asked, 1);
    cr_expect_eq(progress.given, 4 * MiB);
    board_demand_end(demand);
    cr_expect_eq(cached_in(slots[0]), 3 * MiB);
    cr_expect_not(board_trim_number(board, peers[1].pid, board_other_uuid, &why) &&
                  board_demand_look(&board->demands[0]).given > 0);
    cr_expect_not(board_trim_number(board, 0x7fffffff, NULL, &why));
    cr_expect_str_eq(why, "there is no such process on the board");
    demand = board_trim(board, NULL, board_uuid, &why);
    cr_assert(demand, "%s", why ? why : "");
    progress = board_demand_look(demand);
    cr_expect_eq(progress.asked, 3);
    cr_expect_eq(progress.given, 8 * MiB);
    cr_expect_eq(progress.pending, MiB);
    board_demand_end(demand);
    for (int i = 0; i < 3; i++)
        peer_end(&peers[i]);
}

/* In another pid namespace, or before it, another one may have the number. */
Test(board_demand, of_a_tool_is_for_the_process_that_it_means)
{
    struct peer peer = peer_start_giver(3 * MiB, 0, NULL);
    struct board_process process, other;
    const char *why = NULL;
    unsigned slot = 0;
    board = board_visit_below(board_base, &why);
    cr_assert(board && board_next_process(board, &slot, &process));
    other = process;
    other.pid_namespace++;
    cr_expect_not(board_trim(board, &other, NULL, &why));
    other = process;
    other.start_ticks++;
    cr_expect_not(board_trim(board, &other, NULL, &why));
    struct board_demand *demand = board_trim(board, &process, NULL, &why);
    cr_assert(demand, "%s", why ? why : "");
    cr_expect_eq(board_demand_look(demand).given, 3 * MiB);
    board_demand_end(demand);
    peer_end(&peer);
}

Test(board_demand, of_a_tool_waits_beside_its_others)
{
    struct peer peers[BOARD_DEMANDS];
    struct board_demand *demands[BOARD_DEMANDS];
    const char *why = NULL;
    for (unsigned i = 0; i < BOARD_DEMANDS; i++) {
        peers[i] = peer_start_giver(MiB, 0, NULL);
        kill(peers[i].pid, SIGSTOP);
        waitpid(peers[i].pid, NULL, WUNTRACED);
    }
    board = board_visit_below(board_base, &why);
    cr_assert(board);
    board->silence = 5 * BOARD_SILENCE_NANOSECONDS;
    uint64_t began = monotonic_now();
    for (unsigned i = 0; i < BOARD_DEMANDS; i++)
        cr_assert(demands[i] = board_trim_number(board, peers[i].pid, NULL, &why));
    for (unsigned i = 0; i < BOARD_DEMANDS; i++)
        cr_expect_eq(board_demand_look(demands[i]).silent, 1);
    /* 2 s more, for a slow machine. */
    cr_expect_lt(monotonic_now() - began, 2 * board->silence + 2 * UINT64_C(1000000000));
    for (unsigned i = 0; i < BOARD_DEMANDS; i++)
        peer_end(&peers[i]);
}

static void let_16_seconds_pass(void)
{
    for (unsigned i = 0; i < BOARD_FIRST_SEEN; i++)
        board->first_seen[i].since -= UINT64_C(16000000000);
}

static void trim_and_stay(struct peer *parent)
{
    const char *why;
    board = board_visit_below(board_base, &why);
    cr_assert(board && board_trim(board, NULL, NULL, &why));
    peer_say(parent, 0);
    peer_hear(parent);
}

/* A tool that was stopped does not keep the cache empty for good. */
Test(board_demand, of_a_tool_is_over_some_time)
{
    join();
    board_publish_listening(board, BOARD_LISTENS);
    struct peer peer = peer_start(trim_and_stay);
    peer_hear(&peer);
    cr_expect(board_take(board, device).trim);
    board_answered(board);
    cr_expect(board_take(board, device).trim, "for now it goes on");
    board_answered(board);
    let_16_seconds_pass();
    cr_expect_not(board_take(board, device).trim);
    cr_expect_eq(board_take(board, device).bytes, 0);
    peer_end(&peer);
}

static void ask_and_stay(struct peer *parent)
{
    join();
    cr_assert(board_ask(board, device, DEVICE_TOTAL, 5 * MiB, 0, false, NULL));
    peer_say(parent, 0);
    peer_hear(parent);
}

/* Who was stopped while it waited for memory does not keep the cache empty either. */
Test(board_demand, of_a_process_is_over_some_time)
{
    join();
    board_publish_listening(board, BOARD_LISTENS);
    board_publish(board, device, 9 * MiB, 0);
    struct peer peer = peer_start(ask_and_stay);
    peer_hear(&peer);
    cr_expect_eq(board_take(board, device).bytes, 5 * MiB);
    board_answered(board);
    let_16_seconds_pass();
    cr_expect_eq(board_take(board, device).bytes, 0);
    peer_end(&peer);
}
