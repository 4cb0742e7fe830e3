/*
 * A libcuda.so.1 that counts calls and jumps to the real one: for the worker's "calls" command,
 * which must see what the pool asks of the driver, on a GPU as on the simulated driver.
 *
 * In a process that finds it as libcuda.so.1 (by LD_LIBRARY_PATH), BENCH_REAL_DRIVER names the file
 * of the real one. It has the functions of tests/driver_api.def, which are all that the pool and
 * the worker use. Safe from any thread.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../driver_api.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* How often, and where to: written once, before the program starts. */
#define FUNCTION(name, parameters)                                                                 \
    HIDDEN uint64_t count_##name;                                                                  \
    HIDDEN void *real_##name;
#include "../driver_api.def"
#undef FUNCTION

#if defined(__x86_64__)
#define COUNT_AND_JUMP(name)                                                                       \
    "    endbr64\n"                                                                                \
    "    lock incq count_" name "(%rip)\n"                                                         \
    "    jmp *real_" name "(%rip)\n"
#elif defined(__aarch64__)
#define COUNT_AND_JUMP(name)                                                                       \
    "    hint #34\n"                                                                               \
    "    adrp x16, count_" name "\n"                                                               \
    "    add x16, x16, :lo12:count_" name "\n"                                                     \
    "1:  ldxr x17, [x16]\n"                                                                        \
    "    add x17, x17, #1\n"                                                                       \
    "    stxr w15, x17, [x16]\n"                                                                   \
    "    cbnz w15, 1b\n"                                                                           \
    "    adrp x16, real_" name "\n"                                                                \
    "    ldr x16, [x16, :lo12:real_" name "]\n"                                                    \
    "    br x16\n"
#endif

#define FUNCTION(name, parameters)                                                                 \
    __asm__(".text\n"                                                                              \
            ".globl " #name "\n"                                                                   \
            ".type " #name ", %function\n"                                                         \
            ".p2align 4\n" #name ":\n" COUNT_AND_JUMP(#name) ".size " #name ", . - " #name "\n");
#include "../driver_api.def"
#undef FUNCTION

static const struct {
    const char *name;
    uint64_t *count;
    void **real;
} functions[] = {
#define FUNCTION(name, parameters) {#name, &count_##name, &real_##name},
#include "../driver_api.def"
#undef FUNCTION
};

static CUresult function_is_missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

__attribute__((constructor)) static void find_the_real_driver(void)
{
    const char *path = getenv("BENCH_REAL_DRIVER");
    void *real = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (real == NULL)
        fprintf(stderr, "counting: BENCH_REAL_DRIVER: %s\n", path != NULL ? dlerror() : "not set");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = real != NULL ? dlsym(real, functions[i].name) : NULL;
        *functions[i].real = address != NULL ? address : (void *)function_is_missing;
    }
}

const char *counting_driver_calls(unsigned int n, uint64_t *calls);
const char *counting_driver_calls(unsigned int n, uint64_t *calls)
{
    if (n >= sizeof functions / sizeof *functions)
        return NULL;
    *calls = __atomic_load_n(functions[n].count, __ATOMIC_RELAXED);
    return functions[n].name;
}
