/*
 * Starts the pool, and writes the report at the process's end.
 *
 * Nothing happens before a hook first asks for the pool. Then each thread that asks makes a plan of
 * its own: it reads the environment and the settings. That may open files and shared objects, for
 * which the dynamic linker takes its lock, so no lock of ours is held. One thread carries its plan
 * out, with no step that waits for another thread; the others wait for that. From then on the
 * outcome is only read.
 */
#include "start.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/file_pattern.h"
#include "core/base/glibc_compat.h"
#include "core/base/process.h"
#include "lookup.h"
#include "real_driver.h"
#include "report_at_exit.h"
#include "standard_error.h"

#define CONFIG_LIBRARY "libcudapool_config.so"
#define MESSAGE_BYTES  (2 * PATH_MAX)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define IS_SANITIZED 1
#endif
#endif

/* The program's json-c and our jansson have names in common, and neither may see the other's. With
 * a sanitizer, the library takes its memory from the sanitizer's malloc, as all of this build
 * does. */
#ifdef IS_SANITIZED
#define PRIVATE_LIBRARY (RTLD_NOW | RTLD_LOCAL)
#else
#define PRIVATE_LIBRARY (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
#endif

typedef int settings_reader(const char *path, struct settings *settings, char *error,
                            size_t error_bytes);

/* What one thread has found out: the settings, or why the program runs without the pool. */
struct plan {
    struct settings settings;
    bool figures_for_somebody; /* the environment says where the figures go; whoever set that looks
                                  after them */
    report_writer *write_json;
    struct thread_functions threads;
    char why_not[MESSAGE_BYTES]; /* a message for stderr, or empty: why the pool stays off, or
                                    which of the settings are retired */
};

enum outcome { UNDECIDED, STARTED, OFF };

/* Written by the thread that has set claimed_by, before it publishes pool_to_use and outcome. */
static struct run run;

/* The process whose thread carries out its plan; 0 while none does. */
static _Atomic pid_t claimed_by;

/* Release when the pool is published, or removed in a forked child. Acquire when it is read, here
 * and in the_pool. */
_Atomic(struct pool *) pool_to_use;
static _Atomic enum outcome outcome;

/* Set while this thread is starting the pool, because the functions that it calls may call
 * hooks. */
static _Thread_local bool thread_is_starting;

/* crtbegin's name for this object. By it, glibc drops the fork handler when the object is
 * unloaded. */
extern void *__dso_handle __attribute__((visibility("hidden")));
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                             void *dso_handle);

/* --- compute-sanitizer ----------------------------------------------------------------------- */

/* The launcher that compute-sanitizer loads first is also part of profilers, beside which the pool
 * can run. */
static bool is_compute_sanitizers(const char *path)
{
    return strstr(path, "libsanitizer-collection") != NULL ||
           (strstr(path, "sanitizer") != NULL &&
            (strstr(path, "libInterceptorInjectionTarget") != NULL ||
             strstr(path, "TreeLauncherTargetInjection") != NULL));
}

static int note_compute_sanitizer(struct dl_phdr_info *object, size_t bytes, void *found)
{
    (void)bytes;
    *(bool *)found = object->dlpi_name != NULL && is_compute_sanitizers(object->dlpi_name);
    return *(bool *)found;
}

/* compute-sanitizer checks the program's own allocations, which it knows by the driver calls. So
 * the pool does not run beside it. */
static bool runs_under_compute_sanitizer(void)
{
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        if (strncmp(*variable, "NV_SANITIZER_INJECTION_", strlen("NV_SANITIZER_INJECTION_")) == 0) {
            return true;
        }
    }
    bool found = false;
    dl_iterate_phdr(note_compute_sanitizer, &found);
    return found;
}

/* --- the library that reads settings and writes JSON ------------------------------------------ */

/* The directory from which this object was loaded, and a slash. A relative name is relative to
 * where the program was started, which the dynamic linker has remembered. */
static bool find_own_directory(char *directory, size_t bytes)
{
    Dl_info info;
    struct link_map *map;
    if (dladdr1(&run, &info, (void **)&map, RTLD_DL_LINKMAP) == 0) {
        return false;
    }
    char origin[PATH_MAX + 1];
    const char *slash = strrchr(info.dli_fname, '/');
    if (info.dli_fname[0] == '/') {
        snprintf(origin, sizeof origin, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    } else if (dlinfo(map, RTLD_DI_ORIGIN, origin) != 0) {
        return false;
    }
    return (size_t)snprintf(directory, bytes, "%s/", origin) < bytes;
}

typedef void *dlopen_function(const char *path, int mode);

/*
 * glibc's own dlopen, without whoever interposes it. A sanitizer's run time in the program would
 * end the process at this call: a library with RTLD_DEEPBIND takes its memory from libc's malloc.
 * The sanitizer does not know that memory when another library frees it. Here only our library
 * frees its memory.
 *
 * Before glibc 2.34 the function is in libdl.so.2, and since then in a library that this one needs.
 */
static dlopen_function *glibc_dlopen(void)
{
    void *libdl = dlopen("libdl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    void *found = libdl != NULL ? glibc_dlsym()(libdl, "dlopen") : NULL;
    return found != NULL ? (dlopen_function *)found : dlopen;
}

/* A function of the library. NULL where there is none, and why_not says why. The library stays
 * open. */
static void *find_in_config_library(const char *name, char *why_not)
{
    char directory[PATH_MAX];
    char path[PATH_MAX + sizeof CONFIG_LIBRARY];
    if (!find_own_directory(directory, sizeof directory)) {
        snprintf(why_not, MESSAGE_BYTES, "%s: cannot tell in which directory it is",
                 CONFIG_LIBRARY);
        return NULL;
    }
    snprintf(path, sizeof path, "%s%s", directory, CONFIG_LIBRARY);
    void *library = glibc_dlopen()(path, PRIVATE_LIBRARY);
    void *function = library != NULL ? glibc_dlsym()(library, name) : NULL;
    if (function == NULL) {
        const char *error = dlerror();
        snprintf(why_not, MESSAGE_BYTES, "%s", error != NULL ? error : path);
    }
    return function;
}

/* --- the plan ----------------------------------------------------------------------------------
 * Each step returns whether the pool may start. If not, why_not says why. */

/* NULL where the variable is not set, is empty, or belongs to whoever started a setuid program. */
static const char *setting_of_environment(const char *name)
{
    const char *value = secure_getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool is_wanted(struct plan *plan)
{
    const char *disable = setting_of_environment("CUDAPOOL_DISABLE");
    if (disable != NULL && strcmp(disable, "1") == 0) {
        return false;
    }
    if (runs_under_compute_sanitizer()) {
        snprintf(plan->why_not, MESSAGE_BYTES, "compute-sanitizer is at work");
        return false;
    }
    return true;
}

static bool read_settings(struct plan *plan)
{
    settings_defaults(&plan->settings);
    const char *path = setting_of_environment("CUDAPOOL_CONFIG");
    if (path == NULL) {
        return true;
    }
    settings_reader *reader =
        (settings_reader *)find_in_config_library("cudapool_config_read", plan->why_not);
    return reader != NULL && reader(path, &plan->settings, plan->why_not, MESSAGE_BYTES) == 0;
}

static bool choose_report(struct plan *plan)
{
    struct report_settings *report = &plan->settings.report;
    const char *choice = setting_of_environment("CUDAPOOL_REPORT");
    if (choice == NULL) {
        return true;
    }
    if (strcmp(choice, "none") == 0) {
        report->at_exit = REPORT_NONE;
    } else if (strcmp(choice, "stderr") == 0) {
        report->at_exit = REPORT_TABLE;
        report->file[0] = '\0';
    } else if (strlen(choice) < sizeof report->file && file_pattern_is_valid(choice)) {
        report->at_exit = REPORT_JSON;
        memcpy(report->file, choice, strlen(choice) + 1);
    } else {
        snprintf(plan->why_not, MESSAGE_BYTES,
                 "CUDAPOOL_REPORT: found \"%.512s\"; allowed are none, stderr, and a file name of "
                 "at most %zu bytes in which %%p, %%h, %%r and %%%% are the only escapes",
                 choice, sizeof report->file - 1);
        return false;
    }
    return true;
}

static bool choose_figures(struct plan *plan)
{
    struct figures_settings *figures = &plan->settings.figures;
    const char *choice = setting_of_environment("CUDAPOOL_FIGURES");
    if (choice == NULL) {
        return true;
    }
    if (strcmp(choice, "none") == 0) {
        figures->enabled = false;
    } else if (strlen(choice) < sizeof figures->directory && file_pattern_is_valid(choice)) {
        plan->figures_for_somebody = true;
        figures->enabled = true;
        memcpy(figures->directory, choice, strlen(choice) + 1);
    } else {
        snprintf(plan->why_not, MESSAGE_BYTES,
                 "CUDAPOOL_FIGURES: found \"%.512s\"; allowed are none and the name of a directory "
                 "of at most %zu bytes in which %%p, %%h, %%r and %%%% are the only escapes",
                 choice, sizeof figures->directory - 1);
        return false;
    }
    return true;
}

static bool find_report_writer(struct plan *plan)
{
    if (plan->settings.report.at_exit != REPORT_JSON) {
        return true;
    }
    plan->write_json =
        (report_writer *)find_in_config_library("cudapool_report_write", plan->why_not);
    return plan->write_json != NULL;
}

static bool make_plan(struct plan *plan)
{
    return is_wanted(plan) && read_settings(plan) && choose_report(plan) && choose_figures(plan) &&
           find_report_writer(plan);
}

/* The functions are in libc, or else in libpthread, which every process with threads has loaded. */
static struct thread_functions find_thread_functions(void)
{
    dlsym_function *find = glibc_dlsym();
    return (struct thread_functions){
        (int (*)(pthread_key_t *, void (*)(void *)))find(RTLD_DEFAULT, "pthread_key_create"),
        (int (*)(pthread_key_t, const void *))find(RTLD_DEFAULT, "pthread_setspecific"),
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))find(
            RTLD_DEFAULT, "pthread_create"),
        (int (*)(pthread_attr_t *, size_t))find(RTLD_DEFAULT, "pthread_attr_setstacksize"),
    };
}

/* --- carrying it out ---------------------------------------------------------------------------
 */

/* The pool that prepare_fork has told of a fork in this thread. */
static _Thread_local struct pool *forking_pool;

static void prepare_fork(void)
{
    forking_pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    if (forking_pool)
        pool_fork_coming(forking_pool);
}

static void forked(void)
{
    if (forking_pool)
        pool_fork_over(forking_pool);
    forking_pool = NULL;
}

/* A forked child has no pool: the contexts of its parent are not the child's. */
static void forget_the_pool(void)
{
    struct pool *pool = atomic_exchange_explicit(&pool_to_use, NULL, memory_order_acq_rel);
    if (pool)
        pool_forget(pool);
    atomic_store_explicit(&outcome, OFF, memory_order_release);
}

static struct pool *create_pool(const struct driver *driver, struct plan *plan)
{
    if (__register_atfork(prepare_fork, forked, forget_the_pool, &__dso_handle) != 0) {
        snprintf(plan->why_not, MESSAGE_BYTES, "no memory for a fork handler");
        return NULL;
    }
    run.pid = getpid();
    run.settings = plan->settings;
    run.write_json = plan->write_json;
    report_prepare(&run);
    run.started = process_own_start();
    run.pool = pool_create(driver, &run.settings, &plan->threads);
    if (run.pool == NULL) {
        snprintf(plan->why_not, MESSAGE_BYTES, "the pool cannot start: %s", strerror(errno));
        return NULL;
    }
    if (plan->why_not[0] != '\0')
        say(plan->why_not);
    pool_read_limits(run.pool, say);
    run.collected = plan->figures_for_somebody;
    pool_show_figures(run.pool, run.collected ? NULL : say);
    return run.pool;
}

static void stay_off(struct plan *plan)
{
    if (plan->why_not[0] != '\0') {
        static const char end[] = "; the program runs without the pool";
        size_t length = strnlen(plan->why_not, MESSAGE_BYTES - sizeof end);
        memcpy(plan->why_not + length, end, sizeof end);
        say(plan->why_not);
    }
    atomic_store_explicit(&outcome, OFF, memory_order_release);
}

static void carry_out(struct plan *plan, bool may_start, const struct driver *driver)
{
    struct pool *pool = may_start ? create_pool(driver, plan) : NULL;
    if (pool == NULL) {
        stay_off(plan);
        return;
    }
    atomic_store_explicit(&pool_to_use, pool, memory_order_release);
    atomic_store_explicit(&outcome, STARTED, memory_order_release);
}

/* Also ends in a child that is forked during the wait, which lacks the thread that would decide the
 * outcome. */
static void wait_for_the_outcome(void)
{
    uint64_t started = monotonic_now();
    while (atomic_load_explicit(&outcome, memory_order_acquire) == UNDECIDED &&
           atomic_load_explicit(&claimed_by, memory_order_relaxed) == getpid()) {
        patient_nap(started);
    }
}

static bool claim(void)
{
    pid_t nobody = 0;
    return atomic_compare_exchange_strong_explicit(&claimed_by, &nobody, getpid(),
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* Without a driver nothing is decided, because one may be loaded later. */
static void start(void)
{
    const struct driver *driver = core_driver();
    struct plan *plan = driver != NULL ? calloc(1, sizeof *plan) : NULL;
    if (plan == NULL) {
        return;
    }
    bool may_start = make_plan(plan);
    plan->threads = find_thread_functions();
    if (claim()) {
        carry_out(plan, may_start, driver);
    } else {
        wait_for_the_outcome();
    }
    free(plan);
}

struct pool *start_unless_decided(void)
{
    if (atomic_load_explicit(&outcome, memory_order_acquire) == UNDECIDED && !thread_is_starting) {
        int cancellation = cancellation_off();
        thread_is_starting = true;
        start();
        thread_is_starting = false;
        cancellation_restore(cancellation);
    }
    return atomic_load_explicit(&pool_to_use, memory_order_acquire);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* False where no process did, or where the parent did. Any thread. */
static bool this_process_started_the_pool(void)
{
    bool started = atomic_load_explicit(&pool_to_use, memory_order_acquire) != NULL;
    bool ours = run.pid == getpid();
    return started && ours;
}

__attribute__((destructor)) static void process_ends(void)
{
    if (this_process_started_the_pool()) {
        pool_ends(run.pool);
        report_at_exit(&run);
    }
}
