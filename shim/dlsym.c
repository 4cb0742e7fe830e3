/*
 * The interposed dlsym, which runs in every process from its first lookup on, with or without CUDA.
 *
 * The program, libraries and other preloads call it, from any thread, before any constructor and
 * before a sanitizer's run time is ready. So nothing here is instrumented, calls libc or takes a
 * lock, except the first call's dlvsym (lookup.c).
 *
 * dlsym must know its caller: dlsym(RTLD_NEXT, ...) searches the objects after the one in which the
 * return address lies. Therefore dlsym is an assembly stub. It asks dlsym_target where to go,
 * restores the arguments and leaves by a jump. Whatever it jumps to sees the caller's own return
 * address.
 */
#include <dlfcn.h>
#include <stddef.h>

#include "entries.h"
#include "lookup.h"
#include "real_driver.h"

HIDDEN dlsym_function *dlsym_target(void *handle, const char *name);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        ".p2align 4\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n" /* the ABI wants 16-byte alignment at the call */
        ".cfi_adjust_cfa_offset 8\n"
        "    call dlsym_target\n"
        "    addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    jmp *%rax\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        ".p2align 4\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    hint #34\n" /* bti c, as an assembler without branch protection spells it */
        "    stp x29, x30, [sp, #-32]!\n"
        ".cfi_def_cfa_offset 32\n"
        ".cfi_offset 29, -32\n"
        ".cfi_offset 30, -24\n"
        "    mov x29, sp\n"
        "    stp x0, x1, [sp, #16]\n"
        "    bl dlsym_target\n"
        "    mov x16, x0\n" /* a branch by x16 may land on bti c */
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        ".cfi_restore 29\n"
        ".cfi_restore 30\n"
        ".cfi_def_cfa_offset 0\n"
        "    br x16\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#endif

/*
 * Where dlsym jumps to. RTLD_NEXT asks for what comes after the caller, so the lookup is left
 * alone. RTLD_DEFAULT searches the caller's scope, which only a jump preserves. If the process has
 * a driver with this function, our export is the right answer to that search.
 */
__attribute__((used)) UNINSTRUMENTED dlsym_function *dlsym_target(void *handle, const char *name)
{
    dlsym_function *next = next_dlsym();
    if (handle == RTLD_NEXT) {
        return next;
    }
    int entry = entry_of_name(name);
    if (entry == ENTRY_NONE || (handle == RTLD_DEFAULT && driver_has((enum entry)entry))) {
        return next;
    }
    return dlsym_of_driver;
}
