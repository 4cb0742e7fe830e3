/*
 * A look through the loaded objects that takes two milliseconds, with the dynamic linker's lock
 * held.
 */
#include <dlfcn.h>
#include <link.h>
#include <time.h>

struct look {
    int (*callback)(struct dl_phdr_info *, size_t, void *);
    void *argument;
    int looked;
};

static int look_slowly(struct dl_phdr_info *info, size_t bytes, void *argument)
{
    struct look *look = argument;
    if (!look->looked++)
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    return look->callback(info, bytes, look->argument);
}

__attribute__((visibility("default"))) int
dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *argument)
{
    int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *) =
        (int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))dlsym(RTLD_NEXT,
                                                                               "dl_iterate_phdr");
    return real(look_slowly, &(struct look){callback, argument, 0});
}
