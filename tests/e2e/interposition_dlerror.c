/*
 * Functions that the driver lacks, and dlerror: it speaks of the program's own lookups, and of no
 * others. The preload object's search for the driver and its functions leaves nothing behind. Run
 * with every variant of the driver.
 */
#include "interposition.h"

static const char *const replaced[] = {"cuMemAlloc_v2",       "cuMemFree_v2",
                                       "cuGetProcAddress_v2", "cuMemAllocAsync",
                                       "cuCtxSynchronize_v2", "cuGreenCtxCreate"};

/* The driver has it or not; the answer and the error agree with that. */
static void look_up(void *handle, const char *name, void *real)
{
    void *found = dlsym(handle, name);
    const char *error = dlerror();
    if ((found == NULL) != (real == NULL) || (error == NULL) != (real != NULL))
        FAIL("%s: found in %s, error %s; the driver's is %p", name, object_of(found),
             error != NULL ? error : "none", real);
    if (real != NULL && !is_ours(found))
        FAIL("%s: found in %s", name, object_of(found));
    if (error != NULL && strstr(error, name) == NULL)
        FAIL("%s: the error speaks of something else: %s", name, error);
    CHECK(dlerror() == NULL);
}

/* Our export is there to be called, whether or not the driver has the function. */
static void call_what_may_be_missing(const void *real)
{
    if (real == NULL)
        CHECK(cuCtxSynchronize_v2(NULL) == CUDA_ERROR_NOT_FOUND);
}

int main(void)
{
    void *driver = open_library(DRIVER_OBJECT, RTLD_NOW | RTLD_GLOBAL);
    lookup_function *real = glibc_dlsym();
    CHECK(dlsym(driver, "cuNoSuchFunction") == NULL);
    const char *error = dlerror();
    CHECK(error != NULL && strstr(error, "cuNoSuchFunction") != NULL);
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        void *address = real(driver, replaced[i]);
        (void)dlerror();
        look_up(driver, replaced[i], address);
        look_up(RTLD_DEFAULT, replaced[i], address);
    }
    call_what_may_be_missing(real(driver, "cuCtxSynchronize_v2"));
    (void)dlerror();
    /* An error stays until it is asked for, or until the next success. */
    CHECK(dlsym(driver, "cuNoSuchFunction") == NULL);
    CHECK(dlsym(driver, "cuMemAlloc_v2") != NULL);
    CHECK(dlerror() == NULL);
    return 0;
}
