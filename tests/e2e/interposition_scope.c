/*
 * Prints where dlsym finds names for different callers and scopes. The output without and with the
 * preload object must be the same.
 *
 * usage: interposition_scope LIBRARY local|global     (libinterposition_scope.so, and how to open
 * it)
 */
#include <link.h>

#include "interposition.h"

static const char *const libc_names[] = {"malloc", "free",           "calloc",
                                         "open",   "pthread_create", "printf",
                                         "dlopen", "dlvsym",         "no_such_function"};
static const char *const driver_names[] = {"cuMemAlloc_v2", "cuMemFree_v2",     "cuLaunchKernel",
                                           "cuInit",        "cuDeviceGetCount", "cuNoSuchFunction"};

/* The object and the place in it: the same in every run. */
static void print_place(const char *who, const char *name, void *address)
{
    Dl_info info;
    struct link_map *map;
    bool error = dlerror() != NULL;
    if (address == NULL || dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) == 0) {
        printf("%s %s: nothing%s\n", who, name, error ? ", an error" : "");
        return;
    }
    printf("%s %s: %s+%#lx%s\n", who, name, object_of(address),
           (unsigned long)address - (unsigned long)map->l_addr, error ? ", an error" : "");
}

typedef void *library_lookup(const char *name);

static void *main_next(const char *name)
{
    static void *volatile found;
    found = dlsym(RTLD_NEXT, name);
    return found;
}

static void *main_default(const char *name)
{
    static void *volatile found;
    found = dlsym(RTLD_DEFAULT, name);
    return found;
}

static void print_libc_names(const char *who, library_lookup *lookup)
{
    for (size_t i = 0; i < sizeof libc_names / sizeof *libc_names; i++)
        print_place(who, libc_names[i], lookup(libc_names[i]));
}

static void print_driver_names(const char *who, library_lookup *lookup)
{
    for (size_t i = 0; i < sizeof driver_names / sizeof *driver_names; i++)
        print_place(who, driver_names[i], lookup(driver_names[i]));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    bool is_local = strcmp(argv[2], "local") == 0;
    void *whole_program = open_library(NULL, RTLD_NOW);
    print_place("program by handle", "cuMemAlloc_v2", dlsym(whole_program, "cuMemAlloc_v2"));
    print_driver_names("program default, no driver", main_default);
    void *library = open_library(argv[1], RTLD_NOW | (is_local ? RTLD_LOCAL : RTLD_GLOBAL));
    library_lookup *next = (library_lookup *)function_of(library, "library_next");
    library_lookup *in_default = (library_lookup *)function_of(library, "library_default");
    print_libc_names("library next", next);
    print_place("library next", "dlsym", next("dlsym"));
    print_driver_names("library next", next);
    print_libc_names("program next", main_next);
    print_place("program default", "printf", main_default("printf"));
    print_place("program default", "library_next", main_default("library_next"));
    print_place("library default", "library_next", in_default("library_next"));
    print_place("library default", "cuInit", in_default("cuInit"));
    print_place("program by handle", "library_next", dlsym(whole_program, "library_next"));
    if (is_local)
        print_place("program by handle", "cuMemAlloc_v2", dlsym(whole_program, "cuMemAlloc_v2"));
    CHECK(in_default("cuMemAlloc_v2") != NULL && dlerror() == NULL);
    return 0;
}
