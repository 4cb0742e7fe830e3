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
#include <unistd.h>

#include "tool.h"

/* Those that ask a process to end or to do something. Signals of job control stop and continue this
 * process as they do the program, which is of the same group. */
static const int passed_on[] = {SIGHUP,  SIGINT,  SIGQUIT,  SIGTERM, SIGUSR1,
                                SIGUSR2, SIGALRM, SIGWINCH, SIGURG,  SIGIO};
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

/* True with the status once the program is gone. */
static bool has_ended(pid_t program, int *status)
{
    return waitpid(program, status, WNOHANG) == program;
}

static int wait_for_end(pid_t program, const sigset_t *watched, struct program_end *end)
{
    siginfo_t signal;
    int status;

    while (!has_ended(program, &status))
        if (sigwaitinfo(watched, &signal) > 0 && signal.si_signo != SIGCHLD &&
            !came_from_the_terminal(&signal))
            kill(program, signal.si_signo);
    *end = (struct program_end){program, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                                WIFSIGNALED(status) ? 0 : WEXITSTATUS(status)};
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int program_run(char **argv, const struct program_files *files, struct program_end *end)
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
        complain("%s: %s", argv[0], strerror(errno));
        return EXIT_CANNOT_RUN;
    }
    return wait_for_end(program, &watched, end);
}
