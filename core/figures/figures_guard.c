/*
 * Surviving a file of figures that somebody truncates (figures_guard.h).
 *
 * Part of the preload object: libc only.
 */
#include "figures_guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* More faults than threads can bring before the first of them has replaced the mapping: then it
 * does not help. */
#define FAULTS_MOST 100000u

static struct {
    /* NULL: nothing is guarded. The release store in figures_guard pairs with the acquire loads of
     * the handler, for bytes and before. */
    _Atomic(char *) memory;
    size_t bytes;
    _Atomic bool replaced;   /* released once the mapping is another one */
    _Atomic unsigned faults; /* relaxed: it orders nothing */
    struct sigaction before; /* what SIGBUS did before */
} guard;

static bool is_guarded(const void *address)
{
    const char *memory = atomic_load_explicit(&guard.memory, memory_order_acquire);
    return memory != NULL && (const char *)address >= memory &&
           (const char *)address < memory + guard.bytes;
}

bool figures_guard_replace(const void *memory)
{
    if (!is_guarded(memory))
        return false;
    char *start = atomic_load_explicit(&guard.memory, memory_order_relaxed);
    if (mmap(start, guard.bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return false;
    atomic_store_explicit(&guard.replaced, true, memory_order_release);
    return true;
}

bool figures_guard_has_replaced(const void *memory)
{
    return is_guarded(memory) && atomic_load_explicit(&guard.replaced, memory_order_acquire);
}

/* ---- the handler ---- */

static void on_bus_error(int signal, siginfo_t *info, void *context);

/* True where the instruction may be tried again. */
static bool mend(const siginfo_t *info)
{
    if (info->si_code != BUS_ADRERR || !is_guarded(info->si_addr) ||
        atomic_fetch_add_explicit(&guard.faults, 1, memory_order_relaxed) >= FAULTS_MOST)
        return false;
    /* Another thread's fault was sooner. */
    return figures_guard_has_replaced(info->si_addr) || figures_guard_replace(info->si_addr);
}

/* As if this handler had never been there: an instruction that faults does so again when it
 * returns, and what somebody sent is sent again. */
static void hand_back(int signal, siginfo_t *info)
{
    sigaction(signal, &guard.before, NULL);
    if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info);
}

/* A handler that came later has called this one. */
static void call_earlier(int signal, siginfo_t *info, void *context)
{
    if ((guard.before.sa_flags & SA_SIGINFO) != 0)
        guard.before.sa_sigaction(signal, info, context);
    else if (guard.before.sa_handler == SIG_DFL)
        hand_back(signal, info);
    else if (guard.before.sa_handler != SIG_IGN)
        guard.before.sa_handler(signal);
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    int error = errno;
    struct sigaction now;
    if (!mend(info)) {
        bool is_ours = sigaction(signal, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
                       now.sa_sigaction == on_bus_error;
        if (is_ours)
            hand_back(signal, info);
        else
            call_earlier(signal, info, context);
    }
    errno = error;
}

void figures_guard(void *memory, size_t bytes)
{
    struct sigaction ours = {.sa_sigaction = on_bus_error,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    if (atomic_load_explicit(&guard.memory, memory_order_relaxed) != NULL)
        return;
    sigemptyset(&ours.sa_mask);
    guard.bytes = bytes;
    if (sigaction(SIGBUS, NULL, &guard.before) != 0)
        return;
    atomic_store_explicit(&guard.memory, memory, memory_order_release);
    sigaction(SIGBUS, &ours, NULL);
}
