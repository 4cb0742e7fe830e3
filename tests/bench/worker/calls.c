/*
 * How often the driver is called for a pair. The counts come from ../libcounting.c, a libcuda.so.1
 * that counts and then jumps to the real one, with which the process must have been started.
 */
#include "worker.h"

enum { MAX_COUNTED = 1024 };

/* The nth function's name and how often it has been called; NULL past the last. */
__attribute__((weak)) const char *counting_driver_calls(unsigned int n, uint64_t *calls);

static unsigned int read_counts(uint64_t *counts)
{
    unsigned int n = 0;
    while (n < MAX_COUNTED && counting_driver_calls(n, &counts[n]) != NULL)
        n++;
    return n;
}

static void run_pairs(unsigned long pairs, size_t bytes)
{
    CUstream stream = shared_streams(1)[0];
    for (unsigned long i = 0; i < pairs; i++) {
        CUdeviceptr block = bench.allocator->allocate(bytes, stream);
        launch_nothing(stream);
        bench.allocator->release(block, stream);
        if (block == 0)
            FAIL("%s has no memory left", bench.allocator->name);
    }
    CU(cuStreamSynchronize(stream));
}

/* calls pairs= bytes=: the calls for so many pairs with a kernel in each, on one stream, by name.
 */
void count_calls(const struct command *command)
{
    static uint64_t before[MAX_COUNTED], after[MAX_COUNTED];
    unsigned long pairs = number(command, "pairs", 2000);
    size_t bytes = number(command, "bytes", MIB), used = 0;
    char text[4096];
    if (counting_driver_calls == NULL) {
        refuse("the driver's calls are not counted in this process");
        return;
    }
    run_pairs(1000, bytes);
    unsigned int functions = read_counts(before);
    run_pairs(pairs, bytes);
    read_counts(after);
    text[0] = '\0';
    for (unsigned int i = 0; i < functions; i++) {
        uint64_t ignored;
        if (after[i] > before[i] && used < sizeof text - 100)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\": %.1f",
                                     used > 0 ? ", " : "", counting_driver_calls(i, &ignored),
                                     (double)(after[i] - before[i]) * 1000 / (double)pairs);
    }
    answer("\"pairs\": %lu, \"calls_per_1000_pairs\": {%s}", pairs, text);
}
