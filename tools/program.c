/*
 * Running someone else's program (program.h).
 *
 * Signals are blocked from before the program is there until it is gone, and taken one by one while
 * waiting: none is lost, and no handler runs. The program gets the mask that was found.
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

/* Those that ask a process to end, to stop or to do something. */
static const int passed_on[] = {SIGHUP,  SIGINT,   SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
                                SIGALRM, SIGWINCH, SIGURG,  SIGIO,   SIGTSTP};
#define PASSED_ON (sizeof(passed_on) / sizeof(passed_on[0]))

/* How long a program that runs apart may take to end when it is asked to. */
#define SECONDS_TO_END 10

/* Four times a second. */
static const struct timespec between_looks = {.tv_nsec = 250000000};

/* A program that runs. */
struct running {
    pid_t program;
    struct program_apart *apart; /* NULL: it belongs to this process's group */
    struct timespec kill_at;     /* of CLOCK_MONOTONIC; where apart->ended_by is set */
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

/* True where it has its group and each file is in its place. */
static bool set_apart(const struct program_apart *apart)
{
    return apart == NULL ||
           (setpgid(0, 0) == 0 && dup2(apart->in, STDIN_FILENO) >= 0 &&
            dup2(apart->out, STDOUT_FILENO) >= 0 && dup2(apart->error, STDERR_FILENO) >= 0);
}

/* In the child. A kill -9 of this command is one of the program. */
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

/* What a terminal sends goes to this process's whole group: a program in it has had the signal. */
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

/* Whoever asks a second time shall not have to wait. */
static void end_by(struct running *running, int signal)
{
    clock_gettime(CLOCK_MONOTONIC, &running->kill_at);
    /* One that is stopped would not see the signal. */
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

/* The program has stopped: so does this process, by the same signal, and whoever started it sees a
 * job that has stopped. Returns when it is to continue; or at once, where the kernel stops nobody
 * because nobody could have him continue. */
static void stop_by(int signal)
{
    static const struct timespec at_once = {0, 0};
    sigset_t only, before;

    sigemptyset(&only);
    sigaddset(&only, signal);
    /* One that was sent to the whole group has stopped the program, too: it would stop this process
     * twice. */
    sigprocmask(SIG_BLOCK, &only, &before);
    while (sigtimedwait(&only, NULL, &at_once) > 0)
        continue;
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* A shell has the whole group continue: the program then has done so already. */
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

/* True with the status once a program that was asked to end is gone. While a program that has ended
 * is a zombie, nobody else's group has its number. */
static bool has_ended_as_asked(const struct running *running, int *status)
{
    siginfo_t info = {.si_pid = 0};
    int found = waitid(P_PID, (id_t)running->program, &info, WEXITED | WNOHANG | WNOWAIT);
    bool is_zombie = found == 0 && info.si_pid == running->program;

    if (is_zombie || is_past(&running->kill_at))
        send_signal(running, SIGKILL);
    return is_zombie && waitpid(running->program, status, 0) == running->program;
}

/* True with the status once the program is gone. */
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

/* Waits for a signal, as long as nothing else is to be done. */
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

    /* Whoever started us may have chosen to ignore it, and then there would be no status. */
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
    /* Either of the two is the first to do this. */
    if (apart != NULL)
        setpgid(running.program, running.program);
    *exit_status = wait_for_end(&running, &watched, end);
    return true;
}
