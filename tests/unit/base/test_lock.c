/*
 * The order of locks, and who must hold them: core/base/lock.h, in builds that check them.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/lock.h"
#include "core/driver/calls.h"

#ifdef CUDAPOOL_CHECK_LOCKS

static pthread_mutex_t fence = PTHREAD_MUTEX_INITIALIZER, registry = PTHREAD_MUTEX_INITIALIZER;
static struct short_lock context, other_context;

/* What a child that does this says before it aborts; "" where it does not. */
static const char *complaint(void (*body)(void))
{
    static char text[1024];
    int ends[2], status;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    cr_assert_neq(child, -1);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t more; (more = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)more;
    text[length] = '\0';
    close(ends[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, length != 0,
                 "it complains as it aborts: %s", text);
    return text;
}

static void expect_complaint(void (*body)(void), const char *what)
{
    const char *text = complaint(body);
    cr_expect(strstr(text, what), "it says %s: %s", what, text);
    cr_expect(strstr(text, "test_lock.c:"), "it says where: %s", text);
    const char *end = strchr(text, '\n');
    cr_expect(end && end[1] == '\0', "it is one line: %s", text);
}

static void right_order(void)
{
    lock_take(&fence, LOCK_FENCE);
    lock_must_be_held(&fence);
    lock_of_rank_must_be_held(LOCK_FENCE);
    lock_must_not_be_held(&registry);
    enter_driver();
    leave_driver();
    lock_take(&registry, LOCK_REGISTRY);
    lock_take(&context, LOCK_CONTEXT);
    lock_give(&fence); /* in any order */
    lock_give(&context);
    lock_take(&other_context, LOCK_CONTEXT);
    lock_give(&other_context);
    lock_give(&registry);
    no_lock_may_be_held();
}

Test(lock, says_nothing_of_the_right_order)
{
    cr_expect_str_eq(complaint(right_order), "");
}

static void wrong_order(void)
{
    lock_take(&registry, LOCK_REGISTRY);
    lock_take(&fence, LOCK_FENCE);
}

static void under_a_leaf(void)
{
    lock_take(&registry, LOCK_TABLE);
    lock_take(&fence, LOCK_FIGURES);
}

static void twice(void)
{
    lock_take(&context, LOCK_CONTEXT);
    lock_take(&context, LOCK_CONTEXT);
}

static void two_of_a_rank(void)
{
    lock_take(&context, LOCK_CONTEXT);
    lock_take(&other_context, LOCK_CONTEXT);
}

static void not_held(void)
{
    lock_take(&context, LOCK_CONTEXT);
    lock_give(&other_context);
}

Test(lock, aborts_on_a_wrong_order)
{
    expect_complaint(wrong_order, "the fence lock is taken under the registry lock");
    expect_complaint(under_a_leaf, "the figures lock is taken under a table's lock");
    expect_complaint(two_of_a_rank, "a context's lock is taken under a context's lock");
    expect_complaint(twice, "a context's lock is taken twice");
    expect_complaint(not_held, "given that is not held");
}

static void must_be_held(void)
{
    lock_take(&context, LOCK_CONTEXT);
    lock_must_be_held(&other_context);
}

static void rank_must_be_held(void)
{
    lock_take(&context, LOCK_CONTEXT);
    lock_of_rank_must_be_held(LOCK_FENCE);
}

static void must_not_be_held(void)
{
    lock_take(&context, LOCK_CONTEXT);
    lock_must_not_be_held(&context);
}

static void none_may_be_held(void)
{
    lock_take(&fence, LOCK_FENCE);
    no_lock_may_be_held();
}

static void in_the_driver(void)
{
    lock_take(&fence, LOCK_FENCE);
    lock_take(&context, LOCK_CONTEXT);
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
}

Test(lock, aborts_where_a_contract_is_broken)
{
    expect_complaint(must_be_held, "is not held that must be");
    expect_complaint(rank_must_be_held, "the fence lock is not held, and must be");
    expect_complaint(must_not_be_held, "a context's lock is held since");
    expect_complaint(none_may_be_held, "the fence lock is held since");
    expect_complaint(in_the_driver, "a context's lock is held since");
}

static void call_the_driver(void)
{
    lock_take(&context, LOCK_CONTEXT);
    enter_driver();
}

Test(lock, is_not_held_in_a_driver_call)
{
    const char *text = complaint(call_the_driver);
    cr_expect(strstr(text, "a context's lock is held since"), "%s", text);
    cr_expect(strstr(text, "core/driver/calls.h:"), "%s", text);
}

static void *take_another(void *unused)
{
    (void)unused;
    no_lock_may_be_held();
    lock_take(&fence, LOCK_FENCE);
    lock_give(&fence);
    return NULL;
}

static void two_threads(void)
{
    pthread_t thread;
    lock_take(&registry, LOCK_REGISTRY);
    pthread_create(&thread, NULL, take_another, NULL);
    pthread_join(thread, NULL);
    lock_give(&registry);
}

Test(lock, is_each_threads_own_business)
{
    cr_expect_str_eq(complaint(two_threads), "");
}

#else

Test(lock, is_checked_in_other_builds)
{
    cr_skip_test("locks are checked in builds with a sanitizer, or with DEBUG=1");
}

#endif
