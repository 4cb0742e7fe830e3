/*
 * The demonstration: a solver in the style of many real programs, which takes its temporary
 * buffers anew in every step. It knows nothing of cudapool.
 *
 * In every step it allocates a few temporaries, writes them, computes for a while, checks them and
 * frees them; a field that lives through all steps is checked at the end.
 *
 * Arguments: steps=500 kernel_us=20. Prints the time of all steps; exits 1 if a result is wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../driver_api.h"
#include "../kernels.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult check_result = (call);                                                            \
        if (check_result != CUDA_SUCCESS) {                                                        \
            fprintf(stderr, "demo: %s: CUDA error %u\n", #call, check_result);                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { LEVELS = 4, LARGEST_LEVEL_BYTES = 4 << 20, FIELD_BYTES = 4 << 20 };

/* As much of each buffer is written and checked: enough to notice, little beside the kernels. */
enum { CHECKED_WORDS = 8192 };

struct solver {
    CUfunction fill, verify, spin_then_verify;
    CUstream stream;
    CUdeviceptr field;
    CUdeviceptr mismatches;
    unsigned long long kernel_ns;
};

static void launch(const struct solver *solver, CUfunction function, void **parameters)
{
    CHECK(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, solver->stream, parameters, NULL));
}

static void write_buffer(const struct solver *solver, CUdeviceptr buffer, unsigned int value)
{
    unsigned int words = CHECKED_WORDS;
    launch(solver, solver->fill, (void *[]){&buffer, &words, &value});
}

static void compute_and_check(const struct solver *solver, CUdeviceptr buffer, unsigned int value)
{
    unsigned int words = CHECKED_WORDS;
    unsigned long long ns = solver->kernel_ns;
    CUdeviceptr mismatches = solver->mismatches;
    launch(solver, solver->spin_then_verify, (void *[]){&ns, &buffer, &words, &value, &mismatches});
}

/* The temporaries halve from level to level, as in a multigrid. */
static void step(const struct solver *solver, unsigned int number)
{
    CUdeviceptr levels[LEVELS];
    for (unsigned int i = 0; i < LEVELS; i++) {
        CHECK(cuMemAlloc_v2(&levels[i], (size_t)LARGEST_LEVEL_BYTES >> i));
        write_buffer(solver, levels[i], number + i);
    }
    write_buffer(solver, solver->field, number);
    for (unsigned int i = 0; i < LEVELS; i++) {
        compute_and_check(solver, levels[i], number + i);
        CHECK(cuMemFree_v2(levels[i]));
    }
}

static void open_solver(struct solver *solver)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, KERNELS_PTX));
    CHECK(cuModuleGetFunction(&solver->fill, module, "fill"));
    CHECK(cuModuleGetFunction(&solver->verify, module, "verify"));
    CHECK(cuModuleGetFunction(&solver->spin_then_verify, module, "spin_then_verify"));
    CHECK(cuStreamCreate(&solver->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&solver->field, FIELD_BYTES));
    CHECK(cuMemAlloc_v2(&solver->mismatches, sizeof(unsigned long long)));
    CHECK(cuMemsetD8_v2(solver->mismatches, 0, sizeof(unsigned long long)));
    CHECK(cuCtxSynchronize());
}

/* How many words of the field and of all temporaries were not what they should have been. */
static unsigned long long check_results(const struct solver *solver, unsigned int last_step)
{
    unsigned int words = CHECKED_WORDS;
    unsigned long long mismatches;
    CUdeviceptr field = solver->field, counter = solver->mismatches;
    launch(solver, solver->verify, (void *[]){&field, &words, &last_step, &counter});
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(&mismatches, counter, sizeof mismatches));
    return mismatches;
}

static double milliseconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static unsigned long argument(int argc, char **argv, const char *name, unsigned long otherwise)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
            return strtoul(argv[i] + length + 1, NULL, 0);
    return otherwise;
}

int main(int argc, char **argv)
{
    struct solver solver;
    unsigned int steps = (unsigned int)argument(argc, argv, "steps", 500);
    solver.kernel_ns = argument(argc, argv, "kernel_us", 20) * 1000;
    open_solver(&solver);
    step(&solver, 0);
    CHECK(cuCtxSynchronize());

    double start = milliseconds_now();
    for (unsigned int i = 1; i <= steps; i++)
        step(&solver, i);
    CHECK(cuStreamSynchronize(solver.stream));
    double elapsed = milliseconds_now() - start;
    unsigned long long wrong = check_results(&solver, steps);
    printf("demo: %.2f ms, %u steps, %llu wrong words\n", elapsed, steps, wrong);
    return wrong == 0 ? 0 : 1;
}
