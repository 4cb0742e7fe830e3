/*
 * A program that takes memory and frees it as its arguments say, one after the other, for tests of
 * what processes have of each other's. Knows nothing of a pool.
 *
 * Memory is counted in blocks of a 140th of the device's. Each holds words of its own, which are
 * looked at before it is freed.
 *   take=N         so many blocks more, or "took K of N" and exit status 1
 *   try=N          the same without failing: says "took K of N"
 *   free           everything
 *   free_behind=MS the same, behind a kernel of so many milliseconds that nobody waits for
 *   order=N        one block of so many shares, in a stream's order
 *   free_in_order  that one
 *   kernel=MS      launches such a kernel
 *   wait=MS        launches such a kernel, and waits for it
 *   sleep=MS
 *   touch=FILE     makes the file, with its process's number
 *   await=FILE     waits until it is there, for 30 seconds at most
 *   see            says how many blocks cuMemGetInfo sees free: "sees N"
 *   close          closes all descriptors, and has files of its own in their places
 *   churn=MS       takes, frees and checks a few blocks for so long; no allocation may fail
 *   execute        becomes another program, which sleeps for a minute
 *
 * Exit status 0; 1 where something is not as it must be.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "pool.h"

enum { SHARES = 140, BLOCKS = 256, WORDS = 64, MOST_FILES = 64 };

static struct kernels kernels;
static CUstream stream;
static CUdeviceptr mismatches, in_order;
static size_t share;
static struct {
    CUdeviceptr address;
    unsigned int value;
} blocks[BLOCKS];
static unsigned int block_count;

static bool take_block(size_t bytes)
{
    static unsigned int last_value;
    CUdeviceptr block;
    CHECK(block_count < BLOCKS);
    CUresult result = cuMemAlloc_v2(&block, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    CU(result);
    fill(&kernels, stream, block, WORDS, ++last_value);
    blocks[block_count].address = block;
    blocks[block_count++].value = last_value;
    return true;
}

static void free_block(unsigned int which)
{
    verify(&kernels, stream, blocks[which].address, WORDS, blocks[which].value, mismatches);
    CU(cuMemFree_v2(blocks[which].address));
    blocks[which] = blocks[--block_count];
}

static void free_all(const char *unused)
{
    (void)unused;
    while (block_count > 0)
        free_block(block_count - 1);
}

static void take_or_try(const char *value, bool must)
{
    unsigned long wanted = strtoul(value, NULL, 10), taken = 0;
    while (taken < wanted && take_block(share))
        taken++;
    if (must && taken < wanted)
        FAIL("took %lu of %lu", taken, wanted);
    if (!must)
        printf("took %lu of %lu\n", taken, wanted);
}

static void take_all_of(const char *value)
{
    take_or_try(value, true);
}

static void try_to_take(const char *value)
{
    take_or_try(value, false);
}

static void begin_kernel(const char *value)
{
    spin(&kernels, stream, strtoul(value, NULL, 10) * 1000000);
}

static void free_behind(const char *value)
{
    begin_kernel(value);
    free_all(NULL);
}

/* In one block, in the stream's order. */
static void take_in_order(const char *value)
{
    CU(cuMemAllocAsync(&in_order, strtoul(value, NULL, 10) * share, stream));
}

static void free_in_order(const char *unused)
{
    (void)unused;
    CU(cuMemFreeAsync(in_order, stream));
}

static void wait_for_kernel(const char *value)
{
    begin_kernel(value);
    CU(cuStreamSynchronize(stream));
}

static void sleep_for(const char *value)
{
    sleep_ms((int)strtoul(value, NULL, 10));
}

static void touch(const char *value)
{
    FILE *file = fopen(value, "we");
    CHECK(file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0 && fclose(file) == 0);
}

static void await(const char *value)
{
    for (int i = 0; access(value, F_OK) != 0; i++) {
        CHECK(i < 3000);
        sleep_ms(10);
    }
}

static void see(const char *unused)
{
    size_t left, total;
    (void)unused;
    CU(cuMemGetInfo_v2(&left, &total));
    printf("sees %zu\n", left / share);
}

/* What somebody else left open there reads and writes this program's files from now on. */
static void close_all(const char *unused)
{
    char *name = strdup("/tmp/neighbours-XXXXXX");
    int first;
    (void)unused;
    CHECK(name != NULL);
    for (int file = 3; file < 1024; file++)
        close(file);
    CHECK((first = mkstemp(name)) >= 0);
    for (int i = 0; i < MOST_FILES; i++)
        CHECK(dup(first) >= 0);
    unlink(name);
    free(name);
}

static void churn(const char *value)
{
    unsigned int random = (unsigned int)getpid();
    double end = now_ms() + (double)strtoul(value, NULL, 10);
    while (now_ms() < end) {
        random = random * 1664525u + 1013904223u;
        if (random >> 31 && block_count < 10)
            CHECK(take_block(share >> (random >> 28 & 3)));
        else if (block_count > 0)
            free_block((random >> 8) % block_count);
        if ((random >> 16) % 64 == 0)
            sleep_ms(1);
    }
    free_all(NULL);
}

static void execute(const char *unused)
{
    (void)unused;
    execl("/bin/sleep", "sleep", "60", (char *)NULL);
    FAIL("/bin/sleep cannot be executed");
}

static const struct {
    const char *name;
    void (*run)(const char *value);
} steps[] = {
    {"take", take_all_of},
    {"try", try_to_take},
    {"free", free_all},
    {"free_behind", free_behind},
    {"kernel", begin_kernel},
    {"order", take_in_order},
    {"free_in_order", free_in_order},
    {"wait", wait_for_kernel},
    {"sleep", sleep_for},
    {"touch", touch},
    {"await", await},
    {"see", see},
    {"close", close_all},
    {"churn", churn},
    {"execute", execute},
};

static void run_step(const char *argument)
{
    size_t length = strcspn(argument, "=");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (strlen(steps[i].name) == length && strncmp(argument, steps[i].name, length) == 0) {
            steps[i].run(argument[length] == '=' ? argument + length + 1 : "");
            fflush(stdout);
            return;
        }
    FAIL("%s: no such step", argument);
}

int main(int argc, char **argv)
{
    size_t left, total;
    open_primary();
    load_kernels(&kernels);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    mismatches = new_counter();
    CU(cuMemGetInfo_v2(&left, &total));
    share = total / SHARES & ~(2 * MIB - 1);
    for (int i = 1; i < argc; i++)
        run_step(argv[i]);
    free_all(NULL);
    CHECK(read_counter(mismatches) == 0);
    return 0;
}
