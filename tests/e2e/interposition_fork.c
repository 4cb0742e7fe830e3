/*
 * Processes that fork, before and after they use CUDA.
 *
 * usage: interposition_fork before|after|nested|vfork PROGRAM
 * before: the child is the one that uses CUDA. after: the child of a process that has used it frees
 * what its parent allocated and ends by exit. nested: the same by a grandchild. vfork: both vfork
 * and exec PROGRAM.
 */
#include <sys/wait.h>

#include "interposition.h"

static CUdeviceptr pointer;

static void use_cuda(void)
{
    CUcontext context;
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    for (int i = 0; i < 10; i++) {
        CU(cuMemAlloc_v2(&pointer, 10000));
        if (i < 9)
            CU(cuMemFree_v2(pointer));
    }
}

/* What the driver says in a child is its own business; the calls must return. */
static void touch_the_parents_memory(void)
{
    CUdeviceptr another;
    size_t free_bytes, total_bytes;
    (void)cuMemFree_v2(pointer);
    (void)cuMemAlloc_v2(&another, 1000);
    (void)cuMemGetInfo_v2(&free_bytes, &total_bytes);
    (void)cuCtxSynchronize();
}

static void wait_for_success_of(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        FAIL("the child ended with status %#x", (unsigned)status);
}

static void in_a_child(void (*what)(void))
{
    pid_t child = fork();
    if (child == 0) {
        what();
        exit(0);
    }
    wait_for_success_of(child);
}

static void touch_in_a_child(void)
{
    touch_the_parents_memory();
    in_a_child(touch_the_parents_memory);
}

static void run_by_vfork(char *program)
{
    char *arguments[] = {program, NULL};
    pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork): what is tested */
    if (child == 0) {
        execv(program, arguments);
        _exit(127);
    }
    wait_for_success_of(child);
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (strcmp(argv[1], "before") == 0) {
        in_a_child(use_cuda);
        return 0;
    }
    use_cuda();
    if (strcmp(argv[1], "after") == 0)
        in_a_child(touch_the_parents_memory);
    else if (strcmp(argv[1], "nested") == 0)
        in_a_child(touch_in_a_child);
    else if (strcmp(argv[1], "vfork") == 0 && argc > 2)
        run_by_vfork(argv[2]);
    else
        FAIL("no such case: %s", argv[1]);
    CU(cuMemFree_v2(pointer));
    return 0;
}
