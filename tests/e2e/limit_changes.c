/*
 * The limit of a running process changes: it runs `cudapool limit` of itself, as CUDAPOOL_TOOL
 * says, and holds pieces meanwhile. LIMIT is 8 pieces.
 *
 * limit_changes kinds           of each kind: a limit comes, falls below what is held, and goes
 * limit_changes cached          what is cached makes room under a limit that fell
 * limit_changes threads         16 threads take all kinds while the limit comes and goes
 * limit_changes child           a program that this one starts has the limit, and its settings else
 * limit_changes takes N         takes N pieces and no more, and says so
 * limit_changes holds N         takes N pieces, the last one by cuMemCreate, says so, and holds
 *                               them until its stdin ends
 */
#include <sys/wait.h>
#include <unistd.h>

#include "limited.h"

enum { CASE = 2 };

static const char *argument;

/* The tool is no program of the pool's. */
static void set_limit(const char *size)
{
    char command[4096];
    const char *tool = getenv("CUDAPOOL_TOOL");
    CHECK(tool != NULL);
    snprintf(command, sizeof command,
             "env -u LD_PRELOAD -u CUDAPOOL_CONFIG %s limit %d %s >/dev/null", tool, (int)getpid(),
             size);
    CHECK(system(command) == 0);
}

static void take_all(const struct kind *kind, union piece *pieces, int count)
{
    for (int i = 0; i < count; i++)
        CU(kind->take(&pieces[i]));
}

static void give_all(const struct kind *kind, union piece *pieces, int count)
{
    for (int i = 0; i < count; i++)
        CU(kind->free(&pieces[i]));
    CU(cuStreamSynchronize(stream));
}

/* What is cached beyond the limit still serves requests, until it has gone back. */
static void await_refusal(const struct kind *kind)
{
    union piece more;
    CUresult result;
    for (int i = 0; (result = kind->take(&more)) == CUDA_SUCCESS && i < 500; i++) {
        give_all(kind, &more, 1);
        sleep_ms(20);
    }
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, result);
}

static void change(const struct kind *kind)
{
    union piece pieces[2 * PIECES], more;
    take_all(kind, pieces, PIECES);
    set_limit("256MiB");
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, kind->take(&more));
    EQUAL(0, left());
    /* What is held stays, and there is room again once less is held. */
    set_limit("128MiB");
    give_all(kind, pieces, PIECES / 2);
    EQUAL(0, left());
    await_refusal(kind);
    give_all(kind, pieces + PIECES / 2, 1);
    IS_LEFT(PIECE);
    CU(kind->take(&pieces[PIECES / 2]));
    await_refusal(kind);
    set_limit("settings");
    take_all(kind, pieces, PIECES / 2);
    take_all(kind, pieces + PIECES, PIECES);
    give_all(kind, pieces, 2 * PIECES);
}

static size_t told_total(void)
{
    size_t available, all;
    CU(cuMemGetInfo_v2(&available, &all));
    return all;
}

static void all_kinds(void)
{
    open_all();
    size_t total = told_total();
    for (int k = 0; k < KINDS; k++)
        change(&kinds[k]);
    set_limit("128MiB");
    size_t all = told_total();
    CHECK(all == total);
}

static void cached(void)
{
    union piece pieces[PIECES];
    open_all();
    for (int k = 0; k < KINDS; k++) {
        const struct kind *kind = &kinds[k];
        take_all(kind_named("plain"), pieces, PIECES);
        give_all(kind_named("plain"), pieces, PIECES);
        set_limit("128MiB");
        IS_LEFT(LIMIT / 2);
        take_all(kind, pieces, PIECES / 2);
        await_refusal(kind);
        set_limit("settings");
        give_all(kind, pieces, PIECES / 2);
    }
}

static _Atomic bool over;

static void *take_and_free(void *number)
{
    union piece piece;
    unsigned seed = (unsigned)(uintptr_t)number;
    use_primary();
    while (!over) {
        const struct kind *kind = &kinds[(unsigned)rand_r(&seed) % KINDS];
        CUresult result = kind->take(&piece);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            continue;
        CU(result);
        CU(kind->free(&piece));
    }
    return NULL;
}

static void threads(void)
{
    pthread_t threads[THREADS];
    open_all();
    begin_threads(threads, take_and_free);
    for (int i = 0; i < 5; i++) {
        set_limit("64MiB");
        set_limit("settings");
        set_limit("256MiB");
    }
    over = true;
    end_threads(threads);
}

static void takes(void)
{
    union piece piece;
    open_all();
    for (int i = atoi(argument); i > 0; i--)
        CU(take_plain(&piece));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, take_plain(&piece));
    printf("took %s\n", argument);
}

static void holds(void)
{
    union piece piece;
    char byte;
    open_all();
    for (int i = atoi(argument); i > 0; i--)
        CU(i == 1 ? take_physical(&piece) : take_plain(&piece));
    printf("holds %s\n", argument);
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
}

static void start_another(const char *name, const char *number)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "limit_changes", name, number, (char *)NULL);
        _exit(126);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

static void child(void)
{
    open_all();
    set_limit("128MiB");
    start_another("takes", "4");
    set_limit("settings");
    start_another("takes", "16");
}

static const struct test_case cases[] = {
    {"kinds", all_kinds}, {"cached", cached}, {"threads", threads}, {"child", child},
    {"takes", takes},     {"holds", holds},   {NULL, NULL},
};

int main(int argc, char **argv)
{
    argument = argc > CASE ? argv[CASE] : "";
    return run_case(argc, argv, cases);
}
