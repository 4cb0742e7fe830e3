/*
 * Limits that a tool sets for running processes (core/board/board_limit.c).
 */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "board_fixture.h"
#include "core/board/board_slot.h"

TestSuite(board_limit, .init = board_base_make, .fini = board_base_remove, .timeout = 60);

static struct board *tool;

static struct board *visit(void)
{
    const char *why = NULL;
    tool = board_visit_below(board_base, &why);
    cr_assert(tool, "%s", why ? why : "");
    return tool;
}

/* The process that was the first to join. */
static struct board_process first(void)
{
    struct board_process process;
    unsigned slot = 0;
    cr_assert(board_next_process(tool, &slot, &process));
    return process;
}

static unsigned set_for_group(const char *name, uint64_t bytes)
{
    struct board_process process = {0};
    snprintf(process.group, sizeof process.group, "%s", name);
    return board_set_limit(tool, &process, BOARD_LIMIT_OF_GROUP, bytes);
}

static uint64_t limit_of(const struct board *board, enum board_limit limit)
{
    uint64_t bytes[BOARD_LIMITS];
    cr_assert(board_read_limits(board, bytes));
    return bytes[limit];
}

static uint64_t changes(const struct board *board)
{
    return atomic_load(board->start.limit_changes);
}

Test(board_limit, is_the_one_at_the_start_at_first)
{
    struct board *board = board_join_here("g");
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_AT_START);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_GROUP), BOARD_LIMIT_AT_START);
    cr_expect_eq(changes(board), 0);
}

Test(board_limit, is_set_and_counted)
{
    struct board *board = board_join_here(NULL);
    visit();
    struct board_process process = first();
    cr_expect_eq(board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, 3 * MiB + 5), 1);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_PROCESS), 3 * MiB);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_GROUP), BOARD_LIMIT_AT_START);
    cr_expect_eq(changes(board), 1);
    cr_expect_eq(board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, 3 * MiB), 1);
    cr_expect_eq(changes(board), 1, "nothing has changed");
    board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, 1);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_STEP);
    board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, UINT64_MAX - 1);
    cr_expect_gt(limit_of(board, BOARD_LIMIT_OF_PROCESS), UINT64_C(1) << 59);
    board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, BOARD_LIMIT_AT_START);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_AT_START);
    cr_expect_eq(changes(board), 4);
    cr_expect_eq(atomic_load(&board->map->slots[board->slot].wake), 4, "it is woken");
}

Test(board_limit, is_for_the_process_that_is_meant)
{
    struct board *board = board_join_here(NULL);
    visit();
    struct board_process process = first();
    process.start_ticks++;
    cr_expect_eq(board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, MiB), 0);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_AT_START);
}

/* The slot has become another process's since. */
Test(board_limit, of_an_earlier_owner_is_nobodys)
{
    struct board *board = board_join_here(NULL);
    struct board_slot *slot = &board->map->slots[board->slot];
    atomic_store(&slot->limits[BOARD_LIMIT_OF_PROCESS], (~board->token & ~0xffffffff) | 256);
    cr_expect_eq(limit_of(board, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_AT_START);
}

Test(board_limit, of_a_group_is_its_members)
{
    struct board *one = board_join_here("g"), *two = board_join_here("g");
    struct board *other = board_join_here("h");
    visit();
    cr_expect_eq(set_for_group("g", MiB), 2);
    cr_expect_eq(limit_of(one, BOARD_LIMIT_OF_GROUP), MiB);
    cr_expect_eq(limit_of(two, BOARD_LIMIT_OF_GROUP), MiB);
    cr_expect_eq(limit_of(one, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_AT_START);
    cr_expect_eq(limit_of(other, BOARD_LIMIT_OF_GROUP), BOARD_LIMIT_AT_START);
    cr_expect_eq(set_for_group("", MiB), 0);
    cr_expect_eq(set_for_group("nobody's", MiB), 0);
}

Test(board_limit, of_a_group_is_who_joins_laters)
{
    struct board *one = board_join_here("g");
    visit();
    cr_expect_eq(set_for_group("g", MiB), 1);
    struct board *later = board_join_here("g"), *other = board_join_here("h");
    cr_expect_eq(limit_of(later, BOARD_LIMIT_OF_GROUP), MiB);
    cr_expect_eq(changes(later), 1);
    cr_expect_eq(limit_of(other, BOARD_LIMIT_OF_GROUP), BOARD_LIMIT_AT_START);
    board_discard(one);
    board_discard(later);
    later = board_join_here("g");
    cr_expect_eq(limit_of(later, BOARD_LIMIT_OF_GROUP), BOARD_LIMIT_AT_START, "all have ended");
}

Test(board_limit, of_a_parent_is_its_childs)
{
    struct board *parent = board_join_here(NULL);
    visit();
    struct board_process process = first();
    board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, MiB);
    struct board *child = board_join_here(NULL);
    cr_expect_eq(limit_of(child, BOARD_LIMIT_OF_PROCESS), BOARD_LIMIT_AT_START);
    board_limits_take_over(child, getpid());
    cr_expect_eq(limit_of(child, BOARD_LIMIT_OF_PROCESS), MiB);
    /* What a tool has set for the child stays. */
    board_set_limit(tool, &process, BOARD_LIMIT_OF_PROCESS, 2 * MiB);
    board_limits_take_over(child, getpid());
    cr_expect_eq(limit_of(parent, BOARD_LIMIT_OF_PROCESS), 2 * MiB);
}

Test(board_limit, is_unknown_without_a_board)
{
    struct board *board = board_join_here(NULL);
    uint64_t bytes[BOARD_LIMITS];
    struct board_process process = {0};
    board_leave(board);
    cr_expect_not(board_read_limits(board, bytes));
    cr_expect_not(board_read_limits(NULL, bytes));
    cr_expect_eq(board_set_limit(NULL, &process, BOARD_LIMIT_OF_PROCESS, MiB), 0);
}
