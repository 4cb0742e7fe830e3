/*
 * The entries of all replaced functions, and the lookups that hand them to the program.
 *
 * A program reaches the driver in three ways:
 * - its own PLT, which binds to this object's exports
 * - dlsym (dlsym.c sends the names of replaced functions here)
 * - cuGetProcAddress, which is replaced itself
 * For the last two the real resolver is asked first. Its answer stands unless it is the driver's
 * address of a replaced function. So no table of names and API versions is needed: unknown
 * functions pass through, and a second libcuda in the process is left alone.
 *
 * Others patch driver functions too, to learn which memory is allocated and freed. UCX, which MPI
 * libraries use, writes a jump over the first bytes of the address that dlsym gives it. Before that
 * it copies the instructions there to a place of its own. Where it does not know one of them, it
 * gives up all its caches. So each entry begins with instructions that every version of UCX knows,
 * that may stand anywhere and that do nothing. They are as long as UCX's longest jump
 * (PATCHABLE_BYTES in tests/e2e/libinterposition_patch.h), and nothing else jumps to them. A jump
 * to the hook follows.
 *
 * With branch protection each entry would have to begin with an instruction that such a patcher
 * does not know. The Makefile turns it off for this file, and with that for the whole object.
 */
#include "entries.h"

#include "hooks.h"
#include "lookup.h"
#include "real_driver.h"

/* clang-format off */
#if defined(__x86_64__)
/* mov $0, %eax, which holds no value of a caller's; mov %rax, -8(%rsp), with a 32-bit offset.
 * Memory below the stack pointer belongs to the called function. 13 bytes. */
#define PATCHABLE                                                                                  \
    "    .byte 0xb8, 0, 0, 0, 0\n"                                                                 \
    "    .byte 0x48, 0x89, 0x84, 0x24, 0xf8, 0xff, 0xff, 0xff\n"
#define LEAVE "    jmp "
#define TYPE  "@function"
#elif defined(__aarch64__)
/* w16 is a register that linkers may change between any two functions. 16 bytes. */
#define PATCHABLE                                                                                  \
    "    movz w16, #0\n"                                                                           \
    "    movz w16, #0\n"                                                                           \
    "    movz w16, #0\n"                                                                           \
    "    movz w16, #0\n"
#define LEAVE "    b "
#define TYPE  "%function"
#endif

/* The tables hold the hidden name entry_NAME, so that another preload's NAME never takes its
 * place. */
#define ENTRY_POINT(name, parameters)                                                              \
    __asm__(".text\n"                                                                              \
            ".globl " #name "\n"                                                                   \
            ".globl entry_" #name "\n"                                                             \
            ".hidden entry_" #name "\n"                                                            \
            ".type " #name ", " TYPE "\n"                                                          \
            ".type entry_" #name ", " TYPE "\n"                                                    \
            ".p2align 4\n"                                                                         \
            #name ":\n"                                                                            \
            "entry_" #name ":\n"                                                                   \
            ".cfi_startproc\n"                                                                     \
            PATCHABLE                                                                              \
            LEAVE "hook_" #name "\n"                                                               \
            ".cfi_endproc\n"                                                                       \
            ".size " #name ", . - " #name "\n"                                                     \
            ".size entry_" #name ", . - entry_" #name "\n");
#include "entry_points.def"
#undef ENTRY_POINT
/* clang-format on */

#define ENTRY_POINT(name, parameters) HIDDEN CUresult entry_##name parameters;
#include "entry_points.def"
#undef ENTRY_POINT

static void *const entries[ENTRY_COUNT] = {
#define ENTRY_POINT(name, parameters) [ENTRY_##name] = (void *)entry_##name,
#include "entry_points.def"
#undef ENTRY_POINT
};

/*
 * The program's own lookup comes last, so that dlerror speaks of it. It may find our export, by a
 * handle of the whole program. The program gets that export only if it would have found the
 * function in a later object without us.
 */
void *dlsym_of_driver(void *handle, const char *name)
{
    int entry = entry_of_name(name);
    const void *address = driver_address((enum entry)entry);
    void *answer = next_dlsym()(handle, name);
    if (answer == NULL) {
        return NULL;
    }
    if (answer == entries[entry]) {
        return find_behind_us(name) != NULL ? answer : NULL;
    }
    if (address != NULL && answer == address) {
        return entries[entry];
    }
    return answer;
}

/* Replaces the address that a successful cuGetProcAddress hands to the program. */
static void replace(void **function)
{
    if (function == NULL || *function == NULL) {
        return;
    }
    int entry = entry_of_address(*function);
    if (entry != ENTRY_NONE) {
        *function = entries[entry];
    }
}

HOOK(cuGetProcAddress, (const char *symbol, void **function, int version, cuuint64_t flags))
{
    CUresult result = real_driver()->cuGetProcAddress(symbol, function, version, flags);
    if (result == CUDA_SUCCESS) {
        replace(function);
    }
    return result;
}

HOOK(cuGetProcAddress_v2, (const char *symbol, void **function, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status))
{
    CUresult result = real_driver()->cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS) {
        replace(function);
    }
    return result;
}
