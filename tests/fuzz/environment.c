/*
 * What the preload object reads of its environment (shim/start.c): whatever CUDAPOOL_DISABLE,
 * CUDAPOOL_REPORT and CUDAPOOL_CONFIG hold, the plan is either one that the pool can carry out, or
 * there is at most one line on stderr, which says that the program runs without the pool.
 *
 * The input is the three values, each up to a NUL byte, and the settings file that the value
 * "file" stands for. The source is included for its steps; around it is what they need of a
 * process.
 */
#include <dlfcn.h>

#include "core/base/file_pattern.h"
#include "core/base/writing.h"
#include "core/figures/report_json.h"
#include "core/settings/config_json.h"
#include "fuzz.h"

/* The functions of libdl need no versions here. */
#define CUDAPOOL_SHIM_GLIBC_COMPAT_H

static char printed[64 * 1024];
static size_t printed_bytes;

/* What would go to stderr. */
static int note_write(int fd, const char *text, size_t bytes, uint64_t deadline)
{
    (void)deadline;
    PROMISE(fd == STDERR_FILENO && printed_bytes + bytes < sizeof(printed), "%zu bytes to %d",
            bytes, fd);
    memcpy(printed + printed_bytes, text, bytes);
    printed_bytes += bytes;
    printed[printed_bytes] = '\0';
    return 0;
}

/* The library is linked with this program, and glibc's own dlopen is this one. */
static void *open_library(const char *path, int flags)
{
    (void)flags;
    if (strcmp(path, "libdl.so.2") == 0)
        return NULL;
    PROMISE(strstr(path, "/libcudapool_config.so") != NULL, "%s", path);
    return printed;
}

/* The preload object, wherever this program is. */
static int find_object(const void *address, Dl_info *info, void **map, int flags)
{
    (void)address;
    (void)flags;
    *info = (Dl_info){.dli_fname = "/lib/libcudapool_preload.so"};
    *map = printed; /* not looked at */
    return 1;
}

#define write_until note_write
#define dlopen      open_library
#define dladdr1     find_object
#include "shim/standard_error.c" /* NOLINT(bugprone-suspicious-include) */
#include "shim/start.c"          /* NOLINT(bugprone-suspicious-include) */
#undef write_until
#undef dlopen
#undef dladdr1

static void *find_function(void *library, const char *name)
{
    PROMISE(library == printed, "another library");
    if (strcmp(name, "cudapool_config_read") == 0)
        return (void *)cudapool_config_read;
    PROMISE(strcmp(name, "cudapool_report_write") == 0, "%s", name);
    return (void *)cudapool_report_write;
}

dlsym_function *glibc_dlsym(void)
{
    return find_function;
}

/* No pool is started, and nothing reported. */
void report_prepare(const struct run *run_of_process)
{
    (void)run_of_process;
}

void report_at_exit(const struct run *run_of_process)
{
    (void)run_of_process;
}

const struct driver *core_driver(void)
{
    return NULL;
}

static void promise_plan(const struct plan *plan)
{
    const struct report_settings *report = &plan->settings.report;

    PROMISE(printed_bytes == 0, "%s", printed);
    PROMISE(report->at_exit != REPORT_JSON || plan->write_json == cudapool_report_write,
            "nothing writes the report");
    PROMISE(report->file[0] == '\0' || file_pattern_is_valid(report->file), "%s", report->file);
}

static void promise_refusal(struct plan *plan, bool disabled)
{
    static const char end[] = "; the program runs without the pool\n";

    stay_off(plan);
    if (disabled) {
        PROMISE(printed_bytes == 0, "%s", printed);
        return;
    }
    PROMISE(strncmp(printed, "cudapool: ", 10) == 0, "%s", printed);
    PROMISE(strlen(printed) == printed_bytes, "%s", printed);
    PROMISE(printed_bytes > sizeof(end) &&
                strcmp(printed + printed_bytes - (sizeof(end) - 1), end) == 0,
            "%s", printed);
    printed[printed_bytes - 1] = '\0';
    PROMISE(is_one_line(printed), "%s", printed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct memory_file file;
    static struct plan plan;
    char disable[16], config[256], report[2 * SETTINGS_PATH_MAX];

    take_text(&data, &bytes, disable, sizeof(disable));
    take_text(&data, &bytes, report, sizeof(report));
    take_text(&data, &bytes, config, sizeof(config));
    memory_file_set(&file, data, bytes);
    setenv("CUDAPOOL_DISABLE", disable, 1);
    setenv("CUDAPOOL_REPORT", report, 1);
    setenv("CUDAPOOL_CONFIG", strcmp(config, "file") == 0 ? file.path : config, 1);
    memset(&plan, 0, sizeof(plan));
    printed_bytes = 0;
    if (make_plan(&plan))
        promise_plan(&plan);
    else
        promise_refusal(&plan, strcmp(disable, "1") == 0);
    return 0;
}
