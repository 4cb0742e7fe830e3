/*
 * Programs whose figures are looked at when they are gone, and the one that kills them.
 *
 * usage: figures exit|_exit|abort|kill|sizes|exec|fork|wait   allocates and frees, and ends that
 * way figures work FILE           goes on in threads until it is killed figures rounds COUNT
 * CUDAPOOL PRELOAD DIRECTORY      kills such a one at random moments figures truncated BYTES FILES
 * FILES, a shell's pattern, are truncated meanwhile, and it goes on in threads figures
 * truncated_for_deaf BYTES FILES    the same, and all signals are blocked figures leave_child
 * a child of a fork goes on when it is killed, for two seconds figures bus WHAT            gets a
 * SIGBUS that has nothing to do with figures: of a page that its file does not have, "handled"
 * where it has a handler, "chained" where that one calls the one before it, or "sent", or "awaited"
 * by a thread of many that block it
 *
 * Each thread of "work" has a block size of its own and keeps a tally in FILE, which is mapped:
 * what it has begun, and what it has completed. Whatever moment the kill hits, what the figures say
 * of the size must lie between the two.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "pool.h"

#define THREADS 4

struct tally {
    struct {
        _Atomic uint64_t allocations_begun, allocations_done, frees_begun, frees_done;
    } threads[THREADS];
    _Atomic int ready;
};

/* Powers of two, which every policy leaves as they are. */
static uint64_t size_of(int thread)
{
    return MIB << thread;
}

static struct tally *map_tally(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(struct tally)) == 0);
    void *memory = mmap(NULL, sizeof(struct tally), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    close(fd);
    return memory;
}

/* --- the program that is killed -----------------------------------------------------------------
 */

static struct tally *tally;
static CUcontext shared_context;

/* More than one block at a time, so that blocks wait for fences and caps are met. */
static void *work(void *argument)
{
    int self = (int)(intptr_t)argument;
    CUdeviceptr blocks[8] = {0};
    CU(cuCtxSetCurrent(shared_context));
    for (unsigned i = 0;; i = (i + 1) % 8) {
        if (blocks[i]) {
            tally->threads[self].frees_begun++;
            CU(cuMemFree_v2(blocks[i]));
            tally->threads[self].frees_done++;
        }
        tally->threads[self].allocations_begun++;
        CU(cuMemAlloc_v2(&blocks[i], size_of(self)));
        tally->threads[self].allocations_done++;
        if (i == 0)
            tally->ready |= 1 << self;
    }
    return NULL;
}

static void work_until_killed(const char *path)
{
    pthread_t threads[THREADS];
    tally = map_tally(path);
    CU(cuCtxGetCurrent(&shared_context));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i) == 0);
    pthread_join(threads[0], NULL);
}

/* --- the one whose file is truncated
 * ---------------------------------------------------------------
 */

static void *take_and_give(void *argument)
{
    CUdeviceptr blocks[8] = {0};
    CU(cuCtxSetCurrent(shared_context));
    for (unsigned i = 0; i < 20000; i++) {
        if (blocks[i % 8])
            CU(cuMemFree_v2(blocks[i % 8]));
        CU(cuMemAlloc_v2(&blocks[i % 8], size_of((int)(intptr_t)argument)));
    }
    for (unsigned i = 0; i < 8; i++)
        CU(cuMemFree_v2(blocks[i]));
    return NULL;
}

static void block_all_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
}

static void go_on_when_truncated(off_t bytes, const char *pattern)
{
    pthread_t threads[THREADS];
    size_t before, after, total;
    glob_t found;
    CU(cuCtxGetCurrent(&shared_context));
    CU(cuMemGetInfo_v2(&before, &total));
    CHECK(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, take_and_give, (void *)(intptr_t)i) == 0);
    CHECK(truncate(found.gl_pathv[0], bytes) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    /* Sizes that are new, so that their counters are. */
    for (size_t i = 1; i < 100; i++)
        CU(cuMemFree_v2(take(i * 3 * MIB / 2)));
    CU(cuMemGetInfo_v2(&after, &total));
    CHECK(after <= before);
}

/* --- a SIGBUS of the program's own
 * ------------------------------------------------------------------
 */

static struct sigaction earlier_action;
static sigjmp_buf where_to_go_on;
static char *own_page;

static void on_own_bus_error(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    CHECK(info->si_addr == own_page && info->si_code == BUS_ADRERR);
    siglongjmp(where_to_go_on, 1);
}

static void on_chained_bus_error(int signal, siginfo_t *info, void *context)
{
    CHECK(info->si_addr == own_page && (earlier_action.sa_flags & SA_SIGINFO) != 0);
    earlier_action.sa_sigaction(signal, info, context);
}

static void handle_bus_errors(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, &action, &earlier_action) == 0);
}

static void touch_own_page(void)
{
    char path[] = "/tmp/figures-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    own_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(own_page != MAP_FAILED);
    if (sigsetjmp(where_to_go_on, 1) == 0)
        *(volatile char *)own_page = 1;
}

static void *use_the_pool(void *barrier)
{
    CU(cuCtxSetCurrent(shared_context));
    CU(cuMemFree_v2(take(MIB)));
    pthread_barrier_wait(barrier); /* it may be sent now */
    pthread_barrier_wait(barrier); /* it has come */
    return NULL;
}

/* Every thread blocks the signal, and one waits for it. */
static void await_bus_error(void)
{
    pthread_t thread;
    pthread_barrier_t barrier;
    sigset_t bus_error;
    siginfo_t info;
    CU(cuCtxGetCurrent(&shared_context));
    /* So much that the pool makes a thread of its own. */
    CU(cuMemFree_v2(take(64 * MIB)));
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(pthread_create(&thread, NULL, use_the_pool, &barrier) == 0);
    pthread_barrier_wait(&barrier);
    CHECK(sigqueue(getpid(), SIGBUS, (union sigval){.sival_int = 5}) == 0);
    sigemptyset(&bus_error);
    sigaddset(&bus_error, SIGBUS);
    int got;
    /* As sigwait does: a thread may be woken by a signal that another one takes and sends on. */
    do
        got = sigtimedwait(&bus_error, &info, &(struct timespec){.tv_sec = 30});
    while (got < 0 && errno == EINTR);
    CHECK(got == SIGBUS);
    CHECK(info.si_code == SI_QUEUE && info.si_value.sival_int == 5);
    pthread_barrier_wait(&barrier);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Twice: a handler that stood aside once must not be missed, nor come back. */
static void get_a_bus_error(const char *what)
{
    if (strcmp(what, "awaited") == 0) {
        await_bus_error();
        return;
    }
    if (strcmp(what, "sent") == 0) {
        union sigval value = {.sival_int = 5};
        CHECK(sigqueue(getpid(), SIGBUS, value) == 0);
    }
    if (strcmp(what, "chained") == 0)
        handle_bus_errors(on_chained_bus_error);
    touch_own_page();
    touch_own_page();
}

/* --- the one that kills --------------------------------------------------------------------------
 */

struct row {
    uint64_t requests, hits, misses, frees, requested, live, cached, pending, peak_reserved;
};

static void between(uint64_t least, uint64_t value, uint64_t most, const char *what, int thread)
{
    if (value < least || value > most)
        FAIL("thread %d: %s is %" PRIu64 ", not from %" PRIu64 " to %" PRIu64, thread, what, value,
             least, most);
}

static void check_row(const struct tally *said, int thread, const struct row *row)
{
    uint64_t bytes = size_of(thread);
    uint64_t begun = said->threads[thread].allocations_begun;
    uint64_t done = said->threads[thread].allocations_done;
    uint64_t frees_begun = said->threads[thread].frees_begun;
    uint64_t frees_done = said->threads[thread].frees_done;
    CHECK(row->requests == row->hits + row->misses);
    between(done, row->requests, begun, "requests", thread);
    between(frees_done, row->frees, frees_begun, "frees", thread);
    between(done * bytes, row->requested, begun * bytes, "requested bytes", thread);
    /* One block less, where another is on its way to the driver: see core/figures/stats.h. */
    between((done > frees_begun + 1 ? done - frees_begun - 1 : 0) * bytes, row->live,
            (begun - frees_done) * bytes, "live bytes", thread);
    between(row->live + row->cached + row->pending, row->peak_reserved, UINT64_MAX,
            "the peak of what was reserved", thread);
}

/* The columns of `cudapool report --format csv` from the bucket's size on. */
static bool read_row(const char *line, uint64_t *bytes, struct row *row)
{
    uint64_t n[21];
    const char *field = strstr(line, ",device,");
    /* The heading has the word as well. */
    if (field == NULL || (field += strlen(",device,"))[0] < '0' || field[0] > '9')
        return false;
    for (int i = 0; i < 21; i++) {
        char *end;
        n[i] = strtoull(field, &end, 10);
        CHECK(end != field);
        field = end + 1;
    }
    *bytes = n[0];
    *row = (struct row){.requests = n[1],
                        .hits = n[2] + n[3] + n[4] + n[5],
                        .misses = n[6],
                        .frees = n[11],
                        .requested = n[12],
                        .live = n[15],
                        .cached = n[16],
                        .pending = n[17],
                        .peak_reserved = n[19]};
    return true;
}

static void check_report(const char *cudapool, const char *directory, const struct tally *said)
{
    char command[2048], line[4096];
    struct row row;
    uint64_t bytes;
    int found = 0;
    snprintf(command, sizeof command, "'%s' report --format csv '%s'/*.figures", cudapool,
             directory);
    FILE *output = popen(command, "r");
    CHECK(output != NULL);
    while (fgets(line, sizeof line, output) != NULL)
        for (int i = 0; read_row(line, &bytes, &row) && i < THREADS; i++)
            if (bytes == size_of(i)) {
                check_row(said, i, &row);
                found++;
            }
    CHECK(pclose(output) == 0);
    CHECK(found == THREADS);
}

static pid_t start(const char *self, const char *preload, const char *directory, const char *file)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("LD_PRELOAD", preload, 1);
        setenv("CUDAPOOL_FIGURES", directory, 1);
        setenv("CUDAPOOL_REPORT", "none", 1);
        execl(self, self, "work", file, NULL);
        _exit(127);
    }
    return child;
}

static void kill_at_random(const char *self, char **arguments, unsigned random)
{
    char file[1024], command[1200];
    int status;
    snprintf(file, sizeof file, "%s/tally", arguments[3]);
    unlink(file);
    struct tally *said = map_tally(file);
    pid_t child = start(self, arguments[2], arguments[3], file);
    while (said->ready != (1 << THREADS) - 1) {
        CHECK(waitpid(child, &status, WNOHANG) == 0);
        usleep(200);
    }
    usleep(random % 4000);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    check_report(arguments[1], arguments[3], said);
    snprintf(command, sizeof command, "rm '%s'/*.figures", arguments[3]);
    CHECK(system(command) == 0);
    munmap(said, sizeof *said);
}

static int kill_in_rounds(const char *self, char **arguments)
{
    /* The same moments each time are as good as any: the machine makes them random. */
    unsigned random = 1;
    for (int i = 0; i < atoi(arguments[0]); i++) {
        random = random * 1103515245 + 12345;
        kill_at_random(self, arguments, random >> 8);
    }
    return 0;
}

/* --- those that end by themselves
 * ----------------------------------------------------------------- */

static void allocate_and_free(void)
{
    for (int i = 0; i < 100; i++)
        CU(cuMemFree_v2(take(MIB)));
}

/* What is cached is the same in every such process, however fast the device is. */
static void allocate_and_free_32(void)
{
    CUdeviceptr blocks[32];
    for (int i = 0; i < 32; i++)
        blocks[i] = take(MIB);
    for (int i = 0; i < 32; i++)
        CU(cuMemFree_v2(blocks[i]));
    CU(cuCtxSynchronize());
}

/* So many that their counters do not fit into the file as it was made. */
static void allocate_many_sizes(void)
{
    for (size_t i = 1; i <= 2500; i++)
        CU(cuMemFree_v2(take(i << 11)));
}

static void end(const char *how, char **argv)
{
    static const struct rlimit no_core = {0, 0};
    int status;
    if (strcmp(how, "_exit") == 0)
        _exit(0);
    if (strcmp(how, "abort") == 0 && setrlimit(RLIMIT_CORE, &no_core) == 0)
        abort();
    if (strcmp(how, "sizes") == 0)
        allocate_many_sizes();
    if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(how, "exec") == 0)
        execl(argv[0], argv[0], "exit", NULL);
    if (strcmp(how, "fork") == 0) {
        pid_t child = fork();
        if (child > 0)
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        /* The child exits as well. The parent must still have its file then. */
        if (child > 0 && getenv("AFTER_FORK"))
            CHECK(system(getenv("AFTER_FORK")) == 0);
    }
    if (strcmp(how, "leave_child") == 0) {
        if (fork() > 0)
            kill(getpid(), SIGKILL);
        sleep(2);
        _exit(0);
    }
    if (strcmp(how, "wait") == 0) {
        printf("ready %ld\n", (long)getpid());
        fflush(stdout);
        pause();
    }
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (strcmp(argv[1], "rounds") == 0 && argc == 6)
        return kill_in_rounds(argv[0], argv + 2);
    CUcontext context;
    if (strcmp(argv[1], "bus") == 0 && (argv[2][0] == 'h' || argv[2][0] == 'c'))
        handle_bus_errors(on_own_bus_error);
    if (strcmp(argv[1], "bus") == 0 && argv[2][0] == 'a')
        block_all_signals();
    CU(cuInit(0));
    CU(cuCtxCreate_v2(&context, 0, 0));
    if (strcmp(argv[1], "work") == 0 && argc == 3) {
        work_until_killed(argv[2]);
        return 1;
    }
    if (strcmp(argv[1], "wait") == 0)
        allocate_and_free_32();
    else
        allocate_and_free();
    if (strcmp(argv[1], "truncated_for_deaf") == 0)
        block_all_signals();
    if (strncmp(argv[1], "truncated", strlen("truncated")) == 0 && argc == 4)
        go_on_when_truncated(atol(argv[2]), argv[3]);
    if (strcmp(argv[1], "bus") == 0 && argc == 3)
        get_a_bus_error(argv[2]);
    end(argv[1], argv);
    return 0;
}
