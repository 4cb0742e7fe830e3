/*
 * Sizes that never come back: a set of live blocks of which one, by chance, is freed and replaced
 * by one of a size by chance, from 1 KiB to 64 MiB, over and over. How long a pair takes, how much
 * more than the program holds is taken from the driver at most, and what PyTorch's caching
 * allocator would have taken for the same requests, by a model of it.
 *
 * Arguments: pairs=20000 live=64 seed=1 [async] [check] [bound [percent=125]]
 *   async: in a stream's order
 *   check: fills each block's ends, and looks at them before it is freed
 *   bound: fails where more is taken than so many percent of what the program holds at most, or
 *          more than PyTorch's allocator takes
 */
#include "core/cudapool.h"
#include "gpu.h"

#pragma weak cudapool_get_bytes

enum { LIVE_MOST = 1024, WORDS = 256, PAIRS_PER_LOOK = 16 };

#define LEAST_BYTES UINT64_C(1024)
#define MOST_BYTES  (64 * (uint64_t)MIB)

static struct live {
    CUdeviceptr address;
    uint64_t bytes;
    unsigned int value;
    struct extent *extent; /* in the model */
} lives[LIVE_MOST];

static uint64_t held, most_held, most_reserved, nanoseconds;
static struct kernels kernels;
static CUstream stream;
static CUdeviceptr counter;
static bool async; /* on the stream */

/* ---- the model: requests and frees as PyTorch's allocator answers them, without a stream ---- */

struct extent {
    uint64_t bytes;
    bool is_free, is_small;
    struct extent *below, *above; /* in the same segment */
    struct extent *next;          /* of all that are free */
};

static struct extent *free_extents;
static uint64_t torch_reserved;

/* Those of the same size in any order. */
static struct extent **best_fit(uint64_t bytes, bool is_small)
{
    struct extent **best = NULL;
    for (struct extent **link = &free_extents; *link; link = &(*link)->next)
        if ((*link)->is_small == is_small && (*link)->bytes >= bytes &&
            (best == NULL || (*link)->bytes < (*best)->bytes))
            best = link;
    return best;
}

static uint64_t segment_for(uint64_t bytes)
{
    if (bytes <= MIB)
        return 2 * (uint64_t)MIB;
    if (bytes < 10 * (uint64_t)MIB)
        return 20 * (uint64_t)MIB;
    return (bytes + 2 * (uint64_t)MIB - 1) / (2 * (uint64_t)MIB) * (2 * (uint64_t)MIB);
}

static void note_free(struct extent *extent)
{
    extent->is_free = true;
    extent->next = free_extents;
    free_extents = extent;
}

static struct extent *new_extent(uint64_t bytes, bool is_small)
{
    struct extent *extent = calloc(1, sizeof *extent);
    if (extent == NULL)
        FAIL("no memory for the model");
    extent->bytes = bytes;
    extent->is_small = is_small;
    return extent;
}

static struct extent *torch_allocate(uint64_t requested)
{
    uint64_t bytes = (requested + 511) / 512 * 512;
    bool is_small = bytes <= MIB;
    struct extent **found = best_fit(bytes, is_small), *extent;
    if (found == NULL) {
        extent = new_extent(segment_for(bytes), is_small);
        torch_reserved += extent->bytes;
    } else {
        extent = *found;
        *found = extent->next;
    }
    extent->is_free = false;
    if (is_small ? extent->bytes - bytes >= 512 : extent->bytes - bytes > MIB) {
        struct extent *rest = new_extent(extent->bytes - bytes, is_small);
        rest->below = extent;
        rest->above = extent->above;
        if (rest->above != NULL)
            rest->above->below = rest;
        extent->above = rest;
        extent->bytes = bytes;
        note_free(rest);
    }
    return extent;
}

static void take_off_list(const struct extent *extent)
{
    struct extent **link = &free_extents;
    while (*link != extent)
        link = &(*link)->next;
    *link = extent->next;
}

/* The upper one of two goes into the lower one. */
static void merge(struct extent *lower, struct extent *upper)
{
    lower->bytes += upper->bytes;
    lower->above = upper->above;
    if (lower->above != NULL)
        lower->above->below = lower;
    free(upper);
}

static void torch_free(struct extent *extent)
{
    if (extent->above != NULL && extent->above->is_free) {
        take_off_list(extent->above);
        merge(extent, extent->above);
    }
    if (extent->below != NULL && extent->below->is_free) {
        extent = extent->below;
        take_off_list(extent);
        merge(extent, extent->above);
    }
    note_free(extent);
}

/* ---- the program ---- */

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void allocate(struct live *live, unsigned int *random)
{
    uint64_t span = MOST_BYTES - LEAST_BYTES + 1;
    uint64_t chance = (uint64_t)next_random(random) << 20 ^ next_random(random);
    live->bytes = LEAST_BYTES + chance % span;
    uint64_t started = now();
    if (async)
        CHECK(cuMemAllocAsync(&live->address, live->bytes, stream));
    else
        CHECK(cuMemAlloc_v2(&live->address, live->bytes));
    nanoseconds += now() - started;
    held += live->bytes;
    most_held = held > most_held ? held : most_held;
    live->extent = torch_allocate(live->bytes);
}

static void release(struct live *live)
{
    uint64_t started = now();
    if (async)
        CHECK(cuMemFreeAsync(live->address, stream));
    else
        CHECK(cuMemFree_v2(live->address));
    nanoseconds += now() - started;
    held -= live->bytes;
    torch_free(live->extent);
}

/* The first and the last words, which parts of two blocks must not share. */
static void fill_ends(struct live *live, unsigned int value)
{
    CUdeviceptr end = (live->address + live->bytes) / 4 * 4 - WORDS * 4;
    live->value = value;
    fill(&kernels, stream, live->address, WORDS, value);
    if (live->bytes >= (uint64_t)8 * WORDS)
        fill(&kernels, stream, end, WORDS, value);
}

static void look_at_ends(const struct live *live)
{
    CUdeviceptr end = (live->address + live->bytes) / 4 * 4 - WORDS * 4;
    verify(&kernels, stream, live->address, WORDS, live->value, counter);
    if (live->bytes >= (uint64_t)8 * WORDS)
        verify(&kernels, stream, end, WORDS, live->value, counter);
}

static void look_at_reserve(void)
{
    struct cudapool_bytes bytes;
    if (cudapool_get_bytes == NULL || cudapool_get_bytes(0, &bytes) != 0)
        return;
    uint64_t reserved = bytes.live + bytes.cached + bytes.pending;
    most_reserved = reserved > most_reserved ? reserved : most_reserved;
}

static int judge(unsigned long percent)
{
    double ratio = (double)most_reserved / (double)most_held;
    if (most_reserved == 0 || (ratio <= (double)percent / 100 && most_reserved <= torch_reserved))
        return 0;
    FAIL("%.3f times what the program held was reserved, and PyTorch's allocator takes %.3f", ratio,
         (double)torch_reserved / (double)most_held);
}

int main(int argc, char **argv)
{
    unsigned long pairs = argument(argc, argv, "pairs", 20000);
    unsigned long count = argument(argc, argv, "live", 64);
    unsigned int random = (unsigned int)argument(argc, argv, "seed", 1);
    bool check = asked_for(argc, argv, "check");
    unsigned long long wrong = 0;
    if (count < 1 || count > LIVE_MOST)
        FAIL("live=%lu: must be 1 to %d", count, LIVE_MOST);
    async = asked_for(argc, argv, "async");
    open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    counter = new_counter();
    for (unsigned long i = 0; i < count + pairs; i++) {
        struct live *live = i < count ? &lives[i] : &lives[next_random(&random) % count];
        if (i >= count && check)
            look_at_ends(live);
        if (i == count)
            nanoseconds = 0;
        if (i >= count)
            release(live);
        allocate(live, &random);
        if (check)
            fill_ends(live, (unsigned int)i);
        if (i < count || i % PAIRS_PER_LOOK == 0)
            look_at_reserve();
    }
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&wrong, counter, sizeof wrong));
    printf(
        "sizes%s: %.2f ms, %lu pairs of %.0f ns, %lu live: %.0f MiB held at most, %.0f reserved, "
        "%.0f by PyTorch's allocator, %llu wrong words\n",
        async ? ", in a stream's order" : "", (double)nanoseconds / 1e6, pairs,
        (double)nanoseconds / (double)pairs, count, (double)most_held / MIB,
        (double)most_reserved / MIB, (double)torch_reserved / MIB, wrong);
    if (wrong != 0)
        return 1;
    return asked_for(argc, argv, "bound") ? judge(argument(argc, argv, "percent", 125)) : 0;
}
