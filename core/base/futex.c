#include "futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)

void futex_wait(const _Atomic(uint32_t) *word, uint32_t value, uint64_t until)
{
    struct timespec at = {(time_t)(until / SECOND), (long)(until % SECOND)};
    int error = errno;
    /* The one of them whose time is a moment and not a span. */
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, until == UINT64_MAX ? NULL : &at, NULL,
            FUTEX_BITSET_MATCH_ANY);
    errno = error;
}

void futex_wake(const _Atomic(uint32_t) *word)
{
    int error = errno;
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = error;
}
