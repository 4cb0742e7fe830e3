/*
 * The unit tests without Criterion: the part of its interface that tests/unit uses, for where it
 * does not run: under the sanitizers, and under qemu for another processor.
 *
 * Every test runs in a process of its own, one after the other, and ends with the same synthesis
 * line as Criterion's. One test program includes this once; it defines main.
 */
#ifndef CUDAPOOL_TESTS_PLAIN_CRITERION_H
#define CUDAPOOL_TESTS_PLAIN_CRITERION_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct plain_options {
    void (*init)(void);
    void (*fini)(void);
    const char *description;
    double timeout; /* seconds */
    int signal;     /* the test must end by this signal */
    int exit_code;  /* or exit with this status */
    bool disabled;
};

struct plain_test {
    const char *suite;
    const char *name;
    void (*body)(void);
    struct plain_options options;
    struct plain_test *next;
};

struct plain_suite {
    const char *name;
    struct plain_options options;
    struct plain_suite *next;
};

/* Under sanitizers and emulators everything takes longer, on a busy machine by far: a timeout is
 * there to end what hangs. */
enum { PLAIN_SKIPPED = 77, PLAIN_DEFAULT_TIMEOUT = 60, PLAIN_PATIENCE = 10 };

static struct plain_test *plain_tests;
static struct plain_suite *plain_suites;
static bool plain_test_failed; /* in the test's own process */

/* Constructors run in the order of the source; tests are run in that order too. */
static inline void plain_register(struct plain_test *test)
{
    struct plain_test **end = &plain_tests;
    while (*end != NULL)
        end = &(*end)->next;
    *end = test;
}

#define Test(suite_name, test_name, ...)                                                           \
    static void suite_name##_##test_name(void);                                                    \
    static struct plain_test suite_name##_##test_name##_test = {                                   \
        .suite = #suite_name,                                                                      \
        .name = #test_name,                                                                        \
        .body = suite_name##_##test_name,                                                          \
        .options = {__VA_ARGS__},                                                                  \
    };                                                                                             \
    __attribute__((constructor)) static void suite_name##_##test_name##_register(void)             \
    {                                                                                              \
        plain_register(&suite_name##_##test_name##_test);                                          \
    }                                                                                              \
    static void suite_name##_##test_name(void)

#define TestSuite(suite_name, ...)                                                                 \
    static struct plain_suite suite_name##_suite = {                                               \
        .name = #suite_name,                                                                       \
        .options = {__VA_ARGS__},                                                                  \
    };                                                                                             \
    __attribute__((constructor)) static void suite_name##_suite_register(void)                     \
    {                                                                                              \
        suite_name##_suite.next = plain_suites;                                                    \
        plain_suites = &suite_name##_suite;                                                        \
    }

/* Says what failed; the format is the test's own message, if it has one. */
__attribute__((format(printf, 4, 5))) static inline void
plain_report(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list arguments;
    plain_test_failed = true;
    fprintf(stderr, "%s:%d: failed: %s", file, line, condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

#define PLAIN_CHECK(stop, condition, text, ...)                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            plain_report(__FILE__, __LINE__, text, ": " __VA_ARGS__);                              \
            if (stop)                                                                              \
                _exit(1);                                                                          \
        }                                                                                          \
    } while (0)

#define PLAIN_COMPARE(stop, a, op, b, ...)                                                         \
    PLAIN_CHECK(stop, (a)op(b), #a " " #op " " #b, ##__VA_ARGS__)

#define PLAIN_CLOSE(a, b, epsilon) (__builtin_fabs((double)(a) - (double)(b)) <= (double)(epsilon))

#define cr_assert(condition, ...)     PLAIN_CHECK(1, condition, #condition, ##__VA_ARGS__)
#define cr_assert_not(condition, ...) PLAIN_CHECK(1, !(condition), "!" #condition, ##__VA_ARGS__)
#define cr_assert_eq(a, b, ...)       PLAIN_COMPARE(1, a, ==, b, ##__VA_ARGS__)
#define cr_assert_neq(a, b, ...)      PLAIN_COMPARE(1, a, !=, b, ##__VA_ARGS__)
#define cr_assert_lt(a, b, ...)       PLAIN_COMPARE(1, a, <, b, ##__VA_ARGS__)
#define cr_assert_leq(a, b, ...)      PLAIN_COMPARE(1, a, <=, b, ##__VA_ARGS__)
#define cr_assert_gt(a, b, ...)       PLAIN_COMPARE(1, a, >, b, ##__VA_ARGS__)
#define cr_assert_geq(a, b, ...)      PLAIN_COMPARE(1, a, >=, b, ##__VA_ARGS__)
#define cr_assert_null(a, ...)        PLAIN_COMPARE(1, a, ==, NULL, ##__VA_ARGS__)
#define cr_assert_not_null(a, ...)    PLAIN_COMPARE(1, a, !=, NULL, ##__VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...)                                                           \
    PLAIN_CHECK(1, PLAIN_CLOSE(a, b, e), #a " is about " #b, ##__VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)                                                                \
    PLAIN_CHECK(1, strcmp(a, b) == 0, #a " is the text " #b, ##__VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)                                                               \
    PLAIN_CHECK(1, strcmp(a, b) != 0, #a " is not the text " #b, ##__VA_ARGS__)
#define cr_assert_str_empty(a, ...) PLAIN_CHECK(1, (a)[0] == '\0', #a " is empty", ##__VA_ARGS__)
#define cr_assert_arr_eq(a, b, size, ...)                                                          \
    PLAIN_CHECK(1, memcmp(a, b, size) == 0, #a " equals " #b, ##__VA_ARGS__)
#define cr_assert_fail(...) PLAIN_CHECK(1, false, "reached", ##__VA_ARGS__)
#define cr_fatal            cr_assert_fail

#define cr_expect(condition, ...)     PLAIN_CHECK(0, condition, #condition, ##__VA_ARGS__)
#define cr_expect_not(condition, ...) PLAIN_CHECK(0, !(condition), "!" #condition, ##__VA_ARGS__)
#define cr_expect_eq(a, b, ...)       PLAIN_COMPARE(0, a, ==, b, ##__VA_ARGS__)
#define cr_expect_neq(a, b, ...)      PLAIN_COMPARE(0, a, !=, b, ##__VA_ARGS__)
#define cr_expect_lt(a, b, ...)       PLAIN_COMPARE(0, a, <, b, ##__VA_ARGS__)
#define cr_expect_leq(a, b, ...)      PLAIN_COMPARE(0, a, <=, b, ##__VA_ARGS__)
#define cr_expect_gt(a, b, ...)       PLAIN_COMPARE(0, a, >, b, ##__VA_ARGS__)
#define cr_expect_geq(a, b, ...)      PLAIN_COMPARE(0, a, >=, b, ##__VA_ARGS__)
#define cr_expect_null(a, ...)        PLAIN_COMPARE(0, a, ==, NULL, ##__VA_ARGS__)
#define cr_expect_not_null(a, ...)    PLAIN_COMPARE(0, a, !=, NULL, ##__VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...)                                                           \
    PLAIN_CHECK(0, PLAIN_CLOSE(a, b, e), #a " is about " #b, ##__VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)                                                                \
    PLAIN_CHECK(0, strcmp(a, b) == 0, #a " is the text " #b, ##__VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)                                                               \
    PLAIN_CHECK(0, strcmp(a, b) != 0, #a " is not the text " #b, ##__VA_ARGS__)
#define cr_expect_arr_eq(a, b, size, ...)                                                          \
    PLAIN_CHECK(0, memcmp(a, b, size) == 0, #a " equals " #b, ##__VA_ARGS__)
#define cr_expect_fail(...) PLAIN_CHECK(0, false, "reached", ##__VA_ARGS__)

#define cr_skip_test(...)                                                                          \
    do {                                                                                           \
        fprintf(stderr, "" __VA_ARGS__);                                                           \
        _exit(PLAIN_SKIPPED);                                                                      \
    } while (0)
#define cr_log_info(...)  fprintf(stderr, __VA_ARGS__)
#define cr_log_warn(...)  fprintf(stderr, __VA_ARGS__)
#define cr_log_error(...) fprintf(stderr, __VA_ARGS__)

static inline const struct plain_options *plain_suite_options(const char *name)
{
    static const struct plain_options none;
    for (const struct plain_suite *suite = plain_suites; suite != NULL; suite = suite->next)
        if (strcmp(suite->name, name) == 0)
            return &suite->options;
    return &none;
}

/* In the child: the suite's and the test's init, the test, their fini. */
static inline void plain_run_body(const struct plain_test *test)
{
    const struct plain_options *suite = plain_suite_options(test->suite);
    double timeout = test->options.timeout > 0 ? test->options.timeout : suite->timeout;
    alarm(PLAIN_PATIENCE * (timeout > 0 ? (unsigned int)timeout : PLAIN_DEFAULT_TIMEOUT));
    if (suite->init != NULL)
        suite->init();
    if (test->options.init != NULL)
        test->options.init();
    test->body();
    if (test->options.fini != NULL)
        test->options.fini();
    if (suite->fini != NULL)
        suite->fini();
}

/* True if the test passed; *crashed says whether a signal that it did not announce ended it. */
static inline bool plain_run(const struct plain_test *test, bool *crashed)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        plain_run_body(test);
        exit(plain_test_failed ? 1 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    if (WIFSIGNALED(status)) {
        *crashed = WTERMSIG(status) != test->options.signal;
        return !*crashed;
    }
    return WEXITSTATUS(status) == PLAIN_SKIPPED ||
           (test->options.signal == 0 && WEXITSTATUS(status) == test->options.exit_code);
}

int main(void)
{
    int passing = 0, failing = 0, crashing = 0;
    for (const struct plain_test *test = plain_tests; test != NULL; test = test->next) {
        bool crashed = false;
        if (test->options.disabled || plain_suite_options(test->suite)->disabled)
            continue;
        if (plain_run(test, &crashed)) {
            passing++;
            continue;
        }
        *(crashed ? &crashing : &failing) += 1;
        fprintf(stderr, "%s::%s %s\n", test->suite, test->name, crashed ? "crashed" : "failed");
    }
    fprintf(stderr, "[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: %d\n",
            passing + failing + crashing, passing, failing, crashing);
    return failing + crashing == 0 ? 0 : 1;
}

#endif
