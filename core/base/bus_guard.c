/*
 * Surviving a mapped file that somebody truncates (bus_guard.h).
 *
 * Part of the preload object: libc only.
 */
#include "bus_guard.h"

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

struct guarded {
    _Atomic bool claimed; /* acquired by who fills it in; released when its mapping goes */
    /* NULL: nothing is guarded here. The release store in bus_guard pairs with the acquire loads of
     * the handler, for what stands below. */
    _Atomic(char *) memory;
    size_t bytes;
    pid_t only;            /* the one process that has it; 0: its children do, too */
    _Atomic bool replaced; /* released once the mapping is another one */
};

static struct guarded mappings[BUS_GUARD_MAPPINGS];
static _Atomic unsigned faults; /* relaxed: it orders nothing */
static _Atomic bool handles;    /* whoever exchanges it first installs the handler */
static struct sigaction before; /* what SIGBUS did before; written before the handler is there */

static bool is_in(const struct guarded *mapping, const void *address)
{
    const char *memory = atomic_load_explicit(&mapping->memory, memory_order_acquire);
    return memory != NULL && (const char *)address >= memory &&
           (const char *)address < memory + mapping->bytes &&
           (mapping->only == 0 || mapping->only == getpid());
}

/* NULL: nobody guards it. */
static struct guarded *find_guarded(const void *address)
{
    for (unsigned i = 0; i < BUS_GUARD_MAPPINGS; i++)
        if (is_in(&mappings[i], address))
            return &mappings[i];
    return NULL;
}

static bool replace(struct guarded *mapping)
{
    char *start = atomic_load_explicit(&mapping->memory, memory_order_relaxed);
    if (mmap(start, mapping->bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return false;
    atomic_store_explicit(&mapping->replaced, true, memory_order_release);
    return true;
}

static bool has_replaced(const struct guarded *mapping)
{
    return atomic_load_explicit(&mapping->replaced, memory_order_acquire);
}

bool bus_guard_replace(const void *memory)
{
    struct guarded *mapping = find_guarded(memory);
    return mapping != NULL && replace(mapping);
}

bool bus_guard_has_replaced(const void *memory)
{
    const struct guarded *mapping = find_guarded(memory);
    return mapping != NULL && has_replaced(mapping);
}

/* ---- the handler ---- */

static void on_bus_error(int signal, siginfo_t *info, void *context);

/* True where the instruction may be tried again. */
static bool mend(const siginfo_t *info)
{
    struct guarded *mapping = info->si_code == BUS_ADRERR ? find_guarded(info->si_addr) : NULL;
    if (!mapping || atomic_fetch_add_explicit(&faults, 1, memory_order_relaxed) >= FAULTS_MOST)
        return false;
    /* Another thread's fault was sooner. */
    return has_replaced(mapping) || replace(mapping);
}

/* As if this handler had never been there: an instruction that faults does so again when it
 * returns, and what somebody sent is sent again. */
static void hand_back(int signal, siginfo_t *info)
{
    sigaction(signal, &before, NULL);
    if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info);
}

/* A handler that came later has called this one. */
static void call_earlier(int signal, siginfo_t *info, void *context)
{
    if ((before.sa_flags & SA_SIGINFO) != 0)
        before.sa_sigaction(signal, info, context);
    else if (before.sa_handler == SIG_DFL)
        hand_back(signal, info);
    else if (before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
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

static bool handle(void)
{
    struct sigaction ours = {.sa_sigaction = on_bus_error,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    /* Relaxed: what was there before is written before the handler can run. */
    if (atomic_exchange_explicit(&handles, true, memory_order_relaxed))
        return true;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, NULL, &before) == 0 && sigaction(SIGBUS, &ours, NULL) == 0)
        return true;
    atomic_store_explicit(&handles, false, memory_order_relaxed);
    return false;
}

bool bus_guard(void *memory, size_t bytes, enum bus_guard_children children)
{
    for (unsigned i = 0; i < BUS_GUARD_MAPPINGS; i++) {
        struct guarded *mapping = &mappings[i];
        if (atomic_exchange_explicit(&mapping->claimed, true, memory_order_acquire))
            continue;
        mapping->bytes = bytes;
        mapping->only = children == BUS_GUARD_CHILDREN_LACK_IT ? getpid() : 0;
        atomic_store_explicit(&mapping->replaced, false, memory_order_relaxed);
        atomic_store_explicit(&mapping->memory, memory, memory_order_release);
        return handle();
    }
    return false;
}

void bus_guard_end(const void *memory)
{
    struct guarded *mapping = find_guarded(memory);
    if (!mapping)
        return;
    atomic_store_explicit(&mapping->memory, NULL, memory_order_relaxed);
    /* Pairs with the exchange in bus_guard. */
    atomic_store_explicit(&mapping->claimed, false, memory_order_release);
}
