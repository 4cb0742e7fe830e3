/*
 * Random processes that share a device of the simulated driver: they allocate, free, sleep, wait
 * for kernels, fork, execute themselves, end, are stopped and are killed. Nobody fails where the
 * same processes without the pool would not have failed (neighbours.h says how that is known),
 * nobody hangs, and nobody's memory changes. At the end of a seed each process in turn gets the
 * whole device, whatever the others cache.
 *
 * In a group they share a limit in place of the device, and take memory of every kind that counts.
 *
 * usage: neighbours [plain|group [processes=N]] [seeds=A-B] [seconds=N] [minutes=N]
 *   seed, and seeds   which (default 1): each has its own number of processes, size of the device,
 *                     settings and sizes of blocks
 *   seconds           of each seed's life (default 2)
 *   minutes           no seed is begun after that many
 *   plain             without the pool: the rule itself is tested
 *   group             under the limit of a group
 *   processes         how many, of 64 at most (default: as the seed says)
 * Prints what happened, in one line, and a line that begins with FAIL for what was wrong; processes
 * meet as it happens, so that a seed may have to be run several times to fail again. Exit status 0:
 * all is well; 1: not; 2: bad usage.
 *
 * Environment: RANDOM_PRELOAD, the preload object, if not the one that was built beside this
 * program.
 */
#include "neighbours.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB    ((uint64_t)1 << 20)
#define SECOND UINT64_C(1000000000)

/* The driver's own memory in each process, and pages that one process alone can use. */
#define EACH_PROCESS (14 * MIB)
/* In a group: what each takes of the limit for its counter of wrong words. */
#define EACH_COUNTER (2 * MIB)
/* In a group: what the device has for the driver's own, and for what dead processes held. */
#define BESIDE_A_LIMIT (64 * UINT64_C(1024) * MIB)
/* No call and no step takes as long; a process that was silent is asked again after so long. */
#define HANG       (30 * SECOND)
#define NOT_ASKED  (11 * SECOND)
#define AFTER_KILL SECOND

enum { MOST_SETTINGS = 600 };

static char preload[PATH_MAX], shared[] = "/tmp/neighbours-XXXXXX";
static struct table *table;
static bool plain, group, failed;

static struct {
    uint64_t first, last;
    double seconds, minutes;
    unsigned int processes; /* 0: as the seed says */
} options = {1, 1, 2, 1e9, 0};

/* Of the seed that is running. */
static struct {
    uint64_t random, device_bytes;
    unsigned int starts[MOST_PROCESSES];
    pid_t pids[MOST_PROCESSES];
    uint64_t continue_at[MOST_PROCESSES]; /* stopped until then; 0: it is not */
    uint64_t steps_seen[MOST_PROCESSES], progress_at[MOST_PROCESSES];
    unsigned int unaware; /* has no pool; none: MOST_PROCESSES */
    bool kills, stops;
    char settings[MOST_SETTINGS];
} life;

static struct {
    uint64_t seeds, requests, refused, forks, executions, ended, killed, stopped, takes;
} totals;

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static __attribute__((noreturn)) void stop(const char *what)
{
    fprintf(stderr, "neighbours: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void fail(unsigned int slot, const char *how)
{
    const struct slot *of = &table->slots[slot];
    printf("FAIL seed=%llu, process %u of %u, in \"%s\": %s%s%s\n", (unsigned long long)table->seed,
           slot, table->processes, of->doing, how, of->why[0] ? ": " : "", of->why);
    failed = true;
}

/* ---- what a seed says ---- */

static const char *choose(const char *const *words)
{
    unsigned int count = 0;
    while (words[count])
        count++;
    return words[below(&life.random, count)];
}

static void make_settings(void)
{
    static const char *const cached[] = {"\"50%\"", "\"50%\"", "\"100%\"", "\"64MiB\"", NULL};
    static const char *const idle[] = {"10s", "10s", "0s", "100ms", "1s", NULL};
    static const char *const budgets[] = {"\"128MiB\"", "\"128MiB\"", "0", "\"1GiB\"", NULL};
    static const char *const ratios[] = {"1.15", "1.15", "2.0", "100.0", NULL};
    static const char *const left[] = {"\"2%\"", "\"2%\"", "0", "\"10%\"", NULL};
    char limits[120] = "";
    if (group)
        snprintf(limits, sizeof limits,
                 ", \"limits\": {\"group\": \"random-%d\", \"group_bytes\": %llu}", (int)getpid(),
                 (unsigned long long)table->limit);
    snprintf(life.settings, sizeof life.settings,
             "{\"version\": 1, \"device\": {\"caps\": {\"cached\": %s, \"reserve_ratio\": %s}, "
             "\"growth_budget\": %s, \"release_after_idle\": \"%s\"}, \"stream_ordered\": "
             "{\"caps\": {\"cached\": %s}, \"release_after_idle\": \"%s\"}, \"neighbours\": "
             "{\"leave_free\": %s}, \"report\": {\"at_exit\": \"none\"}%s}",
             choose(cached), choose(ratios), choose(budgets), choose(idle), choose(cached),
             choose(idle), choose(left), limits);
}

static void make_group(void)
{
    table->grouped = table->whole_pages = true;
    table->greedy = below(&life.random, 3) == 0;
    table->limit = life.device_bytes;
    table->total = table->limit - table->processes * EACH_COUNTER;
    life.device_bytes += BESIDE_A_LIMIT;
    life.unaware = MOST_PROCESSES;
}

static void make_life(uint64_t seed)
{
    static const uint64_t memories[] = {512, 1024, 1024, 4096};
    memset(&life, 0, sizeof life);
    memset(table, 0, sizeof *table);
    life.random = seed * UINT64_C(0x5851F42D4C957F2D) + 1;
    table->seed = seed;
    table->pooled = !plain;
    table->processes = 2 + (uint32_t)below(&life.random, 7);
    if (options.processes)
        table->processes = options.processes;
    life.device_bytes = memories[below(&life.random, 4)] * MIB;
    table->whole_pages = below(&life.random, 3) > 0;
    table->total = life.device_bytes - table->processes * EACH_PROCESS;
    if (!table->whole_pages)
        table->total = table->total / 8 * 7;
    table->largest_shift = 2 + (uint32_t)below(&life.random, 5);
    life.kills = below(&life.random, 2) == 0;
    life.stops = below(&life.random, 4) == 0;
    life.unaware = below(&life.random, 4) == 0 ? (unsigned int)below(&life.random, table->processes)
                                               : MOST_PROCESSES;
    if (group)
        make_group();
    make_settings();
}

/* ---- processes ---- */

static void become_worker(unsigned int slot, bool pooled)
{
    char text[32], number[16], start[16];
    snprintf(text, sizeof text, "%lluMiB", (unsigned long long)(life.device_bytes / MIB));
    snprintf(number, sizeof number, "%u", slot);
    snprintf(start, sizeof start, "%u", life.starts[slot]);
    setenv("SIMCUDA_MEMORY", text, 1);
    setenv("SIMCUDA_SHARED", shared, 1);
    if (pooled) {
        setenv("LD_PRELOAD", preload, 1);
        setenv("CUDAPOOL_CONFIG", life.settings, 1);
    }
    execl("/proc/self/exe", "neighbours", "--worker", number, start, (char *)NULL);
    _exit(127);
}

static void start_worker(unsigned int slot)
{
    fflush(stdout);
    life.starts[slot]++;
    life.progress_at[slot] = nanoseconds();
    life.continue_at[slot] = 0;
    life.pids[slot] = fork();
    if (life.pids[slot] == 0)
        become_worker(slot, !plain && slot != life.unaware);
    if (life.pids[slot] < 0)
        stop("fork");
}

/* The process on the slot has ended. */
static void clear_slot(unsigned int slot)
{
    struct slot *of = &table->slots[slot];
    if (group)
        unsure_at_least(of, nanoseconds() + GROUP_LEARNS);
    atomic_fetch_sub(&table->sum, atomic_exchange(&of->held, 0));
    atomic_fetch_sub(&table->certain, (int64_t)atomic_exchange(&of->certain, 0));
    atomic_store(&of->exceeding, 0);
    life.pids[slot] = 0;
}

/* The process that has no pool can ask nobody: what it is refused says nothing. */
static bool is_judged(unsigned int slot)
{
    return plain || slot != life.unaware;
}

static void judge_end(unsigned int slot, int status)
{
    char how[64];
    totals.ended++;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFEXITED(status) && WEXITSTATUS(status) >= 3 && !is_judged(slot)) {
        table->slots[slot].why[0] = '\0';
        return;
    }
    snprintf(how, sizeof how, WIFSIGNALED(status) ? "ended by signal %d" : "exit status %d",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fail(slot, how);
}

static void reap(bool replace)
{
    for (unsigned int i = 0; i < table->processes; i++) {
        int status;
        if (life.pids[i] == 0 || waitpid(life.pids[i], &status, WNOHANG) != life.pids[i])
            continue;
        judge_end(i, status);
        clear_slot(i);
        if (replace && !failed)
            start_worker(i);
    }
}

/* What the process holds is no longer certain once it may be gone. False: it has ended by itself.
 */
static bool stop_for_good(unsigned int slot)
{
    struct slot *of = &table->slots[slot];
    int status;
    kill(life.pids[slot], SIGSTOP);
    if (waitpid(life.pids[slot], &status, WUNTRACED) != life.pids[slot])
        stop("waitpid");
    if (!WIFSTOPPED(status)) {
        judge_end(slot, status);
        return false;
    }
    atomic_fetch_sub(&table->certain, (int64_t)atomic_exchange(&of->certain, 0));
    return true;
}

static void kill_one(void)
{
    unsigned int slot = (unsigned int)below(&life.random, table->processes);
    if (life.pids[slot] == 0)
        return;
    uint64_t unsure = group ? GROUP_LEARNS : AFTER_KILL;
    atomic_store(&table->slots[slot].unsure_until, UINT64_MAX);
    if (stop_for_good(slot)) {
        kill(life.pids[slot], SIGKILL);
        waitpid(life.pids[slot], NULL, 0);
        totals.killed++;
    }
    clear_slot(slot);
    atomic_store(&table->slots[slot].unsure_until, nanoseconds() + unsure);
    start_worker(slot);
}

static void stop_one(void)
{
    unsigned int slot = (unsigned int)below(&life.random, table->processes);
    if (life.pids[slot] == 0 || life.continue_at[slot] != 0)
        return;
    atomic_store(&table->slots[slot].unsure_until, UINT64_MAX);
    kill(life.pids[slot], SIGSTOP);
    life.continue_at[slot] = nanoseconds() + below(&life.random, SECOND);
    totals.stopped++;
}

static void continue_stopped(bool all)
{
    uint64_t now = nanoseconds();
    for (unsigned int i = 0; i < table->processes; i++) {
        if (life.continue_at[i] == 0 || (life.continue_at[i] > now && !all))
            continue;
        if (life.pids[i] != 0)
            kill(life.pids[i], SIGCONT);
        life.continue_at[i] = 0;
        life.progress_at[i] = now;
        atomic_store(&table->slots[i].unsure_until, now + NOT_ASKED);
    }
}

/* Processes that are not stopped get on. */
static void look_for_hangs(void)
{
    uint64_t now = nanoseconds();
    for (unsigned int i = 0; i < table->processes; i++) {
        uint64_t steps = atomic_load(&table->slots[i].steps);
        if (steps != life.steps_seen[i] || life.continue_at[i] != 0)
            life.progress_at[i] = now;
        life.steps_seen[i] = steps;
        if (now - life.progress_at[i] > HANG)
            fail(i, "hangs");
    }
}

/* ---- a seed ---- */

static void live(double seconds)
{
    uint64_t end = nanoseconds() + (uint64_t)(seconds * (double)SECOND);
    while (nanoseconds() < end && !failed) {
        usleep(3000);
        if (life.kills && below(&life.random, 40) == 0)
            kill_one();
        if (life.stops && below(&life.random, 80) == 0)
            stop_one();
        continue_stopped(false);
        reap(true);
        look_for_hangs();
    }
    continue_stopped(true);
}

/* Until the process, or all, have done what the phase says. */
static void await_phase(enum phase phase, unsigned int only)
{
    bool done = false;
    atomic_store(&table->phase, phase);
    while (!done && !failed) {
        usleep(1000);
        reap(true);
        look_for_hangs();
        done = true;
        for (unsigned int i = 0; i < table->processes; i++)
            done &= (only < table->processes && i != only) ||
                    atomic_load(&table->slots[i].phase_done) == phase;
    }
}

/* The rule holds at the end: what one caches another gets. The model is exact now. */
static void each_takes_the_device(void)
{
    for (unsigned int i = 0; i < table->processes && !failed; i++) {
        await_phase(PHASE_EMPTY, MOST_PROCESSES);
        if (!failed && atomic_load(&table->sum) > table->total / 2)
            continue; /* processes that were killed between two writes have left it too large */
        if (!is_judged(i))
            continue; /* it would be refused what others cache, and be started again for ever */
        atomic_store(&table->taker, i);
        await_phase(PHASE_TAKE, i);
        totals.takes++;
    }
}

static void end_all(void)
{
    atomic_store(&table->phase, PHASE_LEAVE);
    for (uint64_t end = nanoseconds() + 10 * SECOND; !failed && nanoseconds() < end;) {
        bool left = false;
        reap(false);
        for (unsigned int i = 0; i < table->processes; i++)
            left |= life.pids[i] != 0;
        if (!left)
            return;
        usleep(1000);
    }
    for (unsigned int i = 0; i < table->processes; i++) {
        if (life.pids[i] == 0)
            continue;
        if (!failed)
            fail(i, "does not end");
        kill(life.pids[i], SIGKILL);
        waitpid(life.pids[i], NULL, 0);
    }
}

static void run_seed(uint64_t seed, double seconds)
{
    failed = false;
    make_life(seed);
    if (truncate(shared, 0) != 0)
        stop(shared);
    for (unsigned int i = 0; i < table->processes; i++)
        start_worker(i);
    live(seconds);
    each_takes_the_device();
    end_all();
    if (failed)
        printf("    device of %llu MiB, %s, kills %d, stops %d, process without the pool %d, %s\n",
               (unsigned long long)(life.device_bytes / MIB),
               table->whole_pages ? "whole pages" : "any sizes", life.kills, life.stops,
               life.unaware < MOST_PROCESSES ? (int)life.unaware : -1, life.settings);
    totals.seeds++;
    for (unsigned int i = 0; i < table->processes; i++) {
        totals.requests += atomic_load(&table->slots[i].requests);
        totals.refused += atomic_load(&table->slots[i].refused);
        totals.forks += atomic_load(&table->slots[i].forks);
        totals.executions += atomic_load(&table->slots[i].executions);
    }
}

/* ---- the program ---- */

static bool read_option(const char *argument)
{
    const char *value = strchr(argument, '=');
    char *end = NULL;
    if (strcmp(argument, "plain") == 0)
        return plain = true;
    if (strcmp(argument, "group") == 0)
        return group = true;
    if (!value || value[1] < '0' || value[1] > '9')
        return false;
    if (strncmp(argument, "seed", 4) == 0) {
        options.first = options.last = strtoull(value + 1, &end, 10);
        if (*end == '-')
            options.last = end[1] == '\0' ? UINT64_MAX / 2 : strtoull(end + 1, NULL, 10);
        return true;
    }
    if (strncmp(argument, "seconds=", 8) == 0)
        options.seconds = strtod(value + 1, &end);
    else if (strncmp(argument, "minutes=", 8) == 0)
        options.minutes = strtod(value + 1, &end);
    else if (strncmp(argument, "processes=", 10) == 0)
        options.processes = (unsigned int)strtoul(value + 1, &end, 10);
    return options.processes <= MOST_PROCESSES && end && *end == '\0';
}

static bool read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i]))
            return false;
    return !(plain && group) && (group || !options.processes);
}

/* build/tests/random/neighbours -> build/libcudapool_preload.so */
static void find_preload(void)
{
    const char *chosen = getenv("RANDOM_PRELOAD");
    if (readlink("/proc/self/exe", preload, sizeof preload - 64) <= 0)
        stop("/proc/self/exe");
    for (int i = 0; i < 3 && strrchr(preload, '/'); i++)
        *strrchr(preload, '/') = '\0';
    strncat(preload, "/libcudapool_preload.so", sizeof preload - strlen(preload) - 1);
    if (chosen)
        snprintf(preload, sizeof preload, "%s", chosen);
    if (access(preload, R_OK) != 0)
        stop(preload);
}

static void make_table(void)
{
    int memory = memfd_create("neighbours", 0), file = mkstemp(shared);
    if (memory < 0 || file < 0 || dup2(memory, TABLE_FD) < 0 ||
        ftruncate(TABLE_FD, sizeof *table) != 0)
        stop("memory that processes share");
    close(file);
    close(memory);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, TABLE_FD, 0);
    if (table == MAP_FAILED)
        stop("mmap");
}

int main(int argc, char **argv)
{
    int failures = 0;
    if (argc == 4 && strcmp(argv[1], "--worker") == 0)
        return run_worker((unsigned int)atoi(argv[2]), (unsigned int)atoi(argv[3]));
    if (!read_options(argc, argv)) {
        fprintf(stderr, "usage: neighbours [plain|group [processes=N]] [seeds=A-B] [seconds=N] "
                        "[minutes=N]\n");
        return 2;
    }
    find_preload();
    make_table();
    uint64_t start = nanoseconds();
    for (uint64_t seed = options.first; seed <= options.last; seed++) {
        run_seed(seed, options.seconds);
        failures += failed;
        if ((double)(nanoseconds() - start) > options.minutes * 60 * (double)SECOND)
            break;
    }
    unlink(shared);
    printf("processes that share a %s%s: seeds %llu-%llu, requests %llu (refused %llu), forks "
           "%llu, executions %llu, ended %llu, killed %llu, stopped %llu, took all of it %llu, "
           "failures %d\n",
           group ? "group's limit" : "device", plain ? ", without the pool" : "",
           (unsigned long long)options.first,
           (unsigned long long)(options.first + totals.seeds - 1),
           (unsigned long long)totals.requests, (unsigned long long)totals.refused,
           (unsigned long long)totals.forks, (unsigned long long)totals.executions,
           (unsigned long long)totals.ended, (unsigned long long)totals.killed,
           (unsigned long long)totals.stopped, (unsigned long long)totals.takes, failures);
    return failures != 0;
}
