/*
 * A plain program, linked with the driver, that computes in steps and takes its buffers anew in
 * each: copy to the device, two kernels, copy back.
 *
 * Arguments: steps=2000 words=262144
 */
#include "gpu.h"

static struct kernels kernels;

/* One step; returns how many words came back wrong. */
static unsigned long step(unsigned int *host, unsigned int words, unsigned int value)
{
    CUdeviceptr input, output, counter = new_counter();
    size_t bytes = words * sizeof *host;
    unsigned long wrong = 0;
    CHECK(cuMemAlloc_v2(&input, bytes));
    CHECK(cuMemAlloc_v2(&output, bytes));
    host[0] = host[words - 1] = value;
    CHECK(cuMemcpyHtoD_v2(input, host, bytes));
    fill(&kernels, NULL, output, words, value);
    verify(&kernels, NULL, output, words, value, counter);
    CHECK(cuMemcpyDtoD_v2(output, input, sizeof value));
    CHECK(cuMemcpyDtoH_v2(host, output, bytes));
    wrong += host[0] != value || host[words / 2] != value || host[words - 1] != value;
    wrong += read_counter(counter) != 0;
    CHECK(cuMemFree_v2(counter));
    CHECK(cuMemFree_v2(output));
    CHECK(cuMemFree_v2(input));
    return wrong;
}

int main(int argc, char **argv)
{
    unsigned long steps = argument(argc, argv, "steps", 2000), wrong = 0;
    unsigned int words = (unsigned int)argument(argc, argv, "words", 262144);
    unsigned int *host = calloc(words, sizeof *host);
    if (host == NULL)
        FAIL("out of memory");
    open_primary();
    load_kernels(&kernels);
    double start = now_ms();
    for (unsigned long i = 0; i < steps; i++)
        wrong += step(host, words, (unsigned int)i + 1);
    printf("linked: %.2f ms, %lu steps, %lu wrong\n", now_ms() - start, steps, wrong);
    free(host);
    return wrong == 0 ? 0 : 1;
}
