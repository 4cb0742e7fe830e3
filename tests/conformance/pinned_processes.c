/*
 * Probes about pinned host memory and processes: children of a fork, and limits of a process.
 * Another process makes them: pinned_elsewhere.c.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pinned.h"

enum { PAGE = 4096, SMALL = 65536 };

/* --- forks -------------------------------------------------------------------------------------*/

static unsigned char *block_to_inherit(void)
{
    unsigned char *block = allocate_host(SMALL, CU_MEMHOSTALLOC_PORTABLE);
    memset(block, 0xA5, SMALL);
    return block;
}

/* What a child of a fork says of the block: its exit status, or less than 0: how it was ended. */
static int in_child(unsigned char *block, int (*say)(unsigned char *))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(5);
        _exit(say(block));
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -10 - WTERMSIG(status);
}

static int reads(unsigned char *block)
{
    return *(volatile unsigned char *)block == 0xA5 ? 0 : 1;
}

static int frees(unsigned char *block)
{
    CUresult result = cuMemFreeHost(block);
    return result > 125 ? 126 : (int)result;
}

double child_reads(void)
{
    return in_child(block_to_inherit(), reads);
}

double child_frees(void)
{
    return in_child(block_to_inherit(), frees);
}

/* How many words the GPU gets wrong that the parent has written since. */
static double parent_writes_after(int (*say)(unsigned char *))
{
    unsigned char *block = block_to_inherit();
    in_child(block, say);
    memset(block, 0x5A, SMALL);
    spin_then_verify(gpu.a, 0, address_of(block), SMALL / 4, 0x5A5A5A5A);
    return (double)wrong_words();
}

double parent_writes_after_child_reads(void)
{
    return parent_writes_after(reads);
}

double parent_writes_after_child_frees(void)
{
    return parent_writes_after(frees);
}

/* --- limits ------------------------------------------------------------------------------------*/

static void lock_no_memory(void)
{
    const struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
}

static double allocates_unlocked(size_t bytes)
{
    void *block = NULL;
    lock_no_memory();
    return cuMemHostAlloc(&block, bytes, 0);
}

double allocates_small_without_locks(void)
{
    return allocates_unlocked(PAGE);
}

double allocates_large_without_locks(void)
{
    return allocates_unlocked(16 * MIB);
}

double registers_without_locks(void)
{
    void *own = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    lock_no_memory();
    return cuMemHostRegister_v2(own, 16 * MIB, CU_MEMHOSTALLOC_PORTABLE);
}
