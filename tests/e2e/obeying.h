/*
 * What askers.c and shared_devices.c share: a case starts processes, each of which reads orders, a
 * name and a number, and answers each with a number. Included once by a program, after pool.h.
 */
#ifndef TESTS_E2E_OBEYING_H
#define TESTS_E2E_OBEYING_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "pool.h"

/* --- a process that obeys ----------------------------------------------------------------------*/

static CUdeviceptr held[256];
static unsigned int held_count;
static CUcontext context;

static long long keep(CUresult result, CUdeviceptr address)
{
    if (result == CUDA_SUCCESS)
        held[held_count++] = address;
    return result;
}

static long long allocate(size_t mib)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAlloc_v2(&address, mib * MIB);
    return keep(result, address);
}

static long long allocate_array(size_t mib)
{
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR what = {.Width = 1024,
                                  .Height = mib * 1024,
                                  .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                  .NumChannels = 1};
    return cuArrayCreate_v2(&array, &what);
}

static void open_device(void)
{
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
}

struct known_order {
    const char *name; /* NULL behind the last one */
    long long (*follow)(size_t number);
};

/* Until there are no more orders. */
static void obey_orders(const struct known_order *known)
{
    char name[32];
    size_t number;
    while (scanf("%31s %zu", name, &number) == 2) {
        const struct known_order *order = known;
        while (order->name != NULL && strcmp(order->name, name) != 0)
            order++;
        if (order->name == NULL)
            FAIL("no order \"%s\"", name);
        printf("%lld\n", order->follow(number));
        fflush(stdout);
    }
}

/* --- and those who have it ---------------------------------------------------------------------*/

struct process {
    pid_t pid;
    FILE *orders, *answers;
};

/* What the case has open of one process is not passed on to the next: it would not see its end. */
static struct process start(const char *what)
{
    int orders[2], answers[2];
    CHECK(pipe2(orders, O_CLOEXEC) == 0 && pipe2(answers, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* rivals do not end by themselves */
        dup2(orders[0], 0);
        dup2(answers[1], 1);
        execl("/proc/self/exe", program_invocation_short_name, what, NULL);
        _exit(127);
    }
    close(orders[0]);
    close(answers[1]);
    return (struct process){pid, fdopen(orders[1], "w"), fdopen(answers[0], "r")};
}

static void order(const struct process *process, const char *name, size_t number)
{
    fprintf(process->orders, "%s %zu\n", name, number);
    fflush(process->orders);
}

static long long answer_of(const struct process *process)
{
    long long answer;
    CHECK(fscanf(process->answers, "%lld", &answer) == 1);
    return answer;
}

static long long ask(const struct process *process, const char *name, size_t number)
{
    order(process, name, number);
    return answer_of(process);
}

/* Its status, as waitpid has it. */
static int wait_for_end(const struct process *process)
{
    int status;
    CHECK(waitpid(process->pid, &status, 0) == process->pid);
    fclose(process->orders);
    fclose(process->answers);
    return status;
}

static void kill_it(const struct process *process)
{
    kill(process->pid, SIGKILL);
    CHECK(WIFSIGNALED(wait_for_end(process)));
}

#endif
