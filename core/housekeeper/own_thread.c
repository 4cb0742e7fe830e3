#include "own_thread.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "core/base/cancellation.h"
#include "core/base/sandbox.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/surroundings.h"

/* For the driver, beside the C library's own needs. What sanitizers put there is large. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES ((size_t)2 << 20)
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif

static int add_static_tls(struct dl_phdr_info *object, size_t size, void *bytes)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)bytes += object->dlpi_phdr[i].p_memsz;
    return 0;
}

/* The C library takes what the objects of the process have for each thread out of its stack. 0
 * beside a fork, whose child would have the dynamic linker's lock for ever: then the stack has the
 * size that is usual in this process. */
static size_t stack_bytes(struct pool *pool)
{
    size_t bytes = STACK_BYTES, page = (size_t)sysconf(_SC_PAGESIZE);
    if (!surroundings_linker_begin(pool))
        return 0;
    dl_iterate_phdr(add_static_tls, &bytes);
    surroundings_linker_end(pool);
    return (bytes + page - 1) / page * page;
}

static void block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t all;
    /* It leaves out those that the C library uses for itself (setuid, pthread_cancel). */
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    sigprocmask(SIG_SETMASK, &all, before); /* of this thread, which the new one inherits */
}

/* 0, or an error. */
static int create(struct pool *pool, size_t bytes, void *(*run)(void *), void *argument)
{
    const struct thread_functions *functions = &pool->thread_functions;
    pthread_attr_t attributes;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (bytes && functions->set_stack_size)
        functions->set_stack_size(&attributes, bytes);
    error = functions->create(&thread, &attributes, run, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

bool own_thread_make(struct pool *pool, void *(*run)(void *), void *argument)
{
    sigset_t before;
    int error = errno;
    bool made = false;
    if (pool->thread_functions.create && !sandbox_was_entered()) {
        int cancellation = cancellation_off();
        block_signals(&before);
        int result = create(pool, stack_bytes(pool), run, argument);
        /* Perhaps not enough for what objects without a header of their own have for threads. */
        if (result == EINVAL)
            result = create(pool, 0, run, argument);
        made = result == 0;
        sigprocmask(SIG_SETMASK, &before, NULL);
        cancellation_restore(cancellation);
    }
    errno = error;
    return made;
}
