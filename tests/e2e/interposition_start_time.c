/*
 * How much longer a program that never uses CUDA takes with a preload than without: the two are
 * started in turn, and the fastest tenth of each compared, which nothing else has held up. Fails
 * where the difference is over a millisecond.
 *
 * usage: interposition_start_time PRELOAD PROGRAM
 */
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

#include "interposition.h"

#define RUNS 101

static double milliseconds_of(char *program, char **environment)
{
    char *arguments[] = {program, NULL};
    struct timespec before, after;
    pid_t child;
    int status;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(posix_spawn(&child, program, NULL, NULL, arguments, environment) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (double)(after.tv_sec - before.tv_sec) * 1e3 +
           (double)(after.tv_nsec - before.tv_nsec) / 1e6;
}

static int by_value(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv)
{
    static double without[RUNS], with[RUNS];
    char preload[5000];
    char *plain_environment[] = {NULL};
    char *preload_environment[] = {preload, NULL};
    CHECK(argc == 3);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[1]);
    for (int run = 0; run < RUNS; run++) {
        without[run] = milliseconds_of(argv[2], plain_environment);
        with[run] = milliseconds_of(argv[2], preload_environment);
    }
    qsort(without, RUNS, sizeof *without, by_value);
    qsort(with, RUNS, sizeof *with, by_value);
    double added = with[RUNS / 10] - without[RUNS / 10];
    if (added >= 1)
        FAIL("%.3f ms without, %.3f ms with the preload", without[RUNS / 10], with[RUNS / 10]);
    return 0;
}
