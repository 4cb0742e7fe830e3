/*
 * libcuda opened more than once: the same file again, another copy of it, one in another namespace.
 * The pool belongs to the first; what a second copy answers is left alone.
 *
 * usage: interposition_copies COPY [namespace]    (COPY: another file with a copy of the driver)
 */
#include "interposition.h"

typedef CUresult get_proc_address(const char *symbol, void **function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult *status);

static void *lookup_by(get_proc_address *lookup, const char *base)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    CU(lookup(base, &found, 3020, 0, &status));
    return found;
}

static void check_the_same_file(void)
{
    void *first = open_library(DRIVER_OBJECT, RTLD_NOW);
    void *found = function_of(first, "cuMemAlloc_v2");
    CHECK(is_ours(found));
    CHECK(dlclose(first) == 0);
    void *again = open_library(DRIVER_OBJECT, RTLD_NOW);
    void *once_more = open_library(DRIVER_OBJECT, RTLD_NOW | RTLD_GLOBAL);
    CHECK(function_of(again, "cuMemAlloc_v2") == found);
    CHECK(function_of(once_more, "cuMemAlloc_v2") == found);
    get_proc_address *lookup = (get_proc_address *)function_of(again, "cuGetProcAddress_v2");
    CHECK(lookup_by(lookup, "cuMemAlloc") == found);
    CHECK(dlclose(once_more) == 0 && dlclose(again) == 0);
}

/* Every answer of the other copy is its own, and in no other object. */
static void check_other(void *other)
{
    static const char *const names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress_v2"};
    lookup_function *real = glibc_dlsym();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = function_of(other, names[i]);
        CHECK(found == real(other, names[i]) && !is_ours(found));
    }
    get_proc_address *lookup = (get_proc_address *)function_of(other, "cuGetProcAddress_v2");
    CHECK(lookup_by(lookup, "cuMemAlloc") == function_of(other, "cuMemAlloc_v2"));
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    check_the_same_file();
    void *copy = open_library(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(copy != open_library(DRIVER_OBJECT, RTLD_NOW));
    check_other(copy);
    if (argc > 2) {
        void *elsewhere = dlmopen(LM_ID_NEWLM, DRIVER_OBJECT, RTLD_NOW);
        if (elsewhere == NULL)
            FAIL("%s", dlerror());
        check_other(elsewhere);
    }
    check_the_same_file();
    return 0;
}
