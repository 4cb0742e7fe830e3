/*
 * What pinned host memory costs, and what a fork does to it. Prints, each line a fact:
 *   pair SIZE, N threads      cuMemHostAlloc and cuMemFreeHost, ns of each pair, the median
 *                             ("kept": while another small block of the process lives)
 *   large SIZE, N threads     a mapping with huge pages, touched by so many threads and then
 *                             registered; and unregistered; us, the medians. 0 threads:
 *                             cuMemHostAlloc and cuMemFreeHost instead
 *   fork KIND, CHILD          after a fork whose child has ended (exits), has become another
 *                             program and ended (execs), or still sleeps (lives): how many words
 *                             that the parent then wrote the GPU reads otherwise, and how many that
 *                             the GPU wrote the parent does; KIND is registered, registered and
 *                             MADV_DONTFORK, or cuMemHostAlloc
 *
 * Arguments: most_mib=1024, the largest; pair_ms=120 for each kind of pair. Any outcome is one.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "gpu.h"

static CUcontext context;
static struct kernels kernels;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

/* ---- pairs ---- */

enum { MOST_THREADS = 16, SAMPLES = 4096 };

static struct {
    size_t bytes;
    double ms;
    size_t counts[MOST_THREADS];
    double ns[MOST_THREADS * SAMPLES];
} pairs;

static void make_pairs(unsigned int thread)
{
    double end;
    size_t count = 0;
    CHECK(cuCtxSetCurrent(context));
    meet();
    end = now_ms() + pairs.ms;
    for (double start = now_ms(); count < SAMPLES && start < end; count++) {
        double after;
        void *block;
        CHECK(cuMemHostAlloc(&block, pairs.bytes, 0));
        CHECK(cuMemFreeHost(block));
        after = now_ms();
        pairs.ns[thread * SAMPLES + count] = (after - start) * 1e6;
        start = after;
    }
    pairs.counts[thread] = count;
    meet();
}

static void measure_pairs(size_t bytes, unsigned int threads, const char *how)
{
    size_t count = 0;
    pairs.bytes = bytes;
    time_workers(threads, make_pairs);
    for (unsigned int t = 0; t < threads; t++)
        for (size_t i = 0; i < pairs.counts[t]; i++)
            pairs.ns[count++] = pairs.ns[t * SAMPLES + i];
    printf("fact pair %zu KiB, %u threads%s: %.0f ns (%zu pairs)\n", bytes >> 10, threads, how,
           median(pairs.ns, count), count);
    fflush(stdout);
}

static void measure_all_pairs(double ms)
{
    static const size_t sizes[] = {4096, 65536, MIB, 16 * MIB};
    static const unsigned int threads[] = {1, 4, 16};
    void *keeper = NULL;
    pairs.ms = ms;
    measure_pairs(4096, 1, "");
    CHECK(cuMemHostAlloc(&keeper, 4096, 0));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
            measure_pairs(sizes[s], threads[t], ", kept");
    CHECK(cuMemFreeHost(keeper));
}

/* ---- mappings with huge pages ---- */

enum { HUGE_PAGE = 2 << 20, MOST_ROUNDS = 5 };

static struct touched {
    char *start;
    size_t bytes;
    unsigned int threads;
} touched;

static void touch(unsigned int thread)
{
    size_t share = touched.bytes / touched.threads;
    meet();
    for (size_t i = thread * share; i < (thread + 1) * share; i += 4096)
        touched.start[i] = 1;
    meet();
}

/* Where huge pages can be; the whole mapping is told for munmap. */
static char *map_huge(size_t bytes, char **mapping)
{
    *mapping =
        mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*mapping == MAP_FAILED)
        FAIL("no mapping of %zu bytes", bytes);
    char *start = *mapping + (HUGE_PAGE - (size_t)*mapping % HUGE_PAGE) % HUGE_PAGE;
    madvise(start, bytes, MADV_HUGEPAGE);
    return start;
}

/* By so many threads; with none, the driver's own allocation. */
static char *make_large(size_t bytes, unsigned int threads, char **mapping)
{
    void *block;
    if (threads == 0) {
        CHECK(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE));
        return block;
    }
    touched = (struct touched){map_huge(bytes, mapping), bytes, threads};
    time_workers(threads, touch);
    CHECK(cuMemHostRegister_v2(touched.start, bytes, CU_MEMHOSTALLOC_PORTABLE));
    return touched.start;
}

static void unmake_large(char *start, size_t bytes, unsigned int threads, char *mapping)
{
    if (threads == 0) {
        CHECK(cuMemFreeHost(start));
        return;
    }
    CHECK(cuMemHostUnregister(start));
    munmap(mapping, bytes + HUGE_PAGE);
}

static void measure_large(size_t bytes, unsigned int threads)
{
    unsigned int rounds = bytes < 256 * MIB ? MOST_ROUNDS : 3;
    double made[MOST_ROUNDS] = {0}, unmade[MOST_ROUNDS] = {0};
    for (unsigned int i = 0; i < rounds; i++) {
        double start = now_ms();
        char *mapping = NULL, *block = make_large(bytes, threads, &mapping);
        made[i] = (now_ms() - start) * 1e3;
        start = now_ms();
        unmake_large(block, bytes, threads, mapping);
        unmade[i] = (now_ms() - start) * 1e3;
    }
    printf("fact large %zu MiB, %u threads: %.0f us, given back: %.0f us\n", bytes >> 20, threads,
           median(made, rounds), median(unmade, rounds));
    fflush(stdout);
}

/* ---- forks ---- */

enum { FORK_BYTES = 8 << 20, FORK_WORDS = FORK_BYTES / 4 };

enum child { EXITS, EXECS, LIVES, CHILDREN };
static const char *const child_names[CHILDREN] = {"exits", "execs", "lives"};

static pid_t fork_child(enum child child)
{
    pid_t pid = fork();
    if (pid < 0)
        FAIL("no child");
    if (pid > 0)
        return pid;
    alarm(20);
    if (child == EXECS)
        execlp("true", "true", (char *)NULL);
    if (child == LIVES)
        pause();
    _exit(0);
}

/* Any child but one that lives is gone when the parent writes. */
static void tell_fork(const char *kind, unsigned int *words, enum child child,
                      CUdeviceptr mismatches)
{
    CUdeviceptr device = (CUdeviceptr)(size_t)words;
    unsigned long long before = read_counter(mismatches), by_gpu, by_host = 0;
    for (unsigned int i = 0; i < FORK_WORDS; i++)
        words[i] = 1;
    pid_t pid = fork_child(child);
    if (child != LIVES)
        waitpid(pid, NULL, 0);
    for (unsigned int i = 0; i < FORK_WORDS; i++)
        words[i] = 2;
    verify(&kernels, NULL, device, FORK_WORDS, 2, mismatches);
    by_gpu = read_counter(mismatches) - before;
    fill(&kernels, NULL, device, FORK_WORDS, 3);
    CHECK(cuCtxSynchronize());
    for (unsigned int i = 0; i < FORK_WORDS; i++)
        by_host += ((volatile unsigned int *)words)[i] != 3;
    if (child == LIVES) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    printf("fact fork %s, %s: of %d words %llu the GPU reads otherwise, %llu the parent does\n",
           kind, child_names[child], FORK_WORDS, by_gpu, by_host);
    fflush(stdout);
}

static void tell_forks(void)
{
    static const char *const kinds[] = {"registered", "registered and MADV_DONTFORK",
                                        "cuMemHostAlloc"};
    CUdeviceptr mismatches = new_counter();
    for (unsigned int i = 0; i < 3 * CHILDREN; i++) {
        unsigned int kind = i / CHILDREN;
        char *mapping, *block = make_large(FORK_BYTES, kind < 2 ? 1 : 0, &mapping);
        if (kind == 1)
            madvise(block, FORK_BYTES, MADV_DONTFORK);
        tell_fork(kinds[kind], (unsigned int *)block, i % CHILDREN, mismatches);
        unmake_large(block, FORK_BYTES, kind < 2 ? 1 : 0, mapping);
    }
    CHECK(cuMemFree_v2(mismatches));
}

static const size_t large_mib[] = {2, 16, 256, 1024};

int main(int argc, char **argv)
{
    double start = now_ms();
    context = open_primary();
    load_kernels(&kernels);
    measure_all_pairs((double)argument(argc, argv, "pair_ms", 120));
    size_t most_mib = argument(argc, argv, "most_mib", 1024);
    for (size_t i = 0; i < sizeof large_mib / sizeof *large_mib; i++)
        for (unsigned int threads = 0; threads <= 8 && large_mib[i] <= most_mib;
             threads += threads == 0 ? 1 : 7)
            measure_large(large_mib[i] * MIB, threads);
    tell_forks();
    printf("host_facts: %.3f ms\n", now_ms() - start);
    return 0;
}
