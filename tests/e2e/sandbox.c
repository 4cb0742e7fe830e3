/*
 * Programs that forbid themselves to open files once they use CUDA: an open ends them. What they
 * allocate afterwards is answered as before.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "pool.h"

static void forbid(unsigned int first, unsigned int last, unsigned int answer)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, last, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

static void enter(void)
{
#ifdef SYS_open
    forbid(SYS_open, SYS_openat, SECCOMP_RET_KILL_PROCESS);
#else
    forbid(SYS_openat, SYS_openat, SECCOMP_RET_KILL_PROCESS);
#endif
    /* Those that were closed are missing as well. */
    if (getenv("CLOSE_ALL"))
        for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
            close(fd);
}

/* The first pinned memory of the process among it. */
static void pinned(void)
{
    void *memory;
    for (size_t i = 1; i <= 100; i++) {
        CU(cuMemHostAlloc(&memory, i * 30000, 0));
        memset(memory, (int)i, i * 30000);
        CU(cuMemFreeHost(memory));
    }
}

static void pinned_before(void)
{
    void *memory;
    CU(cuMemHostAlloc(&memory, MIB, 0));
    CU(cuMemFreeHost(memory));
}

static void nothing(void)
{
}

static void device(void)
{
    for (size_t i = 1; i <= 64; i++)
        CU(cuMemFree_v2(take(i * MIB)));
}

/* More than the process has cached, and than others leave. */
static void all_of_a_device(void)
{
    CUdeviceptr memory;
    size_t left, total;
    device();
    CU(cuMemGetInfo_v2(&left, &total));
    if (cuMemAlloc_v2(&memory, left) == CUDA_SUCCESS)
        CU(cuMemFree_v2(memory));
    CU(cuMemFree_v2(take(left / 2)));
    sleep_ms(1500);
}

static void in_stream_order(void)
{
    CUstream stream = new_stream();
    for (size_t i = 1; i <= 64; i++)
        CU(cuMemFreeAsync(take_on(stream, i * MIB), stream));
    CU(cuStreamSynchronize(stream));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*before)(void), (*inside)(void);
    } cases[] = {
        {"pinned", nothing, pinned},
        {"pinned_before", pinned_before, pinned},
        {"device", device, all_of_a_device},
        {"in_stream_order", nothing, in_stream_order},
    };
    CHECK(argc > 1);
    open_primary();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].before();
            enter();
            cases[i].inside();
            return 7;
        }
    FAIL("no case \"%s\"", argv[1]);
}
