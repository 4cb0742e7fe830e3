/*
 * What a group of processes holds of a device together (core/board/board.h).
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board_fixture.h"
#include "core/base/clock.h"

TestSuite(board_group, .init = board_base_make, .fini = board_base_remove);

#define MILLISECOND UINT64_C(1000000)
/* A busy machine may let a process wait for so long. */
#define BUSY  (2000 * MILLISECOND)
#define LIMIT UINT64_C(1000)

static struct board *board;
static int device;

static void join(const char *group)
{
    board = board_join_here(group);
    device = board_device(board, board_uuid);
}

Test(board_group, holds_up_to_its_limit)
{
    join("g");
    cr_expect(board_group_take(board, device, 600, LIMIT));
    cr_expect_not(board_group_take(board, device, 401, LIMIT));
    cr_expect(board_group_take(board, device, 400, LIMIT));
    cr_expect_eq(board_group_held(board, device), 1000);
    cr_expect_not(board_group_take(board, device, UINT64_MAX, LIMIT));
    board_group_give(board, device, 1);
    cr_expect_not(board_group_take(board, device, 2, LIMIT));
    cr_expect(board_group_take(board, device, 1, LIMIT));
    cr_expect(board_group_take(board, device, 5, UINT64_MAX), "without a limit it is counted, too");
    cr_expect_eq(board_group_held(board, device), 1005);
    int other = board_device(board, board_other_uuid);
    cr_expect(board_group_take(board, other, 1000, LIMIT), "another device");
}

Test(board_group, is_the_process_where_there_is_no_name)
{
    struct board *one = board_join_here(NULL), *other = board_join_here("");
    int first = board_device(one, board_uuid), second = board_device(other, board_uuid);
    cr_expect(board_group_take(one, first, 1000, LIMIT));
    cr_expect_not(board_group_take(one, first, 1, LIMIT));
    cr_expect(board_group_take(other, second, 1000, LIMIT));
    cr_expect_eq(board_group_held(one, first), 1000);
    board_group_give(one, first, 400);
    cr_expect(board_group_take(one, first, 400, LIMIT));
}

static void take_300(struct peer *parent)
{
    join("g");
    peer_say(parent, board_group_take(board, device, 300, LIMIT));
    peer_hear(parent);
    board_group_give(board, device, 100);
    peer_say(parent, 0);
    peer_hear(parent);
}

Test(board_group, is_of_several_processes)
{
    struct peer peer = peer_start(take_300);
    cr_expect_eq(peer_hear(&peer), 1);
    struct board *stranger = board_join_here("other");
    cr_expect(board_group_take(stranger, board_device(stranger, board_uuid), 1000, LIMIT));
    join("g");
    cr_expect_eq(board_group_held(board, device), 300);
    cr_expect_not(board_group_take(board, device, 701, LIMIT));
    cr_expect(board_group_take(board, device, 700, LIMIT));
    peer_say(&peer, 0);
    peer_hear(&peer);
    cr_expect_not(board_group_take(board, device, 101, LIMIT));
    cr_expect(board_group_take(board, device, 100, LIMIT));
    peer_end(&peer);
    cr_expect(board_group_take(board, device, 200, LIMIT), "what it held is free");
    cr_expect_eq(board_group_held(board, device), 1000);
}

/* ---- between two steps ---- */

/* Stands where somebody has raised what it wants, and not gone on: for how long its parent says. */
static void raise_and_stop(struct peer *parent)
{
    join("g");
    struct board_slot_device *own = &board->map->slots[board->slot].devices[device];
    own->raises = 1;
    own->tentative = 600;
    peer_say(parent, board->slot);
    peer_hear(parent);
    own->tentative = 0;
    peer_say(parent, 0);
    peer_hear(parent);
}

static void expect_to_wait_for(struct peer *peer)
{
    peer_hear(peer);
    kill(peer->pid, SIGSTOP);
    waitpid(peer->pid, NULL, WUNTRACED);
    board->silence = BOARD_SILENCE_NANOSECONDS;
    uint64_t began = monotonic_now();
    cr_expect(board_group_take(board, device, 400, LIMIT), "it is not in the way");
    cr_expect_lt(monotonic_now() - began, BUSY);
    board_group_give(board, device, 400);
    began = monotonic_now();
    cr_expect_not(board_group_take(board, device, 401, LIMIT));
    uint64_t took = monotonic_now() - began;
    cr_expect(took >= BOARD_SILENCE_NANOSECONDS && took < BOARD_SILENCE_NANOSECONDS + BUSY, "%u ms",
              (unsigned)(took / MILLISECOND));
    board->silence = BOARD_PATIENCE;
    began = monotonic_now();
    cr_expect_not(board_group_take(board, device, 401, LIMIT), "what it has raised counts");
    cr_expect(board_group_take(board, device, 400, LIMIT));
    cr_expect_lt(monotonic_now() - began, BUSY, "it is not waited for again");
    board_group_give(board, device, 400);
    peer_end(peer);
    cr_expect(board_group_take(board, device, 1000, LIMIT), "and is gone with the process");
}

Test(board_group, does_not_wait_long_for_a_stopped_one_above)
{
    join("g");
    struct peer peer = peer_start(raise_and_stop);
    expect_to_wait_for(&peer);
}

static void wait_only(struct peer *parent)
{
    join(NULL);
    peer_say(parent, 0);
    peer_hear(parent);
}

Test(board_group, does_not_wait_long_for_a_stopped_one_below)
{
    struct peer lowest = peer_start(wait_only);
    peer_hear(&lowest);
    struct peer peer = peer_start(raise_and_stop);
    uint64_t slot = peer_hear(&peer);
    join("g");
    cr_expect_gt(board->slot, slot);
    peer_end(&lowest);
    /* It has said its slot already, and now says something else. */
    peer_say(&peer, 0);
    peer_hear(&peer);
    board->map->slots[slot].devices[0].tentative = 600;
    struct peer again = {peer.pid, peer.to, peer.from};
    int pipe_of_one[2];
    uint64_t word = 0;
    cr_assert(pipe(pipe_of_one) == 0 && write(pipe_of_one[1], &word, sizeof word) > 0);
    again.from = pipe_of_one[0];
    expect_to_wait_for(&again);
}

static void raise_for_a_moment(struct peer *parent)
{
    join("g");
    struct board_slot_device *own = &board->map->slots[board->slot].devices[device];
    own->raises = 1;
    own->tentative = 600;
    peer_say(parent, board->slot);
    usleep(20000);
    own->tentative = 0;
    peer_hear(parent);
}

static void expect_to_be_waited_for(void (*rival)(struct peer *), bool is_above)
{
    if (is_above)
        join("g");
    struct peer peer = peer_start(rival);
    peer_hear(&peer);
    if (!is_above)
        join("g");
    uint64_t began = monotonic_now();
    cr_expect(board_group_take(board, device, LIMIT, LIMIT));
    cr_expect_lt(monotonic_now() - began, BOARD_PATIENCE / 2);
    peer_end(&peer);
    board_discard(board);
}

Test(board_group, waits_for_one_that_backs_off)
{
    expect_to_be_waited_for(raise_for_a_moment, true);
    expect_to_be_waited_for(raise_for_a_moment, false);
}

static void raise_and_die(struct peer *parent)
{
    join("g");
    struct board_slot_device *own = &board->map->slots[board->slot].devices[device];
    own->raises = 1;
    own->tentative = 600;
    peer_say(parent, 0);
    usleep(30000);
    kill(getpid(), SIGKILL);
}

Test(board_group, does_not_wait_for_one_that_dies)
{
    expect_to_be_waited_for(raise_and_die, true);
    expect_to_be_waited_for(raise_and_die, false);
}

/* ---- rivals ---- */

/* Counts up when all are to try; how many have, and of them how many had it. */
static struct {
    _Atomic unsigned go, tried, won;
} * race;

#define RIVALS 2
#define RACES  300

static void wait_for(_Atomic unsigned *count, unsigned value)
{
    uint64_t began = monotonic_now();
    while (*count < value)
        if (monotonic_now() - began > MILLISECOND)
            sched_yield();
}

static void race_for_the_last(struct peer *parent)
{
    join("g");
    peer_say(parent, 0);
    for (unsigned round = 1; round <= RACES; round++) {
        wait_for(&race->go, round);
        bool taken = board_group_take(board, device, 600, LIMIT);
        race->won += taken;
        race->tried++;
        wait_for(&race->tried, round * RIVALS);
        if (taken)
            board_group_give(board, device, 600);
        peer_say(parent, 0);
    }
}

/* Several want the last bytes at the same time: one has them. */
Test(board_group, has_one_winner, .timeout = 60)
{
    struct peer peers[RIVALS];
    race = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < RIVALS; i++)
        peers[i] = peer_start(race_for_the_last);
    for (int i = 0; i < RIVALS; i++)
        peer_hear(&peers[i]);
    for (unsigned round = 1; round <= RACES; round++) {
        race->go = round;
        for (int i = 0; i < RIVALS; i++)
            peer_hear(&peers[i]);
        cr_assert_eq(race->won, round, "in round %u", round);
    }
    for (int i = 0; i < RIVALS; i++)
        peer_end(&peers[i]);
}

/* Has 600 bytes from its raise on, first raised and then held, in each round. */
static void hold_in_two_steps(struct peer *parent)
{
    join("g");
    struct board_slot_device *own = &board->map->slots[board->slot].devices[device];
    peer_say(parent, 0);
    for (unsigned round = 1;; round++) {
        wait_for(&race->go, round);
        own->raises++;
        own->tentative = 600;
        race->tried = round;
        usleep(2000);
        own->held = 600;
        own->tentative = 0;
        wait_for(&race->won, round);
        own->held = 0;
        peer_say(parent, 0);
    }
}

Test(board_group, sees_bytes_on_their_way)
{
    race = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct peer peer = peer_start(hold_in_two_steps);
    peer_hear(&peer);
    join("g");
    for (unsigned round = 1; round <= 30; round++) {
        race->go = round;
        wait_for(&race->tried, round);
        cr_assert_not(board_group_take(board, device, 600, LIMIT), "in round %u", round);
        race->won = round;
        peer_hear(&peer);
    }
    cr_expect(board_group_take(board, device, 600, LIMIT));
    peer_end(&peer);
}

/* ---- many, at random ---- */

#define PEERS 20

/* What all really hold, and the most of it that anybody has seen. */
static struct {
    _Atomic uint64_t held, most, taken, refused;
} * truth;

static volatile uint64_t own_held;

/* As when the process ends: its memory is the driver's again, just before its slot is nobody's. */
static void die(int signal)
{
    (void)signal;
    truth->held -= own_held;
    kill(getpid(), SIGKILL);
}

static void count(uint64_t bytes, bool taken)
{
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    uint64_t change = taken ? bytes : -bytes;
    uint64_t now = atomic_fetch_add(&truth->held, change) + change;
    own_held = taken ? own_held + bytes : own_held - bytes;
    sigprocmask(SIG_SETMASK, &before, NULL);
    uint64_t most = truth->most;
    while (now > most && !atomic_compare_exchange_weak(&truth->most, &most, now))
        ;
}

/* Blocks of the process, the newest last. */
static uint64_t blocks[64];

static void take_and_give(unsigned *count_of_blocks, unsigned *seed)
{
    uint64_t bytes = 1 + (uint64_t)rand_r(seed) % 200;
    if (rand_r(seed) % 2 && *count_of_blocks > 0) {
        bytes = blocks[--*count_of_blocks];
        count(bytes, false);
        board_group_give(board, device, bytes);
    } else if (*count_of_blocks < 64) {
        /* Where the signal comes between the two it is held, and not counted: never too much. */
        bool taken = board_group_take(board, device, bytes, LIMIT);
        if (taken) {
            blocks[(*count_of_blocks)++] = bytes;
            count(bytes, true);
        }
        taken ? truth->taken++ : truth->refused++;
    }
}

static void take_and_give_until_killed(struct peer *parent)
{
    unsigned seed = (unsigned)peer_hear(parent), held = 0;
    join("g");
    signal(SIGALRM, die);
    struct itimerval timer = {.it_value.tv_usec = 1000 + rand_r(&seed) % 200000};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (;;)
        take_and_give(&held, &seed);
}

Test(board_group, is_exact_among_many_that_are_killed, .timeout = 60)
{
    struct peer peers[PEERS];
    unsigned started = 0;
    truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PEERS; i++) {
        peers[i] = peer_start(take_and_give_until_killed);
        peer_say(&peers[i], ++started);
        /* The first one makes the board's file, for which others would not wait for long. */
        while (i == 0 && truth->taken + truth->refused == 0)
            usleep(1000);
    }
    /* Longer where the machine is slow: until enough of them have come and gone. */
    for (uint64_t began = monotonic_now(); monotonic_now() - began < 2500 * MILLISECOND ||
                                           started <= 2 * PEERS || truth->taken <= 200;) {
        for (int i = 0; i < PEERS; i++) {
            if (waitpid(peers[i].pid, NULL, WNOHANG) != peers[i].pid)
                continue;
            close(peers[i].to);
            close(peers[i].from);
            peers[i] = peer_start(take_and_give_until_killed);
            peer_say(&peers[i], ++started);
        }
        usleep(1000);
    }
    /* First of all nobody goes on: what those hold that are killed now is not taken off. */
    for (int i = 0; i < PEERS; i++)
        kill(peers[i].pid, SIGSTOP);
    for (int i = 0; i < PEERS; i++)
        waitpid(peers[i].pid, NULL, WUNTRACED);
    for (int i = 0; i < PEERS; i++)
        peer_end(&peers[i]);
    cr_expect_leq(truth->most, LIMIT, "at most %u", (unsigned)truth->most);
    cr_expect_gt(truth->most, LIMIT / 2, "at most %u; %u taken, %u refused, of %u",
                 (unsigned)truth->most, (unsigned)truth->taken, (unsigned)truth->refused, started);
    cr_expect_gt(truth->taken, 200);
    cr_expect_gt(started, 2 * PEERS);
    join("g");
    cr_expect(board_group_take(board, device, LIMIT, LIMIT), "all of it is there in the end");
}

/* ---- threads ---- */

static _Atomic uint64_t held_by_threads, most_by_threads;

static void *take_in_thread(void *seed_of_thread)
{
    unsigned seed = (unsigned)(uintptr_t)seed_of_thread;
    for (int i = 0; i < 3000; i++) {
        uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % 400;
        if (!board_group_take(board, device, bytes, LIMIT))
            continue;
        uint64_t now = atomic_fetch_add(&held_by_threads, bytes) + bytes, most = most_by_threads;
        while (now > most && !atomic_compare_exchange_weak(&most_by_threads, &most, now))
            ;
        held_by_threads -= bytes;
        board_group_give(board, device, bytes);
    }
    return NULL;
}

Test(board_group, is_exact_among_threads)
{
    pthread_t threads[4];
    for (int round = 0; round < 2; round++) {
        join(round == 0 ? "g" : NULL);
        for (uintptr_t i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, take_in_thread, (void *)(i + 1));
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        cr_expect_leq(most_by_threads, LIMIT);
        cr_expect_eq(board_group_held(board, device), 0);
        cr_expect(board_group_take(board, device, LIMIT, LIMIT));
    }
}
