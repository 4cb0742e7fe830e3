#include "sandbox.h"

#include <errno.h>
#include <sys/prctl.h>

/* sandbox_note_start writes at_start while the pool is created, before any thread can use the pool.
 * Afterwards at_start is only read, so it needs no lock. */
static struct {
    bool noted;
    int seccomp, no_new_privileges;
} at_start;

void sandbox_note_start(void)
{
    int error = errno;
    at_start.seccomp = prctl(PR_GET_SECCOMP);
    at_start.no_new_privileges = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    at_start.noted = true;
    errno = error;
}

/* In a container, the process has a seccomp filter from the start. So PR_GET_SECCOMP does not
 * change when the program adds another filter. But a program without special privileges must set
 * no_new_privs before it adds a filter. The second comparison detects that no_new_privs was set. */
bool sandbox_was_entered(void)
{
    int error = errno;
    bool entered =
        at_start.noted && (prctl(PR_GET_SECCOMP) != at_start.seccomp ||
                           (at_start.seccomp > 0 &&
                            prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != at_start.no_new_privileges));
    errno = error;
    return entered;
}
