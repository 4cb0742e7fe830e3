/*
 * The kernels that the simulated driver knows, by name: those of tests/kernels.ptx, which says what
 * they do. They read and write memory at the end of their time.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct kernel {
    const char *name;
    unsigned int argument_count;
    unsigned char argument_bytes[5];
    void (*describe)(struct work *work, const uint64_t *arguments);
};

/* Filled by unlocked code, so the lock is taken to ask what may be touched. */
static bool may_access(uint64_t address, uint64_t bytes)
{
    bool may;
    pthread_mutex_lock(&sim.lock);
    may = device_may_access(address, bytes);
    pthread_mutex_unlock(&sim.lock);
    return may && address % 4 == 0;
}

static CUresult fill_words(const struct work *work)
{
    uint32_t *words = (uint32_t *)(uintptr_t)work->kernel.target;
    if (!may_access(work->kernel.target, (uint64_t)work->kernel.words * 4))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint32_t i = 0; i < work->kernel.words; i++)
        words[i] = work->kernel.value;
    return CUDA_SUCCESS;
}

static CUresult verify_words(const struct work *work)
{
    const uint32_t *words = (const uint32_t *)(uintptr_t)work->kernel.target;
    uint64_t mismatches = 0;
    if (!may_access(work->kernel.target, (uint64_t)work->kernel.words * 4) ||
        !may_access(work->kernel.mismatches, 8))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint32_t i = 0; i < work->kernel.words; i++)
        mismatches += words[i] != work->kernel.value;
    if (mismatches > 0)
        *(uint64_t *)(uintptr_t)work->kernel.mismatches += mismatches;
    return CUDA_SUCCESS;
}

static CUresult set_one_flag(const struct work *work)
{
    if (!may_access(work->kernel.target, 4))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    __atomic_store_n((uint32_t *)(uintptr_t)work->kernel.target, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static void describe_spin(struct work *work, const uint64_t *arguments)
{
    work->how = TAKES_NS;
    work->ns = arguments[0];
}

static void describe_fill(struct work *work, const uint64_t *arguments)
{
    work->effect = fill_words;
    work->kernel.target = arguments[0];
    work->kernel.words = (uint32_t)arguments[1];
    work->kernel.value = (uint32_t)arguments[2];
    work_touches(work, arguments[0], arguments[1] * 4, true);
}

static void describe_verify(struct work *work, const uint64_t *arguments)
{
    work->effect = verify_words;
    work->kernel.target = arguments[0];
    work->kernel.words = (uint32_t)arguments[1];
    work->kernel.value = (uint32_t)arguments[2];
    work->kernel.mismatches = arguments[3];
    work_touches(work, arguments[0], arguments[1] * 4, false);
    work_touches(work, arguments[3], 8, true);
}

static void describe_spin_then_verify(struct work *work, const uint64_t *arguments)
{
    describe_spin(work, arguments);
    describe_verify(work, arguments + 1);
}

static void describe_wait_flag(struct work *work, const uint64_t *arguments)
{
    work->how = WAITS_FOR_FLAG;
    work->flag = arguments[0];
    work_touches(work, arguments[0], 4, false);
}

static void describe_set_flag(struct work *work, const uint64_t *arguments)
{
    work->effect = set_one_flag;
    work->kernel.target = arguments[0];
    work_touches(work, arguments[0], 4, true);
}

static const struct kernel kernels[] = {
    {"spin", 1, {8}, describe_spin},
    {"fill", 3, {8, 4, 4}, describe_fill},
    {"verify", 4, {8, 4, 4, 8}, describe_verify},
    {"spin_then_verify", 5, {8, 8, 4, 4, 8}, describe_spin_then_verify},
    {"wait_flag", 1, {8}, describe_wait_flag},
    {"set_flag", 1, {8}, describe_set_flag},
};

const struct kernel *kernel_named(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

static void read_argument(uint64_t *argument, const void *from, size_t bytes)
{
    uint32_t narrow;
    if (bytes == 8) {
        memcpy(argument, from, 8);
        return;
    }
    memcpy(&narrow, from, 4);
    *argument = narrow;
}

/* The arguments in one buffer, each at its own alignment. */
static const char *argument_buffer(void **extra)
{
    const char *buffer = NULL;
    for (; extra != NULL && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
    return buffer;
}

CUresult kernel_work(const struct kernel *kernel, void **parameters, void **extra,
                     struct work *work)
{
    const char *buffer = parameters == NULL ? argument_buffer(extra) : NULL;
    uint64_t arguments[5];
    size_t offset = 0;
    if (parameters == NULL && buffer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < kernel->argument_count; i++) {
        size_t bytes = kernel->argument_bytes[i];
        offset = round_up(offset, bytes);
        read_argument(&arguments[i], parameters != NULL ? parameters[i] : buffer + offset, bytes);
        offset += bytes;
    }
    *work = (struct work){
        .how = TAKES_NO_TIME, .type = CU_GRAPH_NODE_TYPE_KERNEL, .name = kernel->name};
    kernel->describe(work, arguments);
    if (work->how == WAITS_FOR_FLAG && !device_may_access(work->flag, 4))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
