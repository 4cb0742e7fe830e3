/*
 * Makes one object or command work with every glibc from 2.28 on.
 *
 * The functions of libdl moved into libc.so.6 in glibc 2.34 and have that version there. An object
 * that asks for dlopen@GLIBC_2.34 kills every process that loads it on an older system. So this
 * file asks for the first version on each architecture, which every glibc still has.
 *
 * Included by the files that call these functions. Of the preload object dlsym is not among them:
 * see shim/lookup.c.
 */
#ifndef CUDAPOOL_CORE_GLIBC_COMPAT_H
#define CUDAPOOL_CORE_GLIBC_COMPAT_H

#include <dlfcn.h>

#if defined(__x86_64__)
#define GLIBC_FIRST_VERSION   "GLIBC_2.2.5"
#define GLIBC_DLADDR1_VERSION "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define GLIBC_FIRST_VERSION   "GLIBC_2.17"
#define GLIBC_DLADDR1_VERSION "GLIBC_2.17"
#else
#error "cudapool knows the first glibc versions of x86-64 and aarch64 only"
#endif

#define GLIBC_SYMBOL_VERSION(symbol, version) __asm__(".symver " #symbol ", " #symbol "@" version)

GLIBC_SYMBOL_VERSION(dlopen, GLIBC_FIRST_VERSION);
GLIBC_SYMBOL_VERSION(dlclose, GLIBC_FIRST_VERSION);
GLIBC_SYMBOL_VERSION(dlerror, GLIBC_FIRST_VERSION);
GLIBC_SYMBOL_VERSION(dlvsym, GLIBC_FIRST_VERSION);
GLIBC_SYMBOL_VERSION(dladdr1, GLIBC_DLADDR1_VERSION);
GLIBC_SYMBOL_VERSION(dlinfo, GLIBC_DLADDR1_VERSION);

#endif
