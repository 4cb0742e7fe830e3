/*
 * Processes that one process steers, for programs about memory that processes share.
 *
 * A program starts itself again: fork and exec, so that each process has a driver of its own and
 * the environment's LD_PRELOAD. The first process makes no driver call. It gives orders through a
 * pipe and reads one answer to each from another; a process that it has started ends with it.
 * Orders can be begun in several processes before an answer is read. Not thread-safe.
 */
#ifndef CUDAPOOL_TESTS_GPU_PROCESSES_H
#define CUDAPOOL_TESTS_GPU_PROCESSES_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "gpu.h"

/* Above what a process that steers many others has open. */
enum { ORDERS_FD = 1000, ANSWERS_FD = 1001, ANSWER_SECONDS = 100 };

/* What the numbers of an order and of an answer mean, the order says. */
struct order {
    uint32_t what, count;
    uint64_t bytes, ms;
};
struct answer {
    uint64_t count, bytes;
    double ms, longest_ms;
};

struct process {
    pid_t pid;
    int orders, answers;
    unsigned int unanswered;
};

/* ---- in the process that steers ---- */

static inline void become_child(int orders, int answers, const char *const *variables, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(orders, ORDERS_FD) < 0 || dup2(answers, ANSWERS_FD) < 0)
        _exit(126);
    for (; variables != NULL && *variables != NULL; variables++)
        putenv((char *)(uintptr_t)*variables);
    execv("/proc/self/exe", argv);
    _exit(126);
}

/* Starts this program with these arguments, and variables (ended by NULL, or NULL) added to its
 * environment. */
static inline void start_process(struct process *process, char **argv, const char *const *variables)
{
    int orders[2], answers[2];
    if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0)
        FAIL("pipe2: %s", strerror(errno));
    fflush(NULL);
    process->pid = fork();
    if (process->pid < 0)
        FAIL("fork: %s", strerror(errno));
    if (process->pid == 0)
        become_child(orders[0], answers[1], variables, argv);
    close(orders[0]);
    close(answers[1]);
    process->orders = orders[1];
    process->answers = answers[0];
    process->unanswered = 0;
}

static inline void begin_order(struct process *process, struct order order)
{
    if (write(process->orders, &order, sizeof order) != (ssize_t)sizeof order)
        FAIL("process %d takes no orders: %s", process->pid, strerror(errno));
    process->unanswered++;
}

/* The answer to the oldest order that has none. */
static inline struct answer await_answer(struct process *process)
{
    struct answer answer;
    struct pollfd ready = {.fd = process->answers, .events = POLLIN};
    if (poll(&ready, 1, ANSWER_SECONDS * 1000) != 1)
        FAIL("process %d has not answered for %d s", process->pid, ANSWER_SECONDS);
    if (read(process->answers, &answer, sizeof answer) != (ssize_t)sizeof answer)
        FAIL("process %d has ended", process->pid);
    process->unanswered--;
    return answer;
}

static inline struct answer give_order(struct process *process, struct order order)
{
    begin_order(process, order);
    return await_answer(process);
}

/* Closes the process's pipes and waits for its end; its status as waitpid has it. */
static inline int end_process(struct process *process)
{
    int status;
    close(process->orders);
    if (waitpid(process->pid, &status, 0) != process->pid)
        FAIL("waitpid: %s", strerror(errno));
    close(process->answers);
    return status;
}

static inline void kill_process(struct process *process)
{
    kill(process->pid, SIGKILL);
    end_process(process);
}

/* ---- in a process that was started ---- */

/* False where there are no more: the process that steers is done with this one. */
static inline bool next_order(struct order *order)
{
    return read(ORDERS_FD, order, sizeof *order) == (ssize_t)sizeof *order;
}

/* Whether the next order, or the end of them, is there; waits for it for so many milliseconds. */
static inline bool order_is_there(int ms)
{
    struct pollfd ready = {.fd = ORDERS_FD, .events = POLLIN};
    return poll(&ready, 1, ms) == 1;
}

static inline void give_answer(struct answer answer)
{
    if (write(ANSWERS_FD, &answer, sizeof answer) != (ssize_t)sizeof answer)
        _exit(1);
}

#endif
