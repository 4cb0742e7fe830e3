/*
 * How long a program that never uses CUDA takes from its start to its end, without and with
 * preloads, which take turns. Prints, as one line of JSON, the median of each in microseconds, and
 * the median of the differences from the run without one in the same turn.
 *
 * usage: start_time ROUNDS PROGRAM PRELOAD...
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { MAX_PRELOADS = 8, MAX_ROUNDS = 10000 };

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static double run(char *program, char *variable)
{
    char *arguments[] = {program, NULL}, *environment[] = {variable, NULL};
    pid_t child;
    int status;
    double start = now_us();
    if (posix_spawn(&child, program, NULL, NULL, arguments, environment) != 0 ||
        waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "start_time: %s with %s failed\n", program, variable);
        exit(1);
    }
    return now_us() - start;
}

static int by_value(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    static double took[MAX_PRELOADS + 1][MAX_ROUNDS], more[MAX_PRELOADS + 1][MAX_ROUNDS];
    static char variables[MAX_PRELOADS + 1][5000];
    int rounds = argc > 1 ? atoi(argv[1]) : 0, preloads = argc - 3;
    if (rounds < 1 || rounds > MAX_ROUNDS || preloads < 0 || preloads > MAX_PRELOADS) {
        fprintf(stderr, "usage: start_time ROUNDS PROGRAM PRELOAD...\n");
        return 2;
    }
    strcpy(variables[0], "NO_PRELOAD=1");
    for (int i = 1; i <= preloads; i++)
        snprintf(variables[i], sizeof variables[i], "LD_PRELOAD=%s", argv[2 + i]);
    /* One round that is not counted: files are read, pages are found. */
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i <= preloads; i++) {
            double us = run(argv[2], variables[i]);
            if (round < 0)
                continue;
            took[i][round] = us;
            more[i][round] = us - took[0][round];
        }
    printf("{\"rounds\": %d, \"median_us\": [", rounds);
    for (int i = 0; i <= preloads; i++)
        printf("%s%.1f", i > 0 ? ", " : "", median(took[i], rounds));
    printf("], \"added_us\": [");
    for (int i = 1; i <= preloads; i++)
        printf("%s%.1f", i > 1 ? ", " : "", median(more[i], rounds));
    printf("]}\n");
    return 0;
}
