/*
 * Lookups that do not find this object's own exports, and the names of the functions that it
 * replaces.
 *
 * dlsym.c calls all of this in every process, before any constructor, before a sanitizer's run time
 * is ready, and from any thread. So this code has no instrumentation, no locks and no calls into
 * libc. The one exception is the first call's dlvsym.
 */
#include "lookup.h"

#include <stdatomic.h>
#include <stddef.h>

#include "core/base/glibc_compat.h"

static const char *const entry_names[ENTRY_COUNT] = {
#define ENTRY_POINT(name, parameters) [ENTRY_##name] = #name,
#include "entry_points.def"
#undef ENTRY_POINT
};

/* Found once; threads that race into the first call all find the same addresses. Relaxed: only the
 * address itself is published. */
static _Atomic(dlsym_function *) glibc_dlsym_found;
static _Atomic(dlsym_function *) next_dlsym_found;

UNINSTRUMENTED static void *no_dlsym(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

/* Bound at load. A lazily bound call would come from the dynamic linker where an LD_AUDIT library
 * wants to see it return (la_pltexit), and RTLD_NEXT means nothing there. */
static void *(*const volatile bound_dlvsym)(void *, const char *, const char *) = dlvsym;

/*
 * glibc's dlsym has had its first version in every release, so the lookup that comes first never
 * fails. A failing one would allocate its error message, perhaps inside a malloc that is just
 * looking for the next malloc.
 */
UNINSTRUMENTED static dlsym_function *find_glibc_dlsym(void)
{
    dlsym_function *found = (dlsym_function *)bound_dlvsym(RTLD_NEXT, "dlsym", GLIBC_FIRST_VERSION);
    if (found == NULL) {
        found = (dlsym_function *)bound_dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    }
    return found != NULL ? found : no_dlsym;
}

UNINSTRUMENTED dlsym_function *glibc_dlsym(void)
{
    dlsym_function *glibc = atomic_load_explicit(&glibc_dlsym_found, memory_order_relaxed);
    if (glibc == NULL) {
        glibc = find_glibc_dlsym();
        atomic_store_explicit(&glibc_dlsym_found, glibc, memory_order_relaxed);
    }
    return glibc;
}

UNINSTRUMENTED dlsym_function *next_dlsym(void)
{
    dlsym_function *next = atomic_load_explicit(&next_dlsym_found, memory_order_relaxed);
    if (next == NULL) {
        next = (dlsym_function *)glibc_dlsym()(RTLD_NEXT, "dlsym");
        next = next != NULL ? next : glibc_dlsym();
        atomic_store_explicit(&next_dlsym_found, next, memory_order_relaxed);
    }
    return next;
}

UNINSTRUMENTED void *find_behind_us(const char *name)
{
    void *found = next_dlsym()(RTLD_NEXT, name);
    __asm__ volatile("" : "+r"(found)); /* no tail call, or our caller would be dlsym's */
    return found;
}

/* Every driver function's name begins with cu and a capital letter, so all other names stop
 * here. */
UNINSTRUMENTED static bool could_be_of_the_driver(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

UNINSTRUMENTED static bool is_same_name(const char *one, const char *other)
{
    while (*one != '\0' && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

UNINSTRUMENTED int entry_of_name(const char *name)
{
    if (name == NULL || !could_be_of_the_driver(name)) {
        return ENTRY_NONE;
    }
    for (int entry = 0; entry < ENTRY_COUNT; entry++) {
        if (is_same_name(entry_names[entry], name)) {
            return entry;
        }
    }
    return ENTRY_NONE;
}
