/*
 * A program that does what it is told with one kind of memory, and counts for itself what came of
 * it: settings_effects.sh runs it under two values of a setting.
 *
 *   effects device|stream_ordered|host STEP...
 *
 *   take=BYTES[*COUNT]   so many blocks, each of which may be refused
 *   use=BYTES[*COUNT]    the same with a short kernel on each, freed at once
 *   free[=COUNT]         all blocks, or so many, in the order in which they were taken
 *   busy, idle           a kernel runs on the first stream until idle ends it
 *   sync                 waits for the context
 *   launch=US            a kernel on the current stream that runs so long
 *   on=STREAM            the stream of the steps after it, 0 or 1
 *   behind               says "behind" if the next step's call waited for the kernel of busy
 *   nap=MS               looks at nothing so long
 *   kept                 says "kept" if the device's memory pool has more than is in use
 *   mapped               says "mapped" if memory was registered with the driver
 *   back=MS              says "back" once the driver has everything back, so long at most
 *
 * At the end it prints "asked N held KIB refused N", and what was said: how often the driver was
 * asked for memory, what it had given and not got back, and how many blocks were refused.
 */
#include "pool.h"

enum { BLOCKS = 256 };

static const char *kind;
static struct kernels kernels;
static CUstream streams[2], stream;
static CUdeviceptr blocks[BLOCKS];
static unsigned taken, refused;
static char said[64];
static struct gate gate;

static bool is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static uint64_t asked(void)
{
    return simcuda_calls("cuMemAlloc_v2") + simcuda_calls("cuMemAllocFromPoolAsync") +
           simcuda_calls("cuMemAllocAsync") + simcuda_calls("cuMemHostAlloc") +
           simcuda_calls("cuMemHostRegister_v2");
}

static uint64_t held(void)
{
    return is("host") ? simcuda_live_host_bytes() : simcuda_live_bytes();
}

static void say(const char *word)
{
    size_t length = strlen(said);
    snprintf(said + length, sizeof said - length, " %s", word);
}

/* --- whether a call waits for the kernel: that one ends once the call has returned, or four
 * seconds later */

static _Atomic bool has_returned, has_ended;

static void *end_kernel(void *unused)
{
    for (int i = 0; i < 300 && !has_returned; i++)
        sleep_ms(10);
    has_ended = !has_returned;
    open_gate(gate);
    return unused;
}

/* --- steps
 * -------------------------------------------------------------------------------------------- */

static void take_block(size_t bytes)
{
    CUdeviceptr address = 0;
    void *memory = NULL;
    CUresult result = is("device")           ? cuMemAlloc_v2(&address, bytes)
                      : is("stream_ordered") ? cuMemAllocAsync(&address, bytes, stream)
                                             : cuMemHostAlloc(&memory, bytes, 0);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(taken < BLOCKS);
    if (result == CUDA_SUCCESS)
        blocks[taken++] = is("host") ? (CUdeviceptr)(uintptr_t)memory : address;
    else
        refused++;
}

static void free_blocks(unsigned count)
{
    CHECK(count <= taken);
    for (unsigned i = 0; i < count; i++)
        if (is("device"))
            CU(cuMemFree_v2(blocks[i]));
        else if (is("stream_ordered"))
            CU(cuMemFreeAsync(blocks[i], stream));
        else
            CU(cuMemFreeHost((void *)(uintptr_t)blocks[i]));
    taken -= count;
    memmove(blocks, blocks + count, taken * sizeof *blocks);
}

static void take_blocks(const char *what, bool used)
{
    char *rest;
    size_t bytes = strtoull(what, &rest, 10);
    if (*rest == 'K' || *rest == 'M')
        bytes *= *rest++ == 'K' ? 1024 : MIB;
    for (unsigned long count = *rest == '*' ? strtoul(rest + 1, NULL, 10) : 1; count > 0; count--) {
        take_block(bytes);
        if (used) {
            spin(&kernels, stream, 1000);
            free_blocks(taken);
        }
    }
}

static void look_what_is_kept(void)
{
    CUmemoryPool pool;
    uint64_t reserved, used;
    CU(cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    if (reserved > used)
        say("kept");
}

static void await_return(const char *ms, uint64_t before)
{
    for (long i = strtol(ms, NULL, 10) / 10; i > 0 && held() > before; i--)
        sleep_ms(10);
    if (held() <= before)
        say("back");
}

static void step(const char *name, const char *value, uint64_t before)
{
    if (strcmp(name, "take") == 0)
        take_blocks(value, false);
    else if (strcmp(name, "use") == 0)
        take_blocks(value, true);
    else if (strcmp(name, "free") == 0)
        free_blocks(*value != '\0' ? (unsigned)strtoul(value, NULL, 10) : taken);
    else if (strcmp(name, "busy") == 0)
        close_this_gate(gate, &kernels, streams[0]);
    else if (strcmp(name, "idle") == 0)
        open_gate(gate);
    else if (strcmp(name, "launch") == 0)
        spin(&kernels, stream, 1000 * strtoull(value, NULL, 10));
    else if (strcmp(name, "on") == 0)
        stream = streams[*value - '0'];
    else if (strcmp(name, "nap") == 0)
        sleep_ms(strtol(value, NULL, 10));
    else if (strcmp(name, "mapped") == 0 && simcuda_calls("cuMemHostRegister_v2") > 0)
        say("mapped");
    else if (strcmp(name, "kept") == 0)
        look_what_is_kept();
    else if (strcmp(name, "back") == 0)
        await_return(value, before);
    else
        CHECK(strcmp(name, "sync") == 0 || strcmp(name, "mapped") == 0);
    if (strcmp(name, "idle") == 0 || strcmp(name, "sync") == 0)
        CU(cuCtxSynchronize());
}

static void watched_step(const char *name, const char *value, uint64_t before)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end_kernel, NULL) == 0);
    step(name, value, before);
    has_returned = true;
    pthread_join(thread, NULL);
    if (has_ended)
        say("behind");
}

int main(int argc, char **argv)
{
    bool watched = false;
    CHECK(argc > 2);
    kind = argv[1];
    open_primary();
    load_kernels(&kernels);
    for (int i = 0; i < 2; i++)
        streams[i] = new_stream();
    stream = streams[0];
    gate = new_gate();
    uint64_t asked_before = asked(), held_before = held();
    for (int i = 2; i < argc; i++) {
        char *name = strtok(argv[i], "="), *value = strtok(NULL, "");
        if (strcmp(name, "behind") == 0) {
            watched = true;
            continue;
        }
        (watched ? watched_step : step)(name, value != NULL ? value : "", held_before);
        watched = false;
    }
    printf("asked %llu held %llu refused %u%s\n", (unsigned long long)(asked() - asked_before),
           (unsigned long long)(held() - held_before) / 1024, refused, said);
    open_gate(gate);
    fflush(stdout);
    _exit(0);
}
