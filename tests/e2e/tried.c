/*
 * Programs for `cudapool try`: what they print, and how they end, depends on the pool.
 *
 * usage: tried CASE [FILE]
 *
 *   prints_early    prints what an asynchronous copy brings, right after cuMemFree and without
 *                   synchronising: it leans on the wait that the driver's free makes
 *   ends_early      the same, and says by its exit status whether the copy had come
 *   crashes_early   the same, by a signal
 *   uses_freed      copies out of memory that it has freed, and prints whether that failed
 *   outruns         frees beside kernels: without the pool each free waits for them
 *   is_held_up      waits a while whenever it gets no memory
 *   fails           fails, after it has used memory
 *
 * Some of its starts are different. FILE counts them.
 *   first FILE      its first start prints something else
 *   fourth FILE     its fourth start fails
 *   alternates FILE every other start fails
 *   waits FILE      its fourth start has a child that is deaf to SIGINT and SIGTERM; it writes the
 *                   numbers of both to FILE.running, and both wait for ever
 *   is_deaf FILE    the same, and it is deaf itself
 *
 * The first three are right at any speed only where the clock is the simulated driver's
 * (SIMCUDA_STEPPED).
 */
#include <signal.h>

#include "pool.h"

static const char *file; /* the second argument */

/* Long beside all that the program does until it reads. */
#define WORK_NS 1000000000ull

/* The word that a kernel has written some time after its launch, as a program reads it that takes
 * its memory's end for the end of the copy. */
static unsigned int read_early(void)
{
    struct kernels kernels;
    volatile unsigned int *copy;
    void *memory;

    open_primary();
    load_kernels(&kernels);
    CU(cuMemHostAlloc(&memory, sizeof *copy, 0));
    copy = memory;
    *copy = 0;
    CUstream stream = new_stream();
    CUdeviceptr source = take(MIB);
    spin(&kernels, stream, WORK_NS);
    fill(&kernels, stream, source, 1, 42);
    CU(cuMemcpyDtoHAsync_v2(memory, source, sizeof *copy, stream));
    CU(cuMemFree_v2(source));
    return *copy;
}

static void prints_early(void)
{
    printf("a result follows\nit is %u\n", read_early());
}

static void ends_early(void)
{
    if (read_early() == 42)
        return;
    fprintf(stderr, "the result is missing\n");
    exit(3);
}

static void crashes_early(void)
{
    if (read_early() != 42)
        kill(getpid(), SIGSEGV);
}

static void uses_freed(void)
{
    unsigned int found;

    open_primary();
    CUdeviceptr memory = take(MIB);
    CU(cuMemFree_v2(memory));
    CUresult answer = cuMemcpyDtoH_v2(&found, memory, sizeof found);
    printf("a copy out of freed memory %s\n", answer == CUDA_SUCCESS ? "succeeds" : "fails");
}

/* More requests than advice asks for, in a second: so long do frees wait that wait. */
static void outruns(void)
{
    struct kernels kernels;

    open_primary();
    load_kernels(&kernels);
    CUstream stream = new_stream();
    for (int i = 0; i < 120; i++) {
        CUdeviceptr memory = take(MIB);
        spin(&kernels, stream, 8000000);
        CU(cuMemFree_v2(memory));
    }
}

static void is_held_up(void)
{
    open_primary();
    for (int i = 0; i < 10; i++) {
        CUdeviceptr memory;
        if (cuMemAlloc_v2(&memory, 64 * MIB) == CUDA_SUCCESS)
            CU(cuMemFree_v2(memory));
        else
            sleep_ms(200);
    }
}

static void use_memory(void)
{
    open_primary();
    CU(cuMemFree_v2(take(MIB)));
}

static void fails(void)
{
    use_memory();
    fprintf(stderr, "one\ntwo\nthis is why\n");
    exit(3);
}

/* --- starts that are different ------------------------------------------------------------------
 */

/* How many there were, with this one. */
static long count_start(void)
{
    FILE *starts = fopen(file, "a");

    CHECK(starts != NULL && fputc('x', starts) == 'x' && fflush(starts) == 0);
    long count = ftell(starts);
    CHECK(fclose(starts) == 0);
    use_memory();
    return count;
}

static void first(void)
{
    printf("%s\n", count_start() == 1 ? "a cache is made" : "a cache is there");
}

static void fourth(void)
{
    if (count_start() != 4)
        return;
    fprintf(stderr, "the fourth start fails\n");
    exit(5);
}

static void alternates(void)
{
    exit(count_start() % 2 == 0 ? 0 : 6);
}

static void be_deaf(void)
{
    CHECK(signal(SIGINT, SIG_IGN) != SIG_ERR && signal(SIGTERM, SIG_IGN) != SIG_ERR);
}

/* The file appears under its name when it is complete. */
static void write_numbers(pid_t child)
{
    char name[4096], new_name[4096];

    snprintf(name, sizeof name, "%s.running", file);
    snprintf(new_name, sizeof new_name, "%s.new", file);
    FILE *numbers = fopen(new_name, "w");
    CHECK(numbers != NULL && fprintf(numbers, "%d %d\n", (int)getpid(), (int)child) > 0);
    CHECK(fclose(numbers) == 0 && rename(new_name, name) == 0);
}

static void fork_and_wait(bool is_deaf)
{
    if (count_start() < 4)
        return;
    be_deaf();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0 && !is_deaf)
        CHECK(signal(SIGINT, SIG_DFL) != SIG_ERR && signal(SIGTERM, SIG_DFL) != SIG_ERR);
    if (child != 0)
        write_numbers(child);
    for (;;)
        pause();
}

static void waits(void)
{
    fork_and_wait(false);
}

static void is_deaf(void)
{
    fork_and_wait(true);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"prints_early", prints_early},
        {"ends_early", ends_early},
        {"crashes_early", crashes_early},
        {"uses_freed", uses_freed},
        {"outruns", outruns},
        {"is_held_up", is_held_up},
        {"fails", fails},
        {"first", first},
        {"fourth", fourth},
        {"alternates", alternates},
        {"waits", waits},
        {"is_deaf", is_deaf},
        {NULL, NULL},
    };

    file = argc > 2 ? argv[2] : "";
    return run_case(argc, argv, cases);
}
