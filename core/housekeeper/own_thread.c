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

/* Stack bytes for the driver, beside what the C library itself needs. Sanitizers need much more. */
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

/* Returns the stack size that is needed with static thread-local storage, which the C library puts
 * into the stack. Returns 0 while a thread forks, since the child would find the dynamic linker's
 * lock taken for ever. Then the thread gets the process's usual stack size. */
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
    /* sigfillset leaves out the signals that the C library itself uses (setuid, pthread_cancel). */
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    sigprocmask(SIG_SETMASK, &all, before); /* of this thread; the new thread inherits it */
}

/* Makes the thread. Returns 0, or an error. */
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
        /* The stack may be too small where objects without a program header have thread-local
         * storage. */
        if (result == EINVAL)
            result = create(pool, 0, run, argument);
        made = result == 0;
        sigprocmask(SIG_SETMASK, &before, NULL);
        cancellation_restore(cancellation);
    }
    errno = error;
    return made;
}
