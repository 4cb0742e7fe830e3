/*
 * Random programs, run without and with the pool and compared.
 *
 * usage: random [free] [graphs] [seeds=A-B] [minutes=N] [programs=N] [jobs=N] [explain=0]
 *               [differences=N]
 *        random [free] [graphs] seed=S [programs=N]
 * The first runs the programs of every seed from A on until B or until the minutes are over, and
 * prints totals; every seed has its own settings of the pool and shape of programs; differences:
 * after so many it stops. The second runs one seed again. What fails is shrunk and printed as a C
 * program, unless explain=0. Exit status 0: no difference; 1: a difference; 2: bad usage.
 *
 * Environment
 *   RANDOM_PRELOAD   the preload object, if not the one that was built beside this program
 *   RANDOM_SPLIT     every seed's pool cuts blocks out of larger ones, also where memory is short:
 *                    there what succeeds without the pool may fail
 *   RANDOM_SECONDS   so long a process may take for a seed's programs; else it hangs
 *
 * free: the programs' threads run in parallel, as it happens, instead of taking turns as the seed
 * has it. What may depend on the order is then not compared; the race detector, the data and the
 * pool's own counters are judges in any order.
 *
 * graphs: captures may allocate (the setting captures.allocate) in every program, not in some.
 *
 * For each seed two processes run the same programs: one without the pool writes what its calls
 * returned into a pipe, from which the other, with the pool, reads what to expect. This process
 * makes no driver call.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"
#include "virtual_time.h"

enum { STEPS_MAX = 1000, TRIES_MAX = 3000, CHILD_SECONDS = 120 };

static char own_path[PATH_MAX], preload[PATH_MAX], directory[] = "/tmp/random-XXXXXX";

/* Real seconds: clock_gettime, and its system call, are virtual in this program. */
static double seconds(void)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    return (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
}

static __attribute__((noreturn)) void stop(const char *what)
{
    fprintf(stderr, "random: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* ---- in the processes that run programs ---- */

static bool transfer(int file, void *bytes, size_t count, bool out)
{
    char *at = bytes;
    while (count > 0) {
        ssize_t moved = out ? write(file, at, count) : read(file, at, count);
        if (moved <= 0 && errno != EINTR)
            return false;
        at += moved > 0 ? moved : 0;
        count -= moved > 0 ? (size_t)moved : 0;
    }
    return true;
}

/* Threads that take turns have one trace. */
static unsigned int trace_count(const struct profile *profile)
{
    return profile->free ? THREADS : 1;
}

static bool read_trace(struct trace *read)
{
    uint32_t count;
    if (!transfer(STDIN_FILENO, &count, sizeof count, false))
        return false;
    if (count > read->room) {
        read->records = realloc(read->records, count * sizeof *read->records);
        read->room = count;
    }
    read->count = count;
    read->next = 0;
    return count == 0 || (read->records && transfer(STDIN_FILENO, read->records,
                                                    count * sizeof *read->records, false));
}

static bool write_trace(struct trace *written)
{
    uint32_t count = written->count;
    return transfer(STDOUT_FILENO, &count, sizeof count, true) &&
           transfer(STDOUT_FILENO, written->records, count * sizeof *written->records, true);
}

/* What one of the two processes found, for the one that started them. */
struct verdict {
    bool failed;
    uint64_t program, step, steps, calls;
    char why[480];
};

enum role { PLAIN, POOLED, ALONE };

static bool begin_traces(enum role role, const struct profile *profile)
{
    bool read = true;
    for (unsigned int i = 0; i < trace_count(profile); i++) {
        traces[i].count = 0;
        traces[i].compared = role == POOLED;
        read = read && (role != POOLED || read_trace(&traces[i]));
    }
    return read;
}

static bool end_traces(enum role role, const struct profile *profile)
{
    bool written = true;
    for (unsigned int i = 0; i < trace_count(profile); i++) {
        if (role == POOLED && traces[i].next != traces[i].count)
            trace_fail("the plain run made %u calls more", traces[i].count - traces[i].next);
        written = written && (role != PLAIN || trace_failed() || write_trace(&traces[i]));
    }
    return written;
}

static void say_why(enum role role, const struct profile *profile, const struct step *last,
                    struct verdict *verdict)
{
    char where[64] = "";
    if (!profile->free)
        snprintf(where, sizeof where, "step %llu, %s: ", (unsigned long long)verdict->step,
                 step_names[last->kind]);
    snprintf(verdict->why, sizeof verdict->why, "%s%s%s", role == PLAIN ? "WITHOUT THE POOL: " : "",
             where, trace_why());
}

static bool run_program(enum role role, const struct profile *profile, const struct step *steps,
                        size_t count, struct verdict *verdict)
{
    if (!begin_traces(role, profile)) {
        snprintf(verdict->why, sizeof verdict->why, "(the plain run has ended)");
        return false;
    }
    size_t done = run_steps(steps, count);
    bool written = end_traces(role, profile);
    verdict->steps += done;
    if (trace_failed()) {
        verdict->failed = true;
        verdict->step = done - 1;
        say_why(role, profile, &steps[done - 1], verdict);
        return false;
    }
    return written;
}

static void run_seed(enum role role, const struct profile *profile, uint64_t seed, uint64_t count,
                     struct verdict *verdict)
{
    static struct step steps[STEPS_MAX + 1];
    for (uint64_t i = 0; i < count; i++) {
        make_program(profile, seed, i, steps);
        steps[profile->steps] = (struct step){.kind = STEP_END};
        verdict->program = i;
        if (!run_program(role, profile, steps, profile->steps + 1, verdict))
            return;
    }
}

static struct step *read_steps(const char *name, size_t *count)
{
    int file = open(name, O_RDONLY | O_CLOEXEC);
    off_t bytes = lseek(file, 0, SEEK_END);
    struct step *steps = malloc((size_t)bytes + 1);
    if (file < 0 || bytes < 0 || !steps || pread(file, steps, (size_t)bytes, 0) != bytes)
        stop(name);
    close(file);
    *count = (size_t)bytes / sizeof *steps;
    return steps;
}

/* Captures of other threads and full memory: what they do to a call depends on the order. Where
 * captures may allocate, the plain run has errors that the pool's has not. */
static bool depends_on_order(const struct profile *profile)
{
    return profile->allocates ||
           (profile->free && (profile->captures || profile->full || profile->limited));
}

static uint64_t calls_of_all_threads(void)
{
    uint64_t calls = 0;
    for (unsigned int i = 0; i < THREADS; i++)
        calls += traces[i].calls;
    return calls;
}

/* arguments: role, seed, number of programs or file with steps, descriptor for the verdict, "run"
 * or "print", ways. */
static int run_role(char **arguments)
{
    static struct profile profile;
    static struct verdict verdict;
    enum role role = (enum role)atoi(arguments[0]);
    uint64_t seed = strtoull(arguments[1], NULL, 10), programs = strtoull(arguments[2], NULL, 10);
    int report = atoi(arguments[3]);
    const char *patience = getenv("RANDOM_SECONDS");
    alarm(patience ? (unsigned int)atoi(patience) : CHILD_SECONDS);
    make_profile(&profile, seed, (unsigned int)atoi(arguments[5]));
    leniency = (struct leniency){.stalls = profile.free,
                                 .errors = depends_on_order(&profile),
                                 .memory = profile.full || profile.limited || profile.allocates};
    if (strcmp(arguments[4], "print") == 0) {
        trace->code = stdout;
        trace_print_begin();
    }
    if (profile.free)
        virtual_time_is_shared();
    trace->compared = false;
    FILE *code = trace->code;
    trace->code = NULL;
    run_open(&profile);
    trace->code = code;
    trace->count = 0;
    if (arguments[2][0] == '/') {
        size_t count;
        struct step *steps = read_steps(arguments[2], &count);
        run_program(code ? ALONE : role, &profile, steps, count, &verdict);
    } else {
        run_seed(role, &profile, seed, programs, &verdict);
    }
    if (code) {
        trace_print_end();
        return 0;
    }
    verdict.calls = calls_of_all_threads();
    transfer(report, &verdict, sizeof verdict, true);
    /* For the pool's report, which is written at exit. */
    if (profile.free && role != PLAIN && !verdict.failed)
        exit(0);
    /* Nothing is left to clean up, and plain exit would take the trace's pipe with it. */
    _exit(verdict.failed);
}

/* ---- in the process that starts them ---- */

/* Where the pool of free threads reports to. */
static const char *report_name(const char *settings)
{
    static char name[PATH_MAX + 8];
    snprintf(name, sizeof name, "%s.report", settings);
    return name;
}

static void set_environment(const struct profile *profile, enum role role, const char *settings)
{
    char text[64];
    snprintf(text, sizeof text, "%u", profile->devices);
    setenv("SIMCUDA_DEVICES", text, 1);
    snprintf(text, sizeof text, "%lluMiB", (unsigned long long)(profile->device_bytes >> 20));
    setenv("SIMCUDA_MEMORY", text, 1);
    setenv("SIMCUDA_STEPPED", "1", 1);
    if (profile->races)
        setenv("SIMCUDA_RACES", profile->free ? "/dev/null" : "1", 1);
    if (role == PLAIN)
        return;
    setenv("CUDAPOOL_CONFIG", settings, 1);
    if (profile->free)
        setenv("CUDAPOOL_REPORT", report_name(settings), 1);
    setenv("LD_PRELOAD", preload, 1);
}

static pid_t start(enum role role, const struct profile *profile, const char *settings,
                   uint64_t seed, const char *what, const char *how, int in, int out, int report)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    char role_text[8], seed_text[32], report_text[16], ways[8];
    if (in >= 0)
        dup2(in, STDIN_FILENO);
    if (out >= 0)
        dup2(out, STDOUT_FILENO);
    int copy = report >= 0 ? dup(report) : -1; /* without close-on-exec */
    set_environment(profile, role, settings);
    snprintf(role_text, sizeof role_text, "%d", role);
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    snprintf(report_text, sizeof report_text, "%d", copy);
    snprintf(ways, sizeof ways, "%u",
             (profile->free ? FREELY : 0u) | (profile->allocates ? ALLOCATING : 0u));
    execl(own_path, own_path, "--role", role_text, seed_text, what, report_text, how, ways,
          (char *)NULL);
    _exit(127);
}

static void end_badly(int status, const char *which, struct verdict *verdict)
{
    if (verdict->failed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return;
    verdict->failed = true;
    if (WIFSIGNALED(status))
        snprintf(verdict->why, sizeof verdict->why, "%s: killed by signal %d%s", which,
                 WTERMSIG(status), WTERMSIG(status) == SIGALRM ? " (it hangs)" : "");
    else
        snprintf(verdict->why, sizeof verdict->why, "%s: exit status %d", which,
                 WEXITSTATUS(status));
}

static void read_verdict(int file, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (!transfer(file, verdict, sizeof *verdict, false))
        memset(verdict, 0, sizeof *verdict);
    close(file);
}

/* The sum of all values of the key, which the report has for every bucket and for all together. */
static uint64_t sum_of(const char *report, const char *key)
{
    uint64_t sum = 0;
    char text[32];
    snprintf(text, sizeof text, "\"%s\": ", key);
    for (const char *at = report; (at = strstr(at, text)) != NULL;) {
        at += strlen(text);
        sum += strtoull(at, NULL, 10);
    }
    return sum;
}

/* The same of the value in a group that others may have a key of that name beside. */
static uint64_t sum_in(const char *report, const char *group, const char *key)
{
    char text[64], name[64];
    uint64_t sum = 0;
    snprintf(text, sizeof text, "\"%s\":", group);
    snprintf(name, sizeof name, "\"%s\":", key);
    for (const char *at = report; (at = strstr(at, text)) != NULL;) {
        at = strstr(at, name);
        if (at == NULL)
            break;
        at += strlen(name);
        sum += strtoull(at + strspn(at, " \""), NULL, 10);
    }
    return sum;
}

static void check_counters(const char *report, struct verdict *verdict)
{
    uint64_t requests = sum_of(report, "requests");
    uint64_t failures = sum_in(report, "failures", "memory") + sum_in(report, "failures", "limit") +
                        sum_in(report, "failures", "group") + sum_in(report, "failures", "other");
    uint64_t frees = sum_of(report, "frees") - sum_in(report, "waits", "frees");
    uint64_t live = sum_of(report, "live_blocks");
    uint64_t misses = sum_of(report, "misses"), hits = 0;
    static const char *const kinds[] = {"clean", "queried", "barrier", "waited"};
    for (unsigned int i = 0; i < 4; i++)
        hits += sum_of(report, kinds[i]);
    verdict->failed =
        requests == 0 || requests != hits + misses + failures || hits + misses != frees + live;
    if (verdict->failed)
        snprintf(
            verdict->why, sizeof verdict->why,
            "the pool counts %llu requests, %llu hits, %llu misses, %llu failures, %llu frees, "
            "%llu live blocks",
            (unsigned long long)requests, (unsigned long long)hits, (unsigned long long)misses,
            (unsigned long long)failures, (unsigned long long)frees, (unsigned long long)live);
}

/* What the pool of a run that went well has counted. What is left of a program that is being shrunk
 * may have nothing to report. */
static void read_report(const char *settings, bool shrunk, struct verdict *verdict)
{
    const char *name = report_name(settings);
    FILE *file = fopen(name, "r");
    char *report = NULL;
    size_t room = 0;
    if (!verdict->failed && !verdict->why[0]) {
        if (file && getdelim(&report, &room, '\0', file) > 0)
            check_counters(report, verdict);
        else if (!shrunk)
            snprintf(verdict->why, sizeof verdict->why, "the pool has written no report");
        verdict->failed = verdict->why[0] != '\0';
    }
    free(report);
    if (file)
        fclose(file);
    unlink(name);
}

static void settings_name(char *name, size_t room)
{
    snprintf(name, room, "%s/settings-%d.json", directory, getpid());
}

/* Runs the seed's programs, or the steps in a file, in two processes (or one). */
static struct verdict run_pair(uint64_t seed, const struct profile *profile, const char *what)
{
    struct verdict plain = {.failed = false}, pooled;
    char settings[PATH_MAX];
    int records[2], plain_report[2], report[2], status;
    settings_name(settings, sizeof settings);
    FILE *file = fopen(settings, "w");
    if (!file || fputs(profile->settings, file) < 0 || fclose(file) != 0 ||
        pipe2(records, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0 ||
        pipe2(plain_report, O_CLOEXEC) != 0)
        stop(settings);
    pid_t first = -1;
    bool compared = !profile->limited && !depends_on_order(profile);
    if (compared)
        first = start(PLAIN, profile, settings, seed, what, "run", -1, records[1], plain_report[1]);
    pid_t second = start(compared ? POOLED : ALONE, profile, settings, seed, what, "run",
                         records[0], -1, report[1]);
    close(records[0]);
    close(records[1]);
    close(report[1]);
    close(plain_report[1]);
    read_verdict(report[0], &pooled);
    read_verdict(plain_report[0], &plain);
    waitpid(second, &status, 0);
    if (first > 0) {
        int first_status;
        waitpid(first, &first_status, 0);
        if (plain.failed || (!pooled.failed && pooled.why[0]))
            end_badly(first_status, "WITHOUT THE POOL", &plain);
    }
    if (plain.failed)
        return plain;
    end_badly(status, "with the pool", &pooled);
    if (profile->free)
        read_report(settings, what[0] == '/', &pooled);
    return pooled;
}

/* ---- shrinking ---- */

static struct {
    uint64_t seed;
    const struct profile *profile;
    char file[PATH_MAX];
    struct step *steps;
    size_t count;
    unsigned int tries;
    struct verdict verdict;
    char sought[sizeof((struct verdict *)0)->why]; /* the difference that is to remain */
} shrinking;

/* What depends on how threads meet may take a few tries. */
static struct verdict try_again(void)
{
    struct verdict verdict = {.failed = false};
    for (int i = 0; i < (shrinking.profile->free ? 8 : 1) && !verdict.failed; i++)
        verdict = run_pair(shrinking.seed, shrinking.profile, shrinking.file);
    return verdict;
}

/* Two differences are alike if the same call of the same kind of step has them, wherever it is. */
static bool are_alike(const char *a, const char *b)
{
    for (;;) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b)
            return false;
        if (*a == '\0' || *a == '(')
            return true;
        a++;
        b++;
    }
}

static bool still_fails(const struct step *steps, size_t count)
{
    int file = open(shrinking.file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || !transfer(file, (void *)(uintptr_t)steps, count * sizeof *steps, true))
        stop(shrinking.file);
    close(file);
    shrinking.tries++;
    struct verdict verdict = try_again();
    if (!verdict.failed || !are_alike(verdict.why, shrinking.sought))
        return false;
    shrinking.verdict = verdict;
    return true;
}

static void take_away_chunks(size_t chunk)
{
    struct step *fewer = malloc((shrinking.count + 1) * sizeof *fewer);
    for (size_t at = 0; at < shrinking.count && shrinking.tries < TRIES_MAX;) {
        size_t length = chunk < shrinking.count - at ? chunk : shrinking.count - at;
        memcpy(fewer, shrinking.steps, at * sizeof *fewer);
        memcpy(fewer + at, shrinking.steps + at + length,
               (shrinking.count - at - length) * sizeof *fewer);
        if (still_fails(fewer, shrinking.count - length)) {
            shrinking.count -= length;
            memcpy(shrinking.steps, fewer, shrinking.count * sizeof *fewer);
        } else {
            at += length;
        }
    }
    free(fewer);
}

static bool are_equal(const struct step *a, const struct step *b)
{
    return a->thread == b->thread && a->x == b->x && a->y == b->y && a->c == b->c && a->d == b->d;
}

static void try_instead(size_t at, struct step step)
{
    struct step before = shrinking.steps[at];
    if (are_equal(&step, &before) || shrinking.tries >= TRIES_MAX)
        return;
    shrinking.steps[at] = step;
    if (!still_fails(shrinking.steps, shrinking.count))
        shrinking.steps[at] = before;
}

static void simplify(size_t at)
{
    struct step step = shrinking.steps[at];
    step.thread = 0;
    try_instead(at, step);
    step = shrinking.steps[at];
    step.x = 4096;
    try_instead(at, step);
    step = shrinking.steps[at];
    step.y = 1;
    try_instead(at, step);
    step = shrinking.steps[at];
    step.c = step.d = 1;
    try_instead(at, step);
}

static void shrink(void)
{
    shrinking.count = shrinking.verdict.step + 1 < shrinking.count && shrinking.verdict.step > 0
                          ? shrinking.verdict.step + 1
                          : shrinking.count;
    if (!still_fails(shrinking.steps, shrinking.count))
        return;
    for (size_t chunk = shrinking.count / 2; chunk > 0; chunk /= 2)
        take_away_chunks(chunk);
    for (size_t i = 0; i < shrinking.count; i++)
        simplify(i);
    take_away_chunks(1);
}

/* The steps of programs first to last, one after the other. */
static void gather(uint64_t first, uint64_t last)
{
    size_t each = shrinking.profile->steps + 1;
    free(shrinking.steps);
    shrinking.count = (last - first + 1) * each;
    shrinking.steps = calloc(shrinking.count, sizeof *shrinking.steps);
    for (uint64_t i = first; i <= last; i++) {
        struct step *steps = shrinking.steps + (i - first) * each;
        make_program(shrinking.profile, shrinking.seed, i, steps);
        steps[each - 1] = (struct step){.kind = STEP_END};
    }
}

static void print_code(void)
{
    fflush(stdout);
    still_fails(shrinking.steps, shrinking.count); /* the file holds the last that failed */
    /* Where captures may allocate, the program does something else without the pool. */
    bool pooled = shrinking.profile->allocates;
    char settings[PATH_MAX];
    settings_name(settings, sizeof settings);
    pid_t child = start(pooled ? ALONE : PLAIN, shrinking.profile, settings, shrinking.seed,
                        shrinking.file, "print", -1, -1, -1);
    waitpid(child, NULL, 0);
}

/* The fewest programs up to the one that failed which fail by themselves; then their fewest steps.
 */
static void explain(uint64_t seed, const struct profile *profile, const struct verdict *verdict)
{
    uint64_t last = verdict->program, back = 0;
    shrinking.seed = seed;
    shrinking.profile = profile;
    shrinking.verdict = *verdict;
    memcpy(shrinking.sought, verdict->why, sizeof shrinking.sought);
    shrinking.tries = 0;
    snprintf(shrinking.file, sizeof shrinking.file, "%s/steps-%d", directory, getpid());
    for (;;) {
        gather(last - back, last);
        if (still_fails(shrinking.steps, shrinking.count))
            break;
        if (back == last) {
            printf("it does not fail again\n");
            return;
        }
        back = 2 * back + 1 < last ? 2 * back + 1 : last;
    }
    size_t before = shrinking.count;
    shrink();
    printf("shrunk from %zu steps to %zu: %s\nsettings: %s\ndevices: %u, of %llu MiB\n", before,
           shrinking.count, shrinking.verdict.why, profile->settings, profile->devices,
           (unsigned long long)(profile->device_bytes >> 20));
    for (size_t i = 0; i < shrinking.count && i < 60; i++) {
        const struct step *s = &shrinking.steps[i];
        printf("  step %zu: thread %u %s %u %u %u %u %u %u\n", i, s->thread, step_names[s->kind],
               s->a, s->b, s->c, s->d, s->x, s->y);
    }
    print_code();
}

/* ---- many seeds ---- */

/* Shared by the processes that take seeds. */
struct totals {
    _Atomic uint64_t next_seed, seeds, programs, steps, calls, differences;
};

struct options {
    uint64_t first, last, programs, differences;
    double end;
    unsigned int jobs;
    bool no_explanation;
    unsigned int ways;
};

static void run_one_seed(uint64_t seed, const struct options *options, struct totals *totals)
{
    struct profile profile;
    char programs[32];
    make_profile(&profile, seed, options->ways);
    snprintf(programs, sizeof programs, "%llu", (unsigned long long)options->programs);
    struct verdict verdict = run_pair(seed, &profile, programs);
    atomic_fetch_add(&totals->seeds, 1);
    atomic_fetch_add(&totals->programs, verdict.program + 1);
    atomic_fetch_add(&totals->steps, verdict.steps);
    atomic_fetch_add(&totals->calls, verdict.calls);
    if (!verdict.failed && verdict.why[0] == '\0')
        return;
    atomic_fetch_add(&totals->differences, 1);
    printf("FAIL %s%sseed=%llu program=%llu after %llu steps: %s\n",
           options->ways & FREELY ? "free " : "", options->ways & ALLOCATING ? "graphs " : "",
           (unsigned long long)seed, (unsigned long long)verdict.program,
           (unsigned long long)verdict.steps, verdict.why);
    if (!options->no_explanation)
        explain(seed, &profile, &verdict);
    fflush(stdout);
}

static void take_seeds(const struct options *options, struct totals *totals)
{
    uint64_t seed;
    while (seconds() < options->end && totals->differences < options->differences &&
           (seed = atomic_fetch_add(&totals->next_seed, 1)) <= options->last)
        run_one_seed(seed, options, totals);
    fflush(stdout);
}

static int run_many(const struct options *options)
{
    struct totals *totals =
        mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double started = seconds();
    if (totals == MAP_FAILED)
        stop("mmap");
    atomic_store(&totals->next_seed, options->first);
    fflush(stdout);
    for (unsigned int i = 0; i < options->jobs; i++)
        if (fork() == 0) {
            take_seeds(options, totals);
            _exit(0);
        }
    while (wait(NULL) > 0)
        continue;
    double took = seconds() - started;
    printf("operations tried: %llu (driver calls: %llu, %.0f a second), programs: %llu, seeds: "
           "%llu-%llu, differences: %llu\n",
           (unsigned long long)totals->steps, (unsigned long long)totals->calls,
           (double)totals->calls / took, (unsigned long long)totals->programs,
           (unsigned long long)options->first,
           (unsigned long long)(options->first + totals->seeds - 1),
           (unsigned long long)totals->differences);
    return totals->differences != 0;
}

static bool read_option(const char *argument, struct options *options)
{
    const char *value = strchr(argument, '=');
    char *end = NULL;
    if (strcmp(argument, "free") == 0)
        return options->ways |= FREELY;
    if (strcmp(argument, "graphs") == 0)
        return options->ways |= ALLOCATING;
    if (!value)
        return false;
    unsigned long long number = strtoull(value + 1, &end, 10);
    if (strncmp(argument, "seeds=", 6) == 0 || strncmp(argument, "seed=", 5) == 0) {
        options->first = options->last = number;
        if (*end == '-' && end[1] == '\0')
            options->last = UINT64_MAX / 2, end++;
        else if (*end == '-')
            options->last = strtoull(end + 1, &end, 10);
    } else if (strncmp(argument, "minutes=", 8) == 0) {
        options->end = seconds() + 60 * strtod(value + 1, &end);
    } else if (strncmp(argument, "programs=", 9) == 0) {
        options->programs = number;
    } else if (strncmp(argument, "jobs=", 5) == 0) {
        options->jobs = (unsigned int)number;
    } else if (strncmp(argument, "differences=", 12) == 0) {
        options->differences = number;
    } else if (strncmp(argument, "explain=", 8) == 0) {
        options->no_explanation = number == 0;
    } else {
        return false;
    }
    return *end == '\0' && end != value + 1;
}

/* build/tests/random/random -> build/libcudapool_preload.so */
static void find_files(void)
{
    ssize_t length = readlink("/proc/self/exe", own_path, sizeof own_path - 1);
    const char *chosen = getenv("RANDOM_PRELOAD");
    if (length <= 0 || !mkdtemp(directory))
        stop("/proc/self/exe");
    snprintf(preload, sizeof preload, "%s", own_path);
    for (int i = 0; i < 3 && strrchr(preload, '/'); i++)
        *strrchr(preload, '/') = '\0';
    strncat(preload, "/libcudapool_preload.so", sizeof preload - strlen(preload) - 1);
    if (chosen)
        snprintf(preload, sizeof preload, "%s", chosen);
    if (access(preload, R_OK) != 0)
        stop(preload);
}

int main(int argc, char **argv)
{
    struct options options = {.last = UINT64_MAX / 2,
                              .programs = 200,
                              .differences = UINT64_MAX,
                              .end = 1e300,
                              .jobs = 1};
    if (argc == 8 && strcmp(argv[1], "--role") == 0)
        return run_role(argv + 2);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &options)) {
            fprintf(stderr,
                    "usage: random [free] [graphs] [seeds=A-B] [minutes=N] [programs=N] [jobs=N] "
                    "[explain=0] [differences=N]\n");
            return 2;
        }
    find_files();
    int result = run_many(&options);
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command) == 0 ? result : 2;
}
