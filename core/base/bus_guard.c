/*
 * Survives the truncation of a mapped file (bus_guard.h).
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
#include <ucontext.h>
#include <unistd.h>

/* Threads cannot raise this many faults before the first of them has replaced the mapping. So after
 * this many, replacing does not help, and the handler gives up. */
#define FAULTS_MOST 100000u

struct guarded {
    _Atomic bool claimed; /* acquire by who fills the entry in; release when its mapping is no
                             longer guarded */
    /* NULL: nothing is guarded here. The release store in bus_guard pairs with the acquire loads of
     * the handler, which reads the fields below. */
    _Atomic(char *) memory;
    size_t bytes;
    pid_t only;            /* the one process that has the mapping; 0: its children have it, too */
    _Atomic bool replaced; /* release store once the mapping has been replaced */
};

static struct guarded mappings[BUS_GUARD_MAPPINGS];
static _Atomic unsigned faults; /* relaxed: it orders nothing */
static _Atomic bool handles;    /* the thread that first exchanges it installs the handler */
static struct sigaction before; /* the earlier action of SIGBUS; written before the handler is
                                   installed */

/* Set once the pool has unblocked SIGBUS in a thread in which the program had blocked it. Relaxed:
 * that thread sees its own store, and so do the threads that it creates, which inherit its mask. */
static _Atomic bool unblocked;

static bool is_in(const struct guarded *mapping, const void *address)
{
    const char *memory = atomic_load_explicit(&mapping->memory, memory_order_acquire);
    return memory != NULL && (const char *)address >= memory &&
           (const char *)address < memory + mapping->bytes &&
           (mapping->only == 0 || mapping->only == getpid());
}

/* Returns NULL if no guarded mapping contains the address. */
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

/* Returns true if the instruction may be tried again. */
static bool mend(const siginfo_t *info)
{
    struct guarded *mapping = info->si_code == BUS_ADRERR ? find_guarded(info->si_addr) : NULL;
    if (!mapping || atomic_fetch_add_explicit(&faults, 1, memory_order_relaxed) >= FAULTS_MOST)
        return false;
    /* Another thread may have faulted earlier and replaced the mapping. */
    return has_replaced(mapping) || replace(mapping);
}

static bool is_sent(const siginfo_t *info)
{
    return info->si_code <= 0 || info->si_code == BUS_MCEERR_AO;
}

/* Restores the earlier action, as if this handler had never been installed. An instruction that
 * faults does so again when the handler returns. A signal that somebody sent is sent again. */
static void hand_back(int signal, siginfo_t *info)
{
    sigaction(signal, &before, NULL);
    if (is_sent(info))
        syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info);
}

/* Blocks the signals that the earlier handler asked for, as the kernel does when it calls a
 * handler. */
static void call_handler_before(int signal, siginfo_t *info, void *context)
{
    sigset_t blocked = before.sa_mask, outside;
    if ((before.sa_flags & SA_NODEFER) == 0)
        sigaddset(&blocked, signal);
    sigprocmask(SIG_BLOCK, &blocked, &outside);
    if ((before.sa_flags & SA_SIGINFO) != 0)
        before.sa_sigaction(signal, info, context);
    else
        before.sa_handler(signal);
    sigprocmask(SIG_SETMASK, &outside, NULL);
}

/* Called where a handler that was installed later has called this one. */
static void call_earlier(int signal, siginfo_t *info, void *context)
{
    if ((before.sa_flags & SA_SIGINFO) != 0 ||
        (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN))
        call_handler_before(signal, info, context);
    else if (before.sa_handler == SIG_DFL)
        hand_back(signal, info);
}

/* Returns whether a sent SIGBUS is meant for other threads: the program has blocked it in this one,
 * and the pool has unblocked it. */
static bool is_for_others(const siginfo_t *info)
{
    return is_sent(info) && (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL &&
           atomic_load_explicit(&unblocked, memory_order_relaxed);
}

/* Blocks the signal in this thread from here on, and sends it again. So another thread gets it, or
 * a thread that waits for it. */
static void send_on(int signal, siginfo_t *info, ucontext_t *context)
{
    sigaddset(&context->uc_sigmask, signal);
    if (info->si_code == SI_TKILL)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info);
    /* The kernel lets only the main thread say who has sent a signal. */
    else if (syscall(SYS_rt_sigqueueinfo, getpid(), signal, info) != 0)
        kill(getpid(), signal);
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    int error = errno;
    struct sigaction now;
    if (is_for_others(info)) {
        send_on(signal, info, context);
    } else if (!mend(info)) {
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
    /* Relaxed: before is written before the handler is installed, and so before it can run. */
    if (atomic_exchange_explicit(&handles, true, memory_order_relaxed))
        return true;
    if (sigaction(SIGBUS, NULL, &before) == 0) {
        ours.sa_mask = before.sa_mask;
        if (sigaction(SIGBUS, &ours, NULL) == 0)
            return true;
    }
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

void bus_guard_thread(void)
{
    sigset_t bus_error, blocked;
    /* Relaxed: the thread that has published the mapping has installed the handler, too. */
    if (!atomic_load_explicit(&handles, memory_order_relaxed) ||
        sigprocmask(SIG_BLOCK, NULL, &blocked) != 0 || sigismember(&blocked, SIGBUS) != 1)
        return;
    sigemptyset(&bus_error);
    sigaddset(&bus_error, SIGBUS);
    /* Stored first, since a SIGBUS that has been sent arrives as soon as it is unblocked. */
    atomic_store_explicit(&unblocked, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    sigprocmask(SIG_UNBLOCK, &bus_error, NULL);
}

void bus_guard_end(const void *memory)
{
    struct guarded *mapping = find_guarded(memory);
    if (!mapping)
        return;
    atomic_store_explicit(&mapping->memory, NULL, memory_order_relaxed);
    /* Pairs with the acquire exchange in bus_guard. */
    atomic_store_explicit(&mapping->claimed, false, memory_order_release);
}
