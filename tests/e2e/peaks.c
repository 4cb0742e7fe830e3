/*
 * Peaks that a program reads and begins anew, phase by phase.
 *
 * peaks device|streams|both   phases that take much and little, of one kind of memory or of two
 * peaks without               what the functions answer without the pool
 */
#include "pool.h"

#pragma weak cudapool_get_peaks
#pragma weak cudapool_reset_peaks

enum { BLOCKS = 12 };

static CUstream stream;

static struct cudapool_peaks peaks(void)
{
    struct cudapool_peaks found;
    CHECK(cudapool_get_peaks(0, &found) == 0);
    return found;
}

static void phase_of_device(unsigned int blocks)
{
    CUdeviceptr held[BLOCKS];
    for (unsigned int i = 0; i < blocks; i++)
        held[i] = take(4 * MIB);
    for (unsigned int i = 0; i < blocks; i++)
        CU(cuMemFree_v2(held[i]));
    CU(cuCtxSynchronize());
}

static void phase_of_streams(unsigned int blocks)
{
    CUdeviceptr held[BLOCKS];
    for (unsigned int i = 0; i < blocks; i++)
        held[i] = take_on(stream, 4 * MIB);
    for (unsigned int i = 0; i < blocks; i++)
        CU(cuMemFreeAsync(held[i], stream));
    CU(cuStreamSynchronize(stream));
}

static void phase_of_both(unsigned int blocks)
{
    phase_of_device(blocks);
    phase_of_streams(blocks);
}

static void phases(void (*phase)(unsigned int), unsigned int kinds)
{
    CHECK(open_primary() != NULL);
    stream = new_stream();
    phase(BLOCKS);
    EQUAL(kinds * BLOCKS * 4 * MIB, peaks().live);
    CHECK(peaks().reserved >= peaks().live);
    uint64_t reserved = peaks().reserved;
    /* What the pool kept serves this phase, so nobody asks the driver. */
    CHECK(cudapool_reset_peaks(0) == 0);
    EQUAL(0, peaks().live);
    EQUAL(reserved, peaks().reserved);
    phase(BLOCKS / 2);
    CHECK(peaks().live > kinds * BLOCKS / 4 * 4 * MIB);
    CHECK(peaks().live <= kinds * BLOCKS / 2 * 4 * MIB);
    EQUAL(reserved, peaks().reserved);
    /* A smaller phase leaves them. */
    uint64_t live = peaks().live;
    phase(1);
    EQUAL(live, peaks().live);
    cudapool_trim();
    CHECK(cudapool_reset_peaks(0) == 0);
    CHECK(peaks().reserved < reserved);
}

static void device(void)
{
    phases(phase_of_device, 1);
}

static void streams(void)
{
    phases(phase_of_streams, 1);
}

static void both(void)
{
    phases(phase_of_both, 2);
}

static void without(void)
{
    struct cudapool_peaks found;
    CHECK(open_primary() != NULL);
    if (!cudapool_get_peaks)
        return;
    CHECK(cudapool_get_peaks(0, &found) == -1);
    CHECK(cudapool_reset_peaks(0) == -1);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {{"device", device},
                                             {"streams", streams},
                                             {"both", both},
                                             {"without", without},
                                             {NULL, NULL}};
    return run_case(argc, argv, cases);
}
