/*
 * tests/kernels.ptx as a string, for cuModuleLoadData: the file is in the program, so that a test
 * needs no other file where it runs. Include it once in a program; compile from the root of the
 * sources, or with -I naming it.
 *
 * What the kernels do and take, says the file. A launch passes every argument as declared there: a
 * pointer to a u64 for u64 (device addresses included), a pointer to a u32 for u32.
 */
#ifndef TESTS_KERNELS_H
#define TESTS_KERNELS_H

extern const char KERNELS_PTX[] __attribute__((visibility("hidden")));

__asm__(".pushsection .rodata\n"
        ".globl KERNELS_PTX\n"
        ".hidden KERNELS_PTX\n"
        "KERNELS_PTX:\n"
        ".incbin \"tests/kernels.ptx\"\n"
        ".byte 0\n"
        ".popsection\n");

#endif
