/*
 * Short programs: how long a process that uses CUDA takes from its start to its first block and its
 * end, and what an allocation costs that the pool has nothing for. It starts itself over and over,
 * without and with the preload object in turn, and prints medians of each.
 *
 * Arguments: preload=FILE runs=11. (child: what it starts.)
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <sys/wait.h>

#include "gpu.h"

enum { SIZES = 96, SAME = 512, MAX_RUNS = 101, COLUMNS = 5 };

static const char *const names[COLUMNS] = {
    "process, start to end, ms",
    "first cuInit to first free, ms",
    "a new size, allocated and freed, us",
    "512 blocks of 64 KiB, an allocation, us",
    "the same, a free, us",
};

/* Eight to a doubling, from 512 bytes on, as the pool's buckets are. */
static size_t size_of(unsigned int i)
{
    return (size_t)(64 * (8 + i % 8)) << i / 8;
}

/* Prints its values; the first one is the parent's to measure. */
static int be_the_child(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr block, blocks[SAME];
    double values[COLUMNS] = {0}, start = now_ms();
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&block, MIB));
    CHECK(cuMemFree_v2(block));
    values[1] = now_ms() - start;

    start = now_ms();
    for (unsigned int i = 0; i < SIZES; i++) {
        CHECK(cuMemAlloc_v2(&block, size_of(i)));
        CHECK(cuMemFree_v2(block));
    }
    values[2] = (now_ms() - start) * 1e3 / SIZES;

    start = now_ms();
    for (unsigned int i = 0; i < SAME; i++)
        CHECK(cuMemAlloc_v2(&blocks[i], 64 << 10));
    values[3] = (now_ms() - start) * 1e3 / SAME;
    start = now_ms();
    for (unsigned int i = 0; i < SAME; i++)
        CHECK(cuMemFree_v2(blocks[i]));
    values[4] = (now_ms() - start) * 1e3 / SAME;
    for (int i = 0; i < COLUMNS; i++)
        printf("%.4f ", values[i]);
    printf("\n");
    return 0;
}

extern char **environ;

/* The environment of the child: this one's, with the preload in the first place or without. */
static char **environment_with(const char *preload)
{
    static char *variables[4096], variable[4200];
    size_t count = 0;
    if (preload) {
        snprintf(variable, sizeof variable, "LD_PRELOAD=%s", preload);
        variables[count++] = variable;
    }
    for (char **one = environ; *one && count < sizeof variables / sizeof *variables - 1; one++)
        if (strncmp(*one, "LD_PRELOAD=", 11) != 0)
            variables[count++] = *one;
    variables[count] = NULL;
    return variables;
}

static void run(char *program, const char *preload, double values[COLUMNS])
{
    char child_word[] = "child", *arguments[] = {program, child_word, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], status;
    pid_t child;
    if (pipe(ends) != 0)
        FAIL("no pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    double start = now_ms();
    if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments,
                    environment_with(preload)) != 0)
        FAIL("cannot start a process");
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    for (int i = 0; i < COLUMNS; i++)
        if (!output || fscanf(output, "%lf", &values[i]) != 1)
            FAIL("the child has said nothing");
    if (waitpid(child, &status, 0) != child || status != 0)
        FAIL("the child has failed");
    values[0] = now_ms() - start;
    fclose(output);
    posix_spawn_file_actions_destroy(&actions);
}

static int by_value(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv)
{
    static double plain[COLUMNS][MAX_RUNS], pool[COLUMNS][MAX_RUNS];
    const char *preload = NULL;
    unsigned long runs = argument(argc, argv, "runs", 11);
    if (asked_for(argc, argv, "child"))
        return be_the_child();
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "preload=", 8) == 0)
            preload = argv[i] + 8;
    if (!preload || runs < 1 || runs > MAX_RUNS)
        FAIL("usage: first preload=FILE [runs=1..%d]", MAX_RUNS);
    for (unsigned long i = 0; i < runs; i++) {
        double values[2][COLUMNS];
        run(argv[0], i % 2 ? preload : NULL, values[i % 2]);
        run(argv[0], i % 2 ? NULL : preload, values[1 - i % 2]);
        for (int j = 0; j < COLUMNS; j++) {
            plain[j][i] = values[0][j];
            pool[j][i] = values[1][j];
        }
    }
    for (int j = 0; j < COLUMNS; j++) {
        qsort(plain[j], runs, sizeof plain[j][0], by_value);
        qsort(pool[j], runs, sizeof pool[j][0], by_value);
        printf("%-42s plain %10.4f, pool %10.4f, more %9.4f\n", names[j], plain[j][runs / 2],
               pool[j][runs / 2], pool[j][runs / 2] - plain[j][runs / 2]);
    }
    printf("first: %.3f ms, a process with the pool, medians of %lu\n", pool[0][runs / 2], runs);
    return 0;
}
