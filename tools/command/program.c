/*
 * Runs another program (program.h).
 *
 * Signals are blocked from before the program starts until it has ended. While this process waits,
 * it takes them one by one. No signal is lost, and no handler runs. The program gets the signal
 * mask that was found.
 */
#include "program.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "complaint.h"

/* The signals that are passed on to the program: those that ask it to end, to stop or to do
 * something. */
static const int passed_on[] = {SIGHUP,  SIGINT,   SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
                                SIGALRM, SIGWINCH, SIGURG,  SIGIO,   SIGTSTP};
#define PASSED_ON (sizeof(passed_on) / sizeof(passed_on[0]))

/* How long a program that runs apart may take to end after it is asked to. */
#define SECONDS_TO_END 10

/* The time between two calls of apart->look: a quarter of a second. */
static const struct timespec between_looks = {.tv_nsec = 250000000};

/* The program while it runs. */
struct running {
    pid_t program;
    struct program_apart *apart; /* NULL: the program is in this process's group */
    struct timespec kill_at;     /* on CLOCK_MONOTONIC; set together with apart->ended_by */
};

int program_become(char **argv)
{
    execvp(argv[0], argv);
    int status = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
    complain("%s: %s", argv[0], strerror(errno));
    return status;
}

static void signals_to_watch(sigset_t *watched)
{
    sigemptyset(watched);
    sigaddset(watched, SIGCHLD);
    sigaddset(watched, SIGCONT);
    for (size_t i = 0; i < PASSED_ON; i++)
        sigaddset(watched, passed_on[i]);
}

/* Puts the child into its own group, and its files into place. False if that fails. */
static bool set_apart(const struct program_apart *apart)
{
    return apart == NULL ||
           (setpgid(0, 0) == 0 && dup2(apart->in, STDIN_FILENO) >= 0 &&
            dup2(apart->out, STDOUT_FILENO) >= 0 && dup2(apart->error, STDERR_FILENO) >= 0);
}

/* Runs in the child. PR_SET_PDEATHSIG has the kernel kill the program if this command is killed. */
static void become_the_program(char **argv, const struct program_apart *apart, const sigset_t *mask,
                               pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || !set_apart(apart))
        _exit(EXIT_CANNOT_RUN);
    sigprocmask(SIG_SETMASK, apart == NULL ? mask : apart->mask, NULL);
    _exit(program_become(argv));
}

/* --- signals ------------------------------------------------------------------------------------
 */

static void send_signal(const struct running *running, int signal)
{
    kill(running->apart == NULL ? running->program : -running->program, signal);
}

/* Whether the program has received the signal already: a terminal sends it to this process's whole
 * group. */
static bool has_had(const struct running *running, const siginfo_t *signal)
{
    return running->apart == NULL && signal->si_code == SI_KERNEL;
}

static bool is_ignored(int signal)
{
    struct sigaction action;

    return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static sigset_t signals_that_end(void)
{
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaddset(&set, signals[i]);
    return set;
}

static bool asks_to_end(int signal)
{
    sigset_t set = signals_that_end();

    return sigismember(&set, signal) == 1 && !is_ignored(signal);
}

void program_block_ends(sigset_t *before)
{
    sigset_t set = signals_that_end();

    sigprocmask(SIG_BLOCK, &set, before);
}

int program_take_end(void)
{
    static const struct timespec at_once = {0, 0};
    sigset_t set = signals_that_end();
    int signal, taken = 0;

    while ((signal = sigtimedwait(&set, NULL, &at_once)) > 0)
        if (!is_ignored(signal))
            taken = signal;
    return taken;
}

/* Sets when the program is killed: SECONDS_TO_END after the first request to end, at once after a
 * second one. */
static void end_by(struct running *running, int signal)
{
    clock_gettime(CLOCK_MONOTONIC, &running->kill_at);
    /* A stopped program would not see the signal that asks it to end. */
    send_signal(running, SIGCONT);
    if (running->apart->ended_by == 0) {
        running->apart->ended_by = signal;
        running->kill_at.tv_sec += SECONDS_TO_END;
    }
}

static bool is_past(const struct timespec *moment)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > moment->tv_sec ||
           (now.tv_sec == moment->tv_sec && now.tv_nsec >= moment->tv_nsec);
}

/* Stops this process by the signal that stopped the program, so that this process's parent sees a
 * stopped job. Returns when this process is continued. Returns at once if the kernel does not stop
 * it, because nobody could continue it (orphaned process group). */
static void stop_by(int signal)
{
    static const struct timespec at_once = {0, 0};
    sigset_t only, before;

    sigemptyset(&only);
    sigaddset(&only, signal);
    /* A signal that was sent to the whole group has stopped the program, and is pending here as
     * well. It is taken here, or it would stop this process twice. */
    sigprocmask(SIG_BLOCK, &only, &before);
    while (sigtimedwait(&only, NULL, &at_once) > 0)
        continue;
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Continues the program, unless it was continued already: a shell continues the whole group. */
static void have_it_continue(const struct running *running)
{
    siginfo_t info = {.si_pid = 0};
    int found = waitid(P_PID, (id_t)running->program, &info, WCONTINUED | WNOHANG);

    if (found != 0 || info.si_pid != running->program)
        send_signal(running, SIGCONT);
}

static void take_signal(struct running *running, const siginfo_t *signal)
{
    if (signal->si_signo == SIGCONT)
        have_it_continue(running);
    else if (signal->si_signo != SIGCHLD && !has_had(running, signal))
        send_signal(running, signal->si_signo);
    if (running->apart != NULL && asks_to_end(signal->si_signo))
        end_by(running, signal->si_signo);
}

/* --- its end ------------------------------------------------------------------------------------
 */

/* Like has_ended, for a program that was asked to end. Kills its group at kill_at. Kills the rest
 * of the group while the program is a zombie: until it is reaped, no other group can have its
 * number. */
static bool has_ended_as_asked(const struct running *running, int *status)
{
    siginfo_t info = {.si_pid = 0};
    int found = waitid(P_PID, (id_t)running->program, &info, WEXITED | WNOHANG | WNOWAIT);
    bool is_zombie = found == 0 && info.si_pid == running->program;

    if (is_zombie || is_past(&running->kill_at))
        send_signal(running, SIGKILL);
    return is_zombie && waitpid(running->program, status, 0) == running->program;
}

/* True, with the status, once the program has ended. */
static bool has_ended(const struct running *running, int *status)
{
    if (running->apart != NULL && running->apart->ended_by != 0)
        return has_ended_as_asked(running, status);
    while (waitpid(running->program, status, WNOHANG | WUNTRACED) == running->program) {
        if (!WIFSTOPPED(*status))
            return true;
        stop_by(WSTOPSIG(*status));
    }
    return false;
}

/* Waits for a signal and handles it. If apart->look is set or the program was asked to end, waits a
 * quarter of a second at most. */
static void wait_for_signal(struct running *running, const sigset_t *watched)
{
    struct program_apart *apart = running->apart;
    bool looks = apart != NULL && (apart->look != NULL || apart->ended_by != 0);
    siginfo_t signal;

    if (sigtimedwait(watched, &signal, looks ? &between_looks : NULL) > 0)
        take_signal(running, &signal);
    else if (looks && apart->look != NULL)
        apart->look(apart->context);
}

static int wait_for_end(struct running *running, const sigset_t *watched, struct program_end *end)
{
    int status;

    while (!has_ended(running, &status))
        wait_for_signal(running, watched);
    *end = (struct program_end){running->program, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                                WIFSIGNALED(status) ? 0 : WEXITSTATUS(status)};
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool program_run(char **argv, struct program_apart *apart, struct program_end *end,
                 int *exit_status)
{
    sigset_t watched, before;
    struct sigaction by_default = {.sa_handler = SIG_DFL}, inherited;
    struct running running = {.apart = apart};
    pid_t self = getpid();

    *end = (struct program_end){0, 0, 0};

    /* The parent of this process may have chosen to ignore SIGCHLD. There would be no status then.
     */
    sigaction(SIGCHLD, &by_default, &inherited);
    signals_to_watch(&watched);
    sigprocmask(SIG_BLOCK, &watched, &before);
    running.program = fork();
    if (running.program == 0) {
        sigaction(SIGCHLD, &inherited, NULL);
        become_the_program(argv, apart, &before, self);
    }
    if (running.program < 0) {
        int error = errno;
        sigaction(SIGCHLD, &inherited, NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        errno = error;
        return false;
    }
    /* Parent and child both do this, because either may run first. */
    if (apart != NULL)
        setpgid(running.program, running.program);
    *exit_status = wait_for_end(&running, &watched, end);
    return true;
}
