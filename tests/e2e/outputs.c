/*
 * A program whose reports are looked at: it takes memory of each kind.
 *
 * usage: outputs [device=BLOCKS] [ordered=BLOCKS] [pinned=BLOCKS] [managed=BLOCKS] [sizes=COUNT]
 *                [physical=BLOCKS] [wait] [exit=STATUS | _exit | abort]
 *
 * So many blocks of 1 MiB of each kind are allocated, and then freed; sizes: COUNT blocks of 1 MiB,
 * 2 MiB and so on, one after the other; physical: blocks of 32 MiB that are kept. wait: prints
 * "ready PID" and waits for the end of stdin.
 */
#include <sys/resource.h>

#include "pool.h"

static unsigned number(const char *text)
{
    char *rest;
    unsigned long value = strtoul(text, &rest, 10);
    CHECK(*text != '\0' && *rest == '\0' && value <= 10000);
    return (unsigned)value;
}

static void use_device(unsigned blocks)
{
    CUdeviceptr *all = calloc(blocks, sizeof *all);
    for (unsigned i = 0; i < blocks; i++)
        all[i] = take(MIB);
    for (unsigned i = 0; i < blocks; i++)
        CU(cuMemFree_v2(all[i]));
    free(all);
}

static void use_ordered(unsigned blocks)
{
    CUdeviceptr *all = calloc(blocks, sizeof *all);
    CUstream stream = new_stream();
    for (unsigned i = 0; i < blocks; i++)
        all[i] = take_on(stream, MIB);
    for (unsigned i = 0; i < blocks; i++)
        CU(cuMemFreeAsync(all[i], stream));
    CU(cuStreamSynchronize(stream));
    free(all);
}

static void use_pinned(unsigned blocks)
{
    void **all = calloc(blocks, sizeof *all);
    for (unsigned i = 0; i < blocks; i++)
        CU(cuMemHostAlloc(&all[i], MIB, 0));
    for (unsigned i = 0; i < blocks; i++)
        CU(cuMemFreeHost(all[i]));
    free(all);
}

static void use_managed(unsigned blocks)
{
    for (unsigned i = 0; i < blocks; i++) {
        CUdeviceptr block;
        CU(cuMemAllocManaged(&block, MIB, CU_MEM_ATTACH_GLOBAL));
        CU(cuMemFree_v2(block));
    }
}

/* Kept until the process ends, as a context's end frees none of it. */
static void take_physical(unsigned blocks)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemGenericAllocationHandle handle;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (unsigned i = 0; i < blocks; i++)
        CU(cuMemCreate(&handle, 32 * MIB, &properties, 0));
}

static void use_sizes(unsigned sizes)
{
    for (unsigned i = 1; i <= sizes; i++)
        CU(cuMemFree_v2(take(i * MIB)));
}

static void wait_for_stdin(void)
{
    char nothing[64];
    printf("ready %ld\n", (long)getpid());
    fflush(stdout);
    while (read(STDIN_FILENO, nothing, sizeof nothing) > 0)
        continue;
}

static const struct part {
    const char *name;
    void (*use)(unsigned);
} parts[] = {{"device=", use_device},   {"ordered=", use_ordered},    {"pinned=", use_pinned},
             {"managed=", use_managed}, {"physical=", take_physical}, {"sizes=", use_sizes}};

static void take_argument(const char *argument)
{
    static const struct rlimit no_core = {0, 0};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(argument, parts[i].name, strlen(parts[i].name)) == 0) {
            parts[i].use(number(argument + strlen(parts[i].name)));
            return;
        }
    if (strcmp(argument, "wait") == 0)
        wait_for_stdin();
    else if (strncmp(argument, "exit=", 5) == 0)
        exit((int)number(argument + 5));
    else if (strcmp(argument, "_exit") == 0)
        _exit(0);
    else if (strcmp(argument, "abort") == 0 && setrlimit(RLIMIT_CORE, &no_core) == 0)
        abort();
    /* Other words are part of the command that reports show. */
}

int main(int argc, char **argv)
{
    CUcontext context;
    CU(cuInit(0));
    CU(cuCtxCreate_v2(&context, 0, 0));
    for (int i = 1; i < argc; i++)
        take_argument(argv[i]);
    return 0;
}
