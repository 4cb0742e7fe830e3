#include "sandbox.h"

#include <errno.h>
#include <sys/prctl.h>

/* Written before there is a pool, and only read since. */
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

/* In a container there is a filter from the start; but who adds one of its own gives up new
 * privileges first. */
bool sandbox_was_entered(void)
{
    int error = errno;
    bool entered =
        at_start.noted && (prctl(PR_GET_SECCOMP) != at_start.seccomp ||
                           (at_start.seccomp != 0 &&
                            prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != at_start.no_new_privileges));
    errno = error;
    return entered;
}
