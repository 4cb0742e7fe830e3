/*
 * Reads files of figures (figures_reader.h). The file is copied first. Then the lengths of all
 * records in the copy are checked, so that figures_next can walk them. After that the settings,
 * numbers and texts are checked.
 */
#include "figures_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/figures/figures_report.h"
#include "core/settings/settings_json.h"

/* More devices than any machine has. */
#define DEVICES_MOST 256u

/* --- bytes --------------------------------------------------------------------------------------
 */

/* Opens a regular file and writes its size. Returns the descriptor, or -1 with errno: EINVAL if it
 * is not a regular file. */
static int open_file(const char *path, uint64_t *bytes)
{
    struct stat status;

    /* Opening a pipe and closing it again would disturb the process that writes to it. */
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        *bytes = (uint64_t)status.st_size;
        return fd;
    }
    close(fd);
    errno = EINVAL;
    return -1;
}

/* Reads so many bytes from the start of the file. False with errno; 0: the file ends before. */
static bool read_bytes(int fd, void *memory, uint64_t bytes)
{
    uint64_t filled = 0;

    while (filled < bytes) {
        ssize_t got = pread(fd, (char *)memory + filled, bytes - filled, (off_t)filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got == 0 ? 0 : errno;
            return false;
        }
        filled += (uint64_t)got;
    }
    return true;
}

bool figures_is_file(const char *path)
{
    uint64_t magic = 0, bytes;
    int fd = open_file(path, &bytes);

    if (fd < 0)
        return false;
    bool read = read_bytes(fd, &magic, sizeof(magic));
    close(fd);
    return read && (magic == FIGURES_MAGIC || __builtin_bswap64(magic) == FIGURES_MAGIC);
}

/* --- checks -------------------------------------------------------------------------------------
 */

static int check_beginning(const struct document *document, const struct figures_header *header,
                           uint64_t file_bytes)
{
    uint64_t magic = counter_get(&header->magic), used = counter_get(&header->used);

    if (__builtin_bswap64(magic) == FIGURES_MAGIC)
        return document_fail(document, NULL, "figures of a machine with another byte order");
    if (magic != FIGURES_MAGIC)
        return document_fail(document, NULL,
                             "is no file of figures, or its process ended while it was made");
    if (header->version != FIGURES_VERSION)
        return document_fail(document, NULL,
                             "figures of version %" PRIu64 "; this cudapool reads version %u",
                             header->version, FIGURES_VERSION);
    if (header->first < sizeof(*header) || header->first % FIGURES_ALIGNMENT != 0 ||
        header->first > used || used % FIGURES_ALIGNMENT != 0 || used > FIGURES_BYTES_MAX)
        return document_fail(document, NULL,
                             "damaged: the figures cannot begin at byte %" PRIu64
                             " and end at byte %" PRIu64,
                             header->first, used);
    if (used > file_bytes)
        return document_fail(document, NULL, "cut short: %" PRIu64 " of %" PRIu64 " bytes",
                             file_bytes, used);
    return 0;
}

/* Of a record of each type. */
static uint32_t least_bytes(uint32_t type)
{
    static const uint32_t bytes[] = {
        [FIGURES_SETTINGS] = sizeof(struct figures_settings_record),
        [FIGURES_DEVICE] = sizeof(struct figures_device),
        [FIGURES_HISTORY] = sizeof(struct figures_history),
        [FIGURES_KIND] = sizeof(struct figures_kind),
        [FIGURES_HEAP] = sizeof(struct figures_heap),
        [FIGURES_BUCKET] = sizeof(struct figures_bucket),
        [FIGURES_BIN] = sizeof(struct figures_bin),
        [FIGURES_NEIGHBOURS] = sizeof(struct figures_neighbours),
        [FIGURES_UNPOOLED] = sizeof(struct figures_unpooled),
        [FIGURES_HOUSEKEEPER] = sizeof(struct figures_housekeeper),
        [FIGURES_LIMITS] = sizeof(struct figures_limits),
        [FIGURES_GRAPHS] = sizeof(struct figures_graphs),
    };
    bool known = type < sizeof(bytes) / sizeof(bytes[0]) && bytes[type] != 0;
    return known ? bytes[type] : sizeof(struct figures_record);
}

/* Checks that every record is at least as long as its type requires, and lies inside the file. */
static int check_lengths(const struct document *document, const struct figures_header *header)
{
    uint64_t used = counter_get(&header->used);
    const struct figures_record *record;

    for (uint64_t at = header->first; at < used; at += record->bytes) {
        record = (const void *)((const char *)header + at);
        if (record->bytes < least_bytes(record->type) || record->bytes % FIGURES_ALIGNMENT != 0 ||
            record->bytes > used - at)
            return document_fail(document, NULL,
                                 "damaged: the record at byte %" PRIu64 ", of type %" PRIu32
                                 ", cannot have %" PRIu32 " bytes",
                                 at, record->type, record->bytes);
    }
    return 0;
}

static bool is_bool(const void *byte)
{
    return *(const unsigned char *)byte <= 1;
}

/* Whether the setting's bytes are a valid value of its C type, so that they can be read. */
static bool is_of_its_type(const struct setting *setting, const struct settings *settings)
{
    const char *field = (const char *)settings + setting->offset;
    const struct setting_value *value = setting->values;
    int word;

    switch (setting->type) {
    case SETTING_FLAG:
        return is_bool(field);
    case SETTING_SIZE:
        return is_bool(field + offsetof(struct byte_size, unlimited));
    case SETTING_FILE:
        return memchr(field, '\0', SETTINGS_PATH_MAX) != NULL;
    case SETTING_NAME:
        return memchr(field, '\0', SETTINGS_NAME_BYTES) != NULL;
    case SETTING_WORD:
        memcpy(&word, field, sizeof(word));
        while (value->word != NULL && value->value != word)
            value++;
        return value->word != NULL;
    default:
        return true;
    }
}

/* Reads the settings the way a settings file is read, so that values are checked in the same way.
 */
static int take_settings(const struct document *document, const struct settings *from,
                         struct settings *settings)
{
    for (size_t i = 0; i < settings_table_length; i++)
        if (!is_of_its_type(&settings_table[i], from))
            return document_fail(document, NULL, "damaged: %s has no value of its type",
                                 settings_table[i].path);
    json_t *json = settings_to_json(from);
    if (json == NULL)
        return document_fail(document, NULL, "damaged: the settings have a number that is none");
    int status = settings_from_json(document, "settings", json, settings);
    json_decref(json);
    return status;
}

static void terminate(char *text, size_t bytes)
{
    text[bytes - 1] = '\0';
}

static int check_records(const struct document *document, struct figures_copy *copy)
{
    struct figures_walk walk = {copy->header, NULL, NULL};
    struct figures_record *record;
    unsigned devices = 0;
    bool has_settings = false;

    while ((record = figures_next(&walk)) != NULL) {
        struct figures_device *device = (void *)record;
        const struct figures_settings_record *settings = (const void *)record;
        if (record->type == FIGURES_DEVICE) {
            if (device->ordinal < 0 || device->ordinal > INT32_MAX || ++devices > DEVICES_MOST)
                return document_fail(document, NULL, "damaged: device %" PRId64 " cannot be",
                                     device->ordinal);
            terminate(device->name, sizeof(device->name));
        } else if (record->type == FIGURES_LIMITS) {
            for (int i = 0; i < 2; i++) {
                struct device_limits *limits =
                    &((struct figures_limits *)(void *)record)->limits[i];
                terminate(limits->device_from, sizeof(limits->device_from));
                terminate(limits->group_from, sizeof(limits->group_from));
                terminate(limits->group, sizeof(limits->group));
            }
        } else if (record->type == FIGURES_SETTINGS && !has_settings) {
            if (take_settings(document, &settings->settings, &copy->settings) != 0)
                return -1;
            has_settings = true;
        }
    }
    return has_settings ? 0 : document_fail(document, NULL, "cut short: the settings are missing");
}

static void check_texts(struct figures_process *process)
{
    terminate(process->boot, sizeof(process->boot));
    terminate(process->host, sizeof(process->host));
    terminate(process->rank, sizeof(process->rank));
    terminate(process->command, sizeof(process->command));
    terminate(process->versions.cudapool, sizeof(process->versions.cudapool));
    terminate(process->versions.driver, sizeof(process->versions.driver));
}

static int check(const struct document *document, struct figures_copy *copy)
{
    struct figures_process *process = &copy->header->process;

    if (check_lengths(document, copy->header) != 0 || check_records(document, copy) != 0)
        return -1;
    check_texts(process);
    if (process->pid > INT64_MAX || process->started_at > INT64_MAX)
        return document_fail(document, NULL,
                             "damaged: there is no process of this number, or no such time");
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------
 */

/* Reads the header and all records that it counted when it was read. NULL with an error. */
static struct figures_header *read_arena(const struct document *document, int fd, uint64_t bytes)
{
    struct figures_header beginning, *arena;

    if (!read_bytes(fd, &beginning, sizeof(beginning))) {
        document_fail(document, NULL, "%s",
                      errno == 0 ? "cut short: the header is not whole" : strerror(errno));
        return NULL;
    }
    if (check_beginning(document, &beginning, bytes) != 0)
        return NULL;
    uint64_t used = counter_get(&beginning.used);
    arena = aligned_alloc(FIGURES_ALIGNMENT, used);
    if (arena != NULL && read_bytes(fd, arena, used)) {
        /* The second read may have seen newer values. These two stay as they were checked, so that
         * records added meanwhile are not in the copy. */
        counter_set(&arena->used, used);
        arena->first = beginning.first;
        return arena;
    }
    document_fail(document, NULL, "%s",
                  arena == NULL ? "does not fit in memory" : "cannot be read to its end");
    free(arena);
    return NULL;
}

int figures_read(const char *path, struct figures_copy *copy, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    struct figures_copy read = {0};
    uint64_t bytes = 0;
    int fd = open_file(path, &bytes);

    if (fd < 0) {
        document_fail(&document, NULL, "%s",
                      errno == EINVAL ? "is not a regular file" : strerror(errno));
        return -1;
    }
    read.use = figures_file_use(fd);
    read.header = read_arena(&document, fd, bytes);
    close(fd);
    if (read.header == NULL)
        return -1;
    if (check(&document, &read) != 0) {
        figures_free(&read);
        return -1;
    }
    *copy = read;
    return 0;
}

void figures_free(struct figures_copy *copy)
{
    free(copy->header);
    copy->header = NULL;
}

/* --- the process --------------------------------------------------------------------------------
 */

enum figures_life figures_life(const struct figures_copy *copy)
{
    const struct figures_process *process = &copy->header->process;
    struct figures_process self;

    memset(&self, 0, sizeof(self));
    figures_file_identify_process(&self);
    if (counter_get(&copy->header->ended) != 0 || self.boot[0] == '\0' ||
        strcmp(self.boot, process->boot) != 0)
        return FIGURES_GONE;
    if (self.pid_namespace != process->pid_namespace)
        return copy->use == FIGURES_UNUSED ? FIGURES_GONE : FIGURES_ALIVE;
    return figures_file_life(process->pid, process->start_ticks);
}

static uint64_t monotonic_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double seconds_between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

/* The end of what the copy describes, on the monotonic clock: now, or the process's last slow path.
 */
static uint64_t end_of(const struct figures_copy *copy, bool running)
{
    return running ? monotonic_nanoseconds() : counter_get(&copy->header->seen);
}

static void describe(const struct figures_copy *copy, bool running, struct report_process *process)
{
    const struct figures_process *from = &copy->header->process;

    process->pid = (int64_t)from->pid;
    memcpy(process->host, from->host, sizeof(process->host));
    memcpy(process->rank, from->rank, sizeof(process->rank));
    memcpy(process->command, from->command, sizeof(process->command));
    process->started_nanoseconds = from->started_at;
    process->versions = from->versions;
    process->ending = running ? REPORT_RUNNING : REPORT_KILLED;
    if (counter_get(&copy->header->ended) != 0)
        process->ending = REPORT_EXITED;
    process->wall_seconds = seconds_between(from->started, end_of(copy, running));
}

/* Adds the current counters to each device's history, as its last sample. */
static void sample_now(const struct figures_copy *copy, uint64_t now)
{
    struct figures_walk walk = {copy->header, NULL, NULL};
    struct figures_record *record;
    struct history_sample sum;

    while ((record = figures_next(&walk)) != NULL) {
        struct figures_history *history = (void *)record;
        if (record->type != FIGURES_HISTORY)
            continue;
        figures_sum((struct figures_walk){copy->header, NULL, NULL}, history->device, now, &sum);
        history_add(&history->history, &sum);
    }
}

int figures_to_report(const struct figures_copy *copy, struct report *report)
{
    struct figures_walk walk = {copy->header, NULL, NULL};
    uint64_t started = copy->header->process.started;
    bool running = figures_life(copy) == FIGURES_ALIVE;

    describe(copy, running, &report->process);
    report->settings = copy->settings;
    sample_now(copy, end_of(copy, running));
    return figures_report(walk, started, report);
}

int figures_read_report(const char *path, struct report *report, char *error, size_t error_bytes)
{
    struct figures_copy copy;

    if (figures_read(path, &copy, error, error_bytes) != 0)
        return -1;
    struct report *read = calloc(1, sizeof(*read));
    int status = read == NULL ? -1 : figures_to_report(&copy, read);
    if (status == 0)
        *report = *read;
    else
        snprintf(error, error_bytes, "%s: the report does not fit in memory", path);
    free(read);
    figures_free(&copy);
    return status;
}
