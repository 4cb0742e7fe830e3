/*
 * The command line of cudapool (tools/): whatever the arguments, LD_PRELOAD and the files are, the
 * exit status is one that the help names, errors are lines that begin with "cudapool: ", and
 * without an error there is nothing on stderr. A program that can be run is "run" by making a note
 * of it, and "top" ends after its first screen.
 *
 * The input is arguments, each up to a NUL byte, an empty one, and the file that "file" stands for.
 * Arguments that set LD_PRELOAD or CUDAPOOL_CONFIG are the environment. What the file holds is also
 * what the board says, in place of the machine's own, on which other people's processes are:
 * whatever its processes are and answer, each demand comes to its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>

#define main cudapool_main
#include "tools/cudapool.c" /* NOLINT(bugprone-suspicious-include) */
#undef main

#include "core/board/board.h"
#include "core/settings/config_json.h"
#include "fuzz.h"

#define ERRORS_MOST 1000
#define ARGUMENTS   8 /* a file more than once, too */

static unsigned programs_run;

/* --- the board ----------------------------------------------------------------------------------
 */

/* Of each process, so many bytes of the file; and so many looks until nothing is pending. */
#define PROCESS_BYTES 80u
#define LOOKS         3u

struct board {
    const uint8_t *data;
    size_t processes;
};

struct board_demand {
    bool is_open;
    unsigned looks;
    struct board_progress progress;
};

static struct board the_board;
static struct board_demand demands[BOARD_DEMANDS];

struct board *board_visit(const char **why)
{
    *why = "it is empty";
    return the_board.processes > 0 ? &the_board : NULL;
}

void board_leave(struct board *board)
{
    PROMISE(board == &the_board, "another board");
    for (unsigned i = 0; i < BOARD_DEMANDS; i++)
        PROMISE(!demands[i].is_open, "a demand is left");
}

/* What the real one checks is so here, and nothing else. */
bool board_next_process(struct board *board, unsigned *slot, struct board_process *process)
{
    if (*slot >= board->processes)
        return false;
    const uint8_t *from = board->data + (size_t)PROCESS_BYTES * (*slot)++;

    memset(process, 0, sizeof(*process));
    memcpy(&process->pid, from, 4);
    process->pid &= INT32_MAX;
    process->pid_namespace = from[4];
    process->listens = from[5] & 1;
    process->asks = from[5] & 2;
    process->device_count = from[6] % (BOARD_DEVICES + 1);
    memcpy(process->group, from + 8, 24);
    for (unsigned i = 0; i < process->device_count; i++) {
        memcpy(process->devices[i].uuid, from + 32, 16);
        process->devices[i].uuid[0] = (unsigned char)(from[32] + i * (from[7] & 1));
        memcpy(&process->devices[i].held, from + 48, 32); /* cached, pending and given as well */
    }
    return true;
}

struct board_demand *board_trim(struct board *board, const struct board_process *process,
                                const unsigned char *uuid, const char **why)
{
    *why = "it does not listen";
    PROMISE(uuid == NULL || board->processes > 0, "a device of nobody");
    if (process->pid % 3 == 0)
        return NULL;
    for (unsigned i = 0; i < BOARD_DEMANDS; i++) {
        if (demands[i].is_open)
            continue;
        demands[i] = (struct board_demand){.is_open = true};
        memcpy(&demands[i].progress, board->data, 16);
        demands[i].progress.silent = process->pid % 3 == 1;
        return &demands[i];
    }
    PROMISE(false, "more than %u demands", BOARD_DEMANDS);
}

struct board_progress board_demand_look(struct board_demand *demand)
{
    PROMISE(demand->is_open, "it is over");
    if (++demand->looks > LOOKS)
        demand->progress.pending = 0;
    return demand->progress;
}

void board_demand_end(struct board_demand *demand)
{
    PROMISE(demand->is_open, "it is over");
    demand->is_open = false;
}

/* --- programs -----------------------------------------------------------------------------------
 */

static void promise_environment(void)
{
    const char *list = getenv("LD_PRELOAD"), *config = getenv("CUDAPOOL_CONFIG");
    struct settings settings;
    char error[ERROR_BYTES];

    PROMISE(list != NULL && strstr(list, "libcudapool_preload.so") != NULL, "the library");
    PROMISE(config == NULL || config[0] == '\0' ||
                config_read(config, &settings, error, sizeof(error)) == 0,
            "%s", error);
}

/* Instead of libc's. */
int execvp(const char *file, char *const argv[])
{
    PROMISE(file == argv[0], "%s", file);
    promise_environment();
    programs_run++;
    errno = ENOENT;
    return -1;
}

/* Where the program would have been waited for: the command becomes the program then. */
pid_t fork(void)
{
    promise_environment();
    errno = EAGAIN;
    return -1;
}

/* Instead of the time between two screens of "top": its user has had enough. ("run", which came
 * before in this process, lets its program have the signals.) "trim" just waits. */
int poll(struct pollfd *keys, nfds_t count, int timeout)
{
    struct sigaction action;
    sigset_t end;

    (void)keys, (void)count, (void)timeout;
    sigaction(SIGTERM, NULL, &action);
    if (action.sa_handler == SIG_DFL)
        return 0;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_UNBLOCK, &end, NULL);
    raise(SIGTERM);
    return 0;
}

/* -o and --output, which would write files of any name wherever this runs. */
static bool names_output(const char *argument)
{
    return strncmp(argument, "-o", 2) == 0 || strncmp(argument, "--o", 3) == 0;
}

static bool is_environment(const char *argument)
{
    return strncmp(argument, "LD_PRELOAD=", 11) == 0 ||
           strncmp(argument, "CUDAPOOL_CONFIG=", 16) == 0;
}

/* Takes the arguments off the input. How many. */
static int take_arguments(const uint8_t **data, size_t *bytes, char *file, char **argv,
                          char texts[ARGUMENTS][256])
{
    int argc = 1;

    argv[0] = "cudapool";
    for (int i = 0; i<ARGUMENTS && * bytes> 0 && **data != '\0'; i++) {
        take_text(data, bytes, texts[i], sizeof(texts[i]));
        char *value = strchr(texts[i], '=');
        if (strcmp(texts[i], "file") == 0)
            argv[argc++] = file;
        else if (is_environment(texts[i]))
            setenv(value[-1] == 'D' ? "LD_PRELOAD" : "CUDAPOOL_CONFIG", value + 1, 1);
        else if (!names_output(texts[i]))
            argv[argc++] = texts[i];
    }
    if (*bytes > 0 && **data == '\0') {
        ++*data;
        --*bytes;
    }
    argv[argc] = NULL;
    return argc;
}

static void promise_errors(char *errors, int argc)
{
    int lines = 0;
    char *rest = errors;

    for (char *line; (line = strsep(&rest, "\n")) != NULL && rest != NULL; lines++) {
        PROMISE(strncmp(line, "cudapool: ", 10) == 0, "%s", line);
        PROMISE(is_one_line(line), "%s", line);
    }
    /* Of settings that are wrong each error is a line. */
    PROMISE(lines <= argc + ERRORS_MOST, "%d lines for %d arguments", lines, argc);
}

/* Somebody did not give what he was asked for: trim says so where it says what others gave. */
static bool is_unanswered(int status, int argc, char *const *argv)
{
    return status == EXIT_FAILURE && argc > 1 && strcmp(argv[1], "trim") == 0;
}

/* Whether any line tells of more than a setting that has no effect any more, which is read. */
static bool tells_of_an_error(const char *errors)
{
    for (const char *end; *errors != '\0'; errors = end + (*end == '\n')) {
        static const char note[] = ": has no effect any more; the next version refuses it";
        end = errors + strcspn(errors, "\n");
        size_t length = (size_t)(end - errors), noted = sizeof note - 1;
        if (length < noted || memcmp(end - noted, note, noted) != 0)
            return true;
    }
    return false;
}

static void promise_outcome(int status, char *output, char *errors, int argc, char *const *argv)
{
    bool ran = status == EXIT_NOT_FOUND || status == EXIT_CANNOT_RUN;
    bool unanswered = is_unanswered(status, argc, argv);
    PROMISE(status == 0 || status == EXIT_BAD_INPUT || ran || unanswered, "status %d", status);
    PROMISE(unanswered || (status == 0) == !tells_of_an_error(errors), "status %d: %s", status,
            errors);
    PROMISE(ran == (programs_run == 1), "status %d", status);
    promise_errors(errors, argc);
    for (const char *c = output; *c != '\0'; c++)
        PROMISE((unsigned char)*c >= 0x20 || *c == '\n' || (*c == '\r' && c[1] == '\n'), "%s",
                output);
}

static void run_main(int argc, char **argv)
{
    FILE *const before[] = {stdout, stderr};
    char *output = NULL, *errors = NULL;
    size_t output_bytes, error_bytes;

    stdout = open_memstream(&output, &output_bytes);
    stderr = open_memstream(&errors, &error_bytes);
    optind = 0;
    programs_run = 0;
    int status = cudapool_main(argc, argv);
    fclose(stdout);
    fclose(stderr);
    stdout = before[0];
    stderr = before[1];
    promise_outcome(status, output, errors, argc, argv);
    free(output);
    free(errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct memory_file file;
    char texts[ARGUMENTS][256], *argv[ARGUMENTS + 2];

    if (file.path[0] == '\0') {
        /* What "-" stands for. */
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
    memory_file_open(&file);
    unsetenv("LD_PRELOAD");
    unsetenv("CUDAPOOL_CONFIG");
    unsetenv("CUDAPOOL_REPORT");
    int argc = take_arguments(&data, &bytes, file.path, argv, texts);
    memory_file_set(&file, data, bytes);
    the_board = (struct board){.data = data, .processes = bytes / PROCESS_BYTES};
    run_main(argc, argv);
    unsetenv("LD_PRELOAD");
    unsetenv("CUDAPOOL_REPORT");
    return 0;
}
