/*
 * The start of the command, made so that it runs with every glibc from 2.28 on.
 *
 * The start files of glibc 2.34 and later call __libc_start_main@GLIBC_2.34, and leave the
 * program's constructors to that function. A program that was linked with them does not start on an
 * older system. The Makefile has the linker redirect this call to __wrap___libc_start_main here
 * (--wrap). The wrapper calls the function's first version, which every glibc still has, and passes
 * it a function that runs the constructors.
 */
#include <stddef.h>

#include "core/base/glibc_compat.h"

typedef int main_function(int argc, char **argv, char **environment);
typedef void other_function(void);
typedef void constructor(int argc, char **argv, char **environment);

extern int first_libc_start_main(main_function *run, int argc, char **argv,
                                 main_function *construct, other_function *finish,
                                 other_function *finish_linker, void *stack_end);
__asm__(".symver first_libc_start_main, __libc_start_main@" GLIBC_FIRST_VERSION);

extern int __wrap___libc_start_main(main_function *run, int argc, char **argv,
                                    main_function *construct, other_function *finish,
                                    other_function *finish_linker, void *stack_end);

/* These names are defined by the linker and the start files. */
extern void _init(void);
extern constructor *__init_array_start[] __attribute__((visibility("hidden")));
extern constructor *__init_array_end[] __attribute__((visibility("hidden")));

static int run_constructors(int argc, char **argv, char **environment)
{
    _init();
    for (constructor **c = __init_array_start; c < __init_array_end; c++)
        (*c)(argc, argv, environment);
    return 0;
}

int __wrap___libc_start_main(main_function *run, int argc, char **argv, main_function *construct,
                             other_function *finish, other_function *finish_linker, void *stack_end)
{
    return first_libc_start_main(run, argc, argv, construct != NULL ? construct : run_constructors,
                                 finish, finish_linker, stack_end);
}
