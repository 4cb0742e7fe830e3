#include "futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define SECOND UINT64_C(1000000000)

void futex_wait(const _Atomic(uint32_t) *word, uint32_t value, uint64_t until)
{
    int error = errno;
    struct clock_sleep sleep = clock_sleep_begin();
    bool ends = until != UINT64_MAX;
    uint64_t asked = ends && until > sleep.began ? until - sleep.began : 0;
    /* A relative time, since the kernel's clock may differ from monotonic_now. */
    struct timespec span = {(time_t)(asked / SECOND), (long)(asked % SECOND)};
    bool over = syscall(SYS_futex, word, FUTEX_WAIT, value, ends ? &span : NULL, NULL, 0) != 0 &&
                errno == ETIMEDOUT;
    clock_sleep_end(&sleep, over ? asked : 0);
    errno = error;
}

void futex_sleep(uint64_t until)
{
    static const _Atomic(uint32_t) nobody_wakes;
    futex_wait(&nobody_wakes, 0, until);
}

void futex_wake(const _Atomic(uint32_t) *word)
{
    int error = errno;
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = error;
}
