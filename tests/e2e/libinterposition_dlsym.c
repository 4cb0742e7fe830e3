/*
 * A preload that interposes dlsym as many do: by a call, and with an answer of its own to one name.
 */
#include <dlfcn.h>
#include <string.h>

static const char own_answer;

void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*real)(void *, const char *);
#if defined(__aarch64__)
    const char *version = "GLIBC_2.17";
#else
    const char *version = "GLIBC_2.2.5";
#endif
    if (real == NULL)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", version);
    if (strcmp(name, "answered_by_the_other_preload") == 0)
        return (void *)&own_answer;
    return real(handle, name);
}
