/*
 * Processes that share a device: what one has freed, another can have, whatever the first one does.
 *
 * usage: neighbours CASE [name=value...]; each case starts processes of its own. Sizes are shares
 * of the device's memory, in blocks of a 140th of it, so that they mean the same on any device.
 *
 *   sleeping  one process has freed 68 blocks and sleeps; another wants 100, one after the other
 *   waiting   the first one's only thread waits for a kernel (kernel_ms=1000) meanwhile
 *   hitting   it allocates and frees a block of another size over and over
 *   behind    it has freed the 68 behind a kernel (kernel_ms=5000): the 100 are there when that is
 *             over
 *   stopped   it is stopped: the other may fail, but no call takes long for that (silent_ms=150)
 *   unaware   the other knows of no pool, and takes 80 blocks: the last ones slowly (pace_ms=500)
 *   turns     processes=4 take and free 60 % of the device in turn, rounds=200
 *   idle      one process has freed 60 blocks and sleeps: another, which knows of no pool, sees
 *             them within idle_ms=10000 and a second, and giving_ms=200
 *   alone     a loop of pairs in a process that has the device to itself, with the setting
 *             neighbours.enabled and without, runs=7 of each: how much slower
 *   wakeups   how often the pool's own thread wakes in a process that sleeps: with the pool alone
 *   group     processes=64 that allocate, free, fail and are killed at random, seconds=6, under a
 *             limit of each_mib=64 for each, together (group.h): with the pool alone
 *
 * The line at the end begins with the time that counts: until the last block is there (sleeping to
 * unaware), of all rounds, or until the memory is seen. It may be most_ms at most, if that is
 * given; kind=async frees stream-ordered memory instead of cuMemAlloc's.
 */
#include <dirent.h>

#include "group.h"

enum { SHARES = 140, CACHED = 68, WANTED = 100, IDLE = 60, UNAWARE_AT_ONCE = 66, UNAWARE = 80 };

static int argument_count;
static char **arguments;

static unsigned long number(const char *name, unsigned long otherwise)
{
    return argument(argument_count, arguments, name, otherwise);
}

static struct process open_process(const char *const *variables)
{
    struct process process;
    start_process(&process, (char *[]){arguments[0], (char[]){"--child"}, NULL}, variables);
    return process;
}

static const char *const without_pool[] = {"CUDAPOOL_DISABLE=1", NULL};

/* Opens the device in the process; the bytes of a share. */
static size_t open_device(struct process *process)
{
    struct answer answer = give_order(process, (struct order){.what = ORDER_OPEN});
    return answer.bytes / SHARES & ~(2 * MIB - 1);
}

static struct answer take(struct process *process, unsigned int count, size_t bytes)
{
    bool async = asked_for(argument_count, arguments, "kind=async");
    return give_order(process, (struct order){.what = async ? ORDER_TAKE_ASYNC : ORDER_TAKE,
                                              .count = count,
                                              .bytes = bytes});
}

static struct answer simple_order(struct process *process, uint32_t what)
{
    return give_order(process, (struct order){.what = what});
}

/* Prints the line at the end; the exit status. */
static __attribute__((format(printf, 3, 4))) int verdict(double ms, bool held, const char *format,
                                                         ...)
{
    unsigned long most = number("most_ms", 0);
    bool soon = most == 0 || ms <= (double)most;
    va_list rest;
    va_start(rest, format);
    printf("neighbours: %.1f ms, %s: %s, ", ms, held && soon ? "ok" : "FAIL", arguments[1]);
    vprintf(format, rest);
    va_end(rest);
    if (!soon)
        printf(", later than %lu ms", most);
    putchar('\n');
    return held && soon ? 0 : 1;
}

/* --- one caches, another wants -----------------------------------------------------------------*/

static struct process cacher, taker;
static size_t share;

/* The cacher has taken so many shares; the taker's device is open. */
static void open_pair(unsigned int shares, const char *const *takers_variables)
{
    cacher = open_process(NULL);
    taker = open_process(takers_variables);
    share = open_device(&cacher);
    open_device(&taker);
    if (take(&cacher, shares, share).count != shares)
        FAIL("the first process does not get %u shares", shares);
}

static void close_pair(void)
{
    if (end_process(&cacher) != 0 || end_process(&taker) != 0)
        FAIL("a process has ended badly");
}

/* must_see: cuMemGetInfo must have counted all that is wanted. */
static int judge_taking(double ms, struct answer taken, struct answer before, bool must_see,
                        const char *more)
{
    close_pair();
    return verdict(ms, taken.count == WANTED && (!must_see || before.bytes >= WANTED * share),
                   "%llu of %d blocks, longest %.1f ms, %llu seen free before%s",
                   (unsigned long long)taken.count, WANTED, taken.longest_ms,
                   (unsigned long long)(before.bytes / share), more);
}

static int case_sleeping(void)
{
    open_pair(CACHED, NULL);
    simple_order(&cacher, ORDER_FREE);
    usleep(1200000); /* what is cached is published once a second at least */
    struct answer before = simple_order(&taker, ORDER_INFO);
    struct answer taken = take(&taker, WANTED, share);
    return judge_taking(taken.ms, taken, before, true, "");
}

static int case_waiting(void)
{
    unsigned long kernel_ms = number("kernel_ms", 1000);
    open_pair(CACHED, NULL);
    simple_order(&cacher, ORDER_FREE);
    begin_order(&cacher, (struct order){.what = ORDER_WAIT_FOR_KERNEL, .ms = kernel_ms});
    double start = now_ms();
    usleep(50000);
    struct answer before = simple_order(&taker, ORDER_INFO);
    struct answer taken = take(&taker, WANTED, share);
    bool beside = now_ms() - start < (double)kernel_ms;
    await_answer(&cacher);
    return judge_taking(taken.ms, taken, before, false,
                        beside ? ", before the kernel ended" : ", after the kernel");
}

static int case_hitting(void)
{
    char more[64];
    open_pair(CACHED, NULL);
    simple_order(&cacher, ORDER_FREE);
    begin_order(&cacher, (struct order){.what = ORDER_HIT, .bytes = MIB});
    usleep(200000);
    struct answer before = simple_order(&taker, ORDER_INFO);
    struct answer taken = take(&taker, WANTED, share);
    usleep(200000);
    begin_order(&cacher, (struct order){.what = ORDER_STOP});
    struct answer hits = await_answer(&cacher);
    await_answer(&cacher);
    snprintf(more, sizeof more, ", beside %.2f us a pair, longest %.1f ms",
             hits.ms * 1e3 / (double)hits.count, hits.longest_ms);
    return judge_taking(taken.ms, taken, before, false, more);
}

/* The time begins with the kernel: without a pool the free waits for it, with one the allocations
 * do. */
static int case_behind(void)
{
    unsigned long kernel_ms = number("kernel_ms", 5000);
    char more[64];
    open_pair(CACHED, NULL);
    double start = now_ms();
    struct answer freed =
        give_order(&cacher, (struct order){.what = ORDER_FREE_BEHIND_KERNEL, .ms = kernel_ms});
    struct answer before = simple_order(&taker, ORDER_INFO);
    struct answer taken = take(&taker, WANTED, share);
    double ms = now_ms() - start;
    snprintf(more, sizeof more, ", the free took %.1f ms", freed.ms);
    return judge_taking(ms, taken, before, false, more);
}

static int case_stopped(void)
{
    unsigned long silent_ms = number("silent_ms", 150);
    int status;
    open_pair(CACHED, NULL);
    simple_order(&cacher, ORDER_FREE);
    kill(cacher.pid, SIGSTOP);
    if (waitpid(cacher.pid, &status, WUNTRACED) != cacher.pid || !WIFSTOPPED(status))
        FAIL("the first process does not stop");
    /* For half a second after a neighbour's end, refusals wait for its memory (docs/limits.md). */
    usleep(600000);
    struct answer taken = take(&taker, WANTED, share);
    kill(cacher.pid, SIGCONT);
    simple_order(&cacher, ORDER_INFO);
    close_pair();
    return verdict(taken.ms, taken.longest_ms <= (double)silent_ms,
                   "%llu of %d blocks, the longest call %.1f ms", (unsigned long long)taken.count,
                   WANTED, taken.longest_ms);
}

static int case_unaware(void)
{
    unsigned long pace_ms = number("pace_ms", 500);
    open_pair(CACHED, without_pool);
    simple_order(&cacher, ORDER_FREE);
    double start = now_ms();
    uint64_t count = take(&taker, UNAWARE_AT_ONCE, share).count;
    while (count >= UNAWARE_AT_ONCE && count < UNAWARE) {
        usleep((useconds_t)pace_ms * 1000);
        if (take(&taker, 1, share).count == 0)
            break;
        count++;
    }
    double ms = now_ms() - start;
    close_pair();
    return verdict(ms, count == UNAWARE, "%llu of %d blocks", (unsigned long long)count, UNAWARE);
}

/* --- many in turn ------------------------------------------------------------------------------*/

static int case_turns(void)
{
    enum { MOST = 32 };
    struct process processes[MOST];
    unsigned long count = number("processes", 4), rounds = number("rounds", 200), failures = 0;
    double longest = 0;
    if (count < 1 || count > MOST)
        FAIL("processes=%lu: must be 1 to %d", count, MOST);
    for (unsigned long i = 0; i < count; i++)
        processes[i] = open_process(NULL);
    for (unsigned long i = 0; i < count; i++)
        share = open_device(&processes[i]);
    double start = now_ms();
    for (unsigned long turn = 0; turn < rounds * count; turn++) {
        struct process *process = &processes[turn % count];
        struct answer taken = take(process, SHARES * 6 / 10, share);
        failures += taken.count != SHARES * 6 / 10;
        longest = taken.longest_ms > longest ? taken.longest_ms : longest;
        simple_order(process, ORDER_FREE);
    }
    double ms = now_ms() - start;
    for (unsigned long i = 0; i < count; i++)
        end_process(&processes[i]);
    return verdict(ms, failures == 0, "%lu rounds of %lu processes, %lu failed, longest %.1f ms",
                   rounds, count, failures, longest);
}

/* --- one that sleeps ---------------------------------------------------------------------------*/

/* Bytes that the driver keeps for what it has served. */
#define DRIVERS_OWN (64 * MIB)

static int case_idle(void)
{
    unsigned long idle_ms = number("idle_ms", 10000), giving_ms = number("giving_ms", 200);
    open_pair(0, without_pool);
    uint64_t before = simple_order(&taker, ORDER_INFO).bytes, held;
    double start, ms;
    if (take(&cacher, IDLE, share).count != IDLE)
        FAIL("the first process does not get %d shares", IDLE);
    simple_order(&cacher, ORDER_FREE);
    start = now_ms();
    do {
        uint64_t seen = simple_order(&taker, ORDER_INFO).bytes;
        held = before > seen ? before - seen : 0;
        ms = now_ms() - start;
        usleep(20000);
    } while (held > DRIVERS_OWN && ms < (double)(idle_ms + 1000 + giving_ms));
    close_pair();
    return verdict(ms, held <= DRIVERS_OWN, "%llu of %llu MiB held after %.2f s",
                   (unsigned long long)(held / MIB), (unsigned long long)(IDLE * share / MIB),
                   ms / 1e3);
}

/* --- one that is alone -------------------------------------------------------------------------*/

/* Nanoseconds a pair, in a process of its own with these settings. */
static double time_pairs(const char *const *settings)
{
    struct process process = open_process(settings);
    unsigned long pairs = number("pairs", 1000000);
    open_device(&process);
    struct answer answer =
        give_order(&process, (struct order){.what = ORDER_PAIRS, .count = (uint32_t)pairs});
    end_process(&process);
    return answer.ms * 1e6 / (double)pairs;
}

/* The quickest of each counts: what disturbs a run only makes it longer. How much each varies is
 * told beside it, and nothing fails because of a slow machine. */
static int case_alone(void)
{
    static const char *const settings[2][2] = {
        {"CUDAPOOL_CONFIG={\"version\": 1, \"neighbours\": {\"enabled\": false}}", NULL},
        {"CUDAPOOL_CONFIG={\"version\": 1}", NULL},
    };
    unsigned long runs = number("runs", 7);
    double best[2] = {1e30, 1e30}, worst[2] = {0, 0}, start = now_ms();
    for (unsigned long i = 0; i < 2 * runs; i++) {
        unsigned long which = (i + i / 2) % 2;
        double ns = time_pairs(settings[which]);
        best[which] = ns < best[which] ? ns : best[which];
        worst[which] = ns > worst[which] ? ns : worst[which];
    }
    double more = 100 * (best[1] / best[0] - 1);
    return verdict(now_ms() - start, true,
                   "%.1f to %.1f ns a pair, without neighbours %.1f to %.1f ns: %+.2f %%", best[1],
                   worst[1], best[0], worst[0], more);
}

/* How often threads of the process with that name have gone to sleep so far, and how many they are.
 */
static unsigned long switches_of(pid_t pid, const char *name, unsigned int *threads)
{
    char path[300], text[4096];
    unsigned long sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL)
        FAIL("%s: %s", path, strerror(errno));
    *threads = 0;
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, entry->d_name);
        FILE *file = fopen(path, "re");
        size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file != NULL)
            fclose(file);
        text[length] = '\0';
        const char *count = strstr(text, "\nvoluntary_ctxt_switches:");
        if (strncmp(text, "Name:\t", 6) != 0 || strncmp(text + 6, name, strlen(name)) != 0 ||
            !count)
            continue;
        sum += strtoul(count + strlen("\nvoluntary_ctxt_switches:"), NULL, 10);
        ++*threads;
    }
    closedir(tasks);
    return sum;
}

/* How often the pool's threads wake in so many milliseconds; a thread that ends has woken. */
static unsigned long wakeups_in(const struct process *process, unsigned long ms,
                                unsigned int *threads)
{
    unsigned int before, after;
    unsigned long first = switches_of(process->pid, "cudapool", &before);
    usleep((useconds_t)ms * 1000);
    unsigned long last = switches_of(process->pid, "cudapool", &after);
    *threads = before > after ? before : after;
    return last >= first ? last - first : 1;
}

static int case_wakeups(void)
{
    static const char *const settings[] = {
        "CUDAPOOL_CONFIG={\"version\": 1, \"device\": {\"release_after_idle\": \"4s\"}}", NULL};
    struct process process = open_process(settings);
    unsigned int threads_before, threads, threads_after;
    double start = now_ms();
    open_device(&process);
    take(&process, 8, 64 * MIB);
    usleep(1200000); /* the thread has come to rest */
    unsigned long before = wakeups_in(&process, 1000, &threads_before);
    simple_order(&process, ORDER_FREE);
    usleep(100000);
    unsigned long cached = wakeups_in(&process, 3000, &threads);
    usleep(2500000);
    unsigned long after = wakeups_in(&process, 2000, &threads_after);
    double ms = now_ms() - start;
    end_process(&process);
    return verdict(
        ms, before == 0 && cached <= 4 && after == 0 && threads == 1,
        "%lu wake-ups in 1 s before anything is cached, %lu in 3 s while %u thread looks "
        "after it, %lu in 2 s after that",
        before, cached, threads, after);
}

/* --- a group -----------------------------------------------------------------------------------*/

static int case_group(void)
{
    unsigned long count = number("processes", 64);
    char says[400];
    double start = now_ms();
    if (count < 2 || count > MOST_MEMBERS)
        FAIL("processes=%lu: must be 2 to %d", count, MOST_MEMBERS);
    struct group_result result = run_group(
        arguments[0], (unsigned int)count, count * number("each_mib", 64) / BLOCK_MIB * BLOCK_MIB,
        (double)number("seconds", 6), (unsigned int)number("kill_ms", 50));
    snprintf(
        says, sizeof says,
        "%lu processes, %lu killed, %lu ended; at most %.1f %% of the limit held, %llu got and "
        "%llu refused; at the end one has %llu of %llu blocks",
        count, result.killed, result.ended, result.most_percent, (unsigned long long)result.got,
        (unsigned long long)result.refused, (unsigned long long)result.blocks,
        (unsigned long long)result.blocks_allowed);
    return verdict(now_ms() - start,
                   result.most_percent > 0 && result.most_percent <= 100 && result.got >= count &&
                       result.blocks == result.blocks_allowed,
                   "%s", says);
}

static const struct {
    const char *name;
    int (*run)(void);
} cases[] = {
    {"sleeping", case_sleeping}, {"waiting", case_waiting}, {"hitting", case_hitting},
    {"behind", case_behind},     {"stopped", case_stopped}, {"unaware", case_unaware},
    {"turns", case_turns},       {"idle", case_idle},       {"alone", case_alone},
    {"wakeups", case_wakeups},   {"group", case_group},
};

int main(int argc, char **argv)
{
    argument_count = argc;
    arguments = argv;
    if (argc == 2 && strcmp(argv[1], "--child") == 0)
        return follow_orders();
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            return cases[i].run();
    FAIL("usage: neighbours CASE [name=value...]; the source lists the cases");
}
