/*
 * Where every replaced function is entered: what is exported under the driver's names, and what
 * dlsym and cuGetProcAddress hand out.
 *
 * Others patch driver functions too, to learn what memory comes and goes: UCX, which MPI libraries
 * use, writes a jump over the first bytes of the address that dlsym gives it, after it has copied
 * the instructions that lay there to a place of its own. Where it does not know one of them, it
 * gives up all its caches. So each entry begins with instructions that every version of it knows,
 * that may stand anywhere, do nothing, and are as long as its longest jump (PATCHABLE_BYTES in
 * tests/e2e/libinterposition_patch.h); none of them is jumped to from elsewhere. A jump to the hook
 * follows.
 *
 * With branch protection each entry would have to begin with an instruction that such a patcher
 * does not know; the Makefile turns it off for this file, and with that for the whole object.
 */
#include "shim.h"

/* clang-format off */
#if defined(__x86_64__)
/* mov $0, %eax, which no caller has a value in; mov %rax, -8(%rsp), with an offset of 32 bits: below
 * the stack pointer everything is the called function's. 13 bytes. */
#define PATCHABLE                                                                                  \
    "    .byte 0xb8, 0, 0, 0, 0\n"                                                                 \
    "    .byte 0x48, 0x89, 0x84, 0x24, 0xf8, 0xff, 0xff, 0xff\n"
#define LEAVE "    jmp "
#define TYPE  "@function"
#elif defined(__aarch64__)
/* A register that linkers may change between any two functions. 16 bytes. */
#define PATCHABLE                                                                                  \
    "    movz w16, #0\n"                                                                           \
    "    movz w16, #0\n"                                                                           \
    "    movz w16, #0\n"                                                                           \
    "    movz w16, #0\n"
#define LEAVE "    b "
#define TYPE  "%function"
#endif

/* The hidden name is what the tables hold, so that another preload's NAME never takes its place. */
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
