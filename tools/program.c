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

/* True where each file is in its place. */
static bool use_files(const struct program_files *files)
{
    return files == NULL ||
           (dup2(files->in, STDIN_FILENO) >= 0 && dup2(files->out, STDOUT_FILENO) >= 0 &&
            dup2(files->error, STDERR_FILENO) >= 0);
}

/* In the child. A kill -9 of this command is one of the program. */
static void become_the_program(char **argv, const struct program_files *files, const sigset_t *mask,
                               pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || !use_files(files))
        _exit(EXIT_CANNOT_RUN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    _exit(program_become(argv));
}

/* What a terminal sends goes to the whole group: the program has had it. */
static bool came_from_the_terminal(const siginfo_t *signal)
{
    return signal->si_code == SI_KERNEL;
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
static void have_it_continue(pid_t program)
{
    siginfo_t info = {.si_pid = 0};

    if (waitid(P_PID, (id_t)program, &info, WCONTINUED | WNOHANG) != 0 || info.si_pid != program)
        kill(program, SIGCONT);
}

static void take_signal(pid_t program, const siginfo_t *signal)
{
    if (signal->si_signo == SIGCONT)
        have_it_continue(program);
    else if (signal->si_signo != SIGCHLD && !came_from_the_terminal(signal))
        kill(program, signal->si_signo);
}

/* True with the status once the program is gone. */
static bool has_ended(pid_t program, int *status)
{
    while (waitpid(program, status, WNOHANG | WUNTRACED) == program) {
        if (!WIFSTOPPED(*status))
            return true;
        stop_by(WSTOPSIG(*status));
    }
    return false;
}

static int wait_for_end(pid_t program, const sigset_t *watched, struct program_end *end)
{
    siginfo_t signal;
    int status;

    while (!has_ended(program, &status))
        if (sigwaitinfo(watched, &signal) > 0)
            take_signal(program, &signal);
    *end = (struct program_end){program, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                                WIFSIGNALED(status) ? 0 : WEXITSTATUS(status)};
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool program_run(char **argv, const struct program_files *files, struct program_end *end,
                 int *exit_status)
{
    sigset_t watched, before;
    struct sigaction by_default = {.sa_handler = SIG_DFL}, inherited;
    pid_t self = getpid();

    *end = (struct program_end){0, 0, 0};

    /* Whoever started us may have chosen to ignore it, and then there would be no status. */
    sigaction(SIGCHLD, &by_default, &inherited);
    signals_to_watch(&watched);
    sigprocmask(SIG_BLOCK, &watched, &before);
    pid_t program = fork();
    if (program == 0) {
        sigaction(SIGCHLD, &inherited, NULL);
        become_the_program(argv, files, &before, self);
    }
    if (program < 0) {
        int error = errno;
        sigaction(SIGCHLD, &inherited, NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        errno = error;
        return false;
    }
    *exit_status = wait_for_end(program, &watched, end);
    return true;
}
