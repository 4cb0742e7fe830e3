/*
 * A library that looks names up: dlsym must take it, and nothing else, for the caller. Linked with
 * the driver, so that the driver is in its scope wherever else it is not.
 */
#include <dlfcn.h>

#include "../driver_api.h"

void *library_next(const char *name);
void *library_default(const char *name);
CUresult library_version(int *version);

/* The results are looked at before they are returned: a tail call would make our caller dlsym's. */
static void *volatile last_found;

void *library_next(const char *name)
{
    last_found = dlsym(RTLD_NEXT, name);
    return last_found;
}

void *library_default(const char *name)
{
    last_found = dlsym(RTLD_DEFAULT, name);
    return last_found;
}

CUresult library_version(int *version)
{
    return cuDriverGetVersion(version);
}
