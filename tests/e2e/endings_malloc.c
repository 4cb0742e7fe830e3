/*
 * Programs that end inside malloc: a signal comes while a thread is there, and its handler calls
 * exit. Whoever calls malloc, or one of its relatives, from there on would find its lock held and
 * its lists half changed, so this program's own malloc ends the process then, with status 3.
 *
 * usage: endings_malloc FUNCTION   malloc, calloc, realloc or free
 */
#include <signal.h>

#include "pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    return 0; /* whose malloc it is */
}
#else

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void __libc_free(void *memory);

/* The function that is to be interrupted the next time, and whether it was: it has not returned
 * since. */
static const char *to_interrupt = "";
static volatile sig_atomic_t is_inside;

/* The pool's own thread comes by here as well. */
static void enter(const char *function)
{
    if (gettid() != getpid())
        return;
    if (is_inside) {
        static const char text[] = "inside malloc, malloc is called\n";
        ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
        (void)written;
        _exit(3);
    }
    if (strcmp(function, to_interrupt) == 0) {
        is_inside = 1;
        raise(SIGUSR1);
    }
}

void *malloc(size_t bytes)
{
    enter("malloc");
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    enter("calloc");
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    enter("realloc");
    return __libc_realloc(memory, bytes);
}

void free(void *memory)
{
    enter("free");
    __libc_free(memory);
}

static void end(int signal)
{
    (void)signal;
    exit(7); /* NOLINT(bugprone-signal-handler): what is tested */
}

/* So many that their rows are sorted in memory of some size. */
static void use_many_sizes(void)
{
    for (size_t i = 1; i <= 300; i++)
        CU(cuMemFree_v2(take(i << 12)));
}

int main(int argc, char **argv)
{
    CUcontext context;
    CHECK(argc == 2);
    CU(cuInit(0));
    CU(cuCtxCreate_v2(&context, 0, 0));
    use_many_sizes();
    CHECK(signal(SIGUSR1, end) != SIG_ERR);
    void *volatile memory[] = {malloc(10), NULL, NULL, NULL};
    to_interrupt = argv[1];
    memory[1] = realloc(memory[0], 20);
    free(memory[1]);
    memory[2] = calloc(1, 10);
    memory[3] = malloc(10);
    FAIL("%s was not interrupted", argv[1]);
}
#endif
