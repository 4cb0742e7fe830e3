/*
 * Managed memory on a device of 1 GiB that the pool holds much of: it never fails for want of room,
 * so the room has to be made before.
 */
#include "pool.h"

enum { LIVE = 400, BLOCK = 100, BLOCKS = 4 };

static CUdeviceptr live;

/* 400 MiB that the program holds, and as many, in blocks of 100, that it has freed. */
static void free_much(void)
{
    CUdeviceptr blocks[BLOCKS];
    open_primary();
    live = take(LIVE * MIB);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = take(BLOCK * MIB);
    for (int i = 0; i < BLOCKS; i++)
        CU(cuMemFree_v2(blocks[i]));
    CU(cuCtxSynchronize());
}

static uint64_t kept(void)
{
    return has_pool() ? pool_bytes().cached + pool_bytes().pending : 0;
}

static CUdeviceptr take_managed(size_t bytes)
{
    CUdeviceptr address;
    CU(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
    return address;
}

/* All of it has room, and no more was given back than that takes. */
static void room_is_made(void)
{
    free_much();
    CUdeviceptr managed = take_managed(500 * MIB);
    EQUAL(500 * MIB, simcuda_managed_on_devices());
    if (has_pool())
        EQUAL(BLOCK * MIB, kept());
    CU(cuMemFree_v2(managed));
    CU(cuMemFree_v2(live));
}

static void room_is_there(void)
{
    free_much();
    uint64_t before = kept();
    take_managed(100 * MIB);
    EQUAL(before, kept());
    EQUAL(100 * MIB, simcuda_managed_on_devices());
}

/* Many small ones; nobody is asked about each. */
static void room_for_many(void)
{
    free_much();
    uint64_t asked = simcuda_calls("cuMemGetInfo_v2");
    for (int i = 0; i < 250; i++)
        take_managed(2 * MIB);
    EQUAL(500 * MIB, simcuda_managed_on_devices());
    /* And the housekeeper asks now and then. */
    if (simcuda_calls("cuMemGetInfo_v2") > asked + 250 / 8 + 4)
        FAIL("asked %llu times", (unsigned long long)(simcuda_calls("cuMemGetInfo_v2") - asked));
}

/* More than the device has is given out, as ever. */
static void more_than_there_is(void)
{
    free_much();
    take_managed(2048 * MIB);
    EQUAL(0, kept());
    EQUAL((1024 - LIVE) * MIB, simcuda_managed_on_devices());
}

/* What is pending is not waited for, as the driver would not wait. */
static void pending_is_left(void)
{
    struct kernels kernels;
    open_primary();
    load_kernels(&kernels);
    CUstream stream = new_stream();
    CUdeviceptr block = take(80 * MIB);
    struct gate gate = close_gate(&kernels, stream);
    CHECK(has_pool()); /* without it this free waits for the kernel, which waits for us */
    CU(cuMemFree_v2(block));
    take_managed(960 * MIB);
    EQUAL(80 * MIB, kept());
    open_gate(gate);
    CU(cuStreamSynchronize(stream));
}

/* It is known to be over as soon as somebody asks. */
static void pending_that_is_over(void)
{
    struct kernels kernels;
    open_primary();
    load_kernels(&kernels);
    CUstream stream = new_stream();
    CUdeviceptr block = take(80 * MIB);
    spin(&kernels, stream, 20000000);
    CU(cuMemFree_v2(block));
    CU(cuStreamSynchronize(stream));
    take_managed(960 * MIB);
    EQUAL(960 * MIB, simcuda_managed_on_devices());
}

static void stream_ordered_too(void)
{
    open_primary();
    CUstream stream = new_stream();
    CUdeviceptr block = take_on(stream, 300 * MIB);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    take_managed(800 * MIB);
    EQUAL(800 * MIB, simcuda_managed_on_devices());
}

/* What is freed later is not kept either, where managed memory may be touched instead; and again
 * once that is gone. */
static void freed_later(void)
{
    open_primary();
    CUdeviceptr managed = take_managed(700 * MIB);
    for (int again = 0; again < 2; again++) {
        CUdeviceptr blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++)
            blocks[i] = take(BLOCK * MIB);
        for (int i = 0; i < BLOCKS; i++)
            CU(cuMemFree_v2(blocks[i]));
        CU(cuCtxSynchronize());
        CU(cuMemFree_v2(take(40 * MIB)));
        CU(cuCtxSynchronize());
        if (again == 0)
            EQUAL(700 * MIB, simcuda_managed_on_devices());
        else if (has_pool())
            CHECK(kept() >= BLOCKS * BLOCK * MIB);
        if (again == 0)
            CU(cuMemFree_v2(managed));
    }
}

/* What the driver itself needs is left out of the sum: some 40 MiB here. */
static void freed_later_in_a_streams_order(void)
{
    open_primary();
    CUstream stream = new_stream();
    take_managed(640 * MIB);
    CUdeviceptr blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = take_on(stream, BLOCK * MIB);
    for (int i = 0; i < BLOCKS; i++)
        CU(cuMemFreeAsync(blocks[i], stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemFreeAsync(take_on(stream, 40 * MIB), stream));
    CU(cuStreamSynchronize(stream));
    EQUAL(640 * MIB, simcuda_managed_on_devices());
}

/* With the context goes its managed memory. */
static void ended_context(void)
{
    open_primary();
    take_managed(700 * MIB);
    CU(cuDevicePrimaryCtxReset_v2(0));
    free_much();
    CU(cuMemFree_v2(take(40 * MIB)));
    CHECK(!has_pool() || kept() >= BLOCKS * BLOCK * MIB);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"room_is_made", room_is_made},
        {"room_is_there", room_is_there},
        {"room_for_many", room_for_many},
        {"more_than_there_is", more_than_there_is},
        {"pending_is_left", pending_is_left},
        {"pending_that_is_over", pending_that_is_over},
        {"stream_ordered_too", stream_ordered_too},
        {"freed_later", freed_later},
        {"freed_later_in_a_streams_order", freed_later_in_a_streams_order},
        {"ended_context", ended_context},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
