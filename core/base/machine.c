/*
 * Reads the limits of the process's memory, what is left of it, and the NUMA nodes (machine.h).
 *
 * Part of the preload object: libc only.
 */
#include "machine.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cancellation.h"
#include "numbers.h"
#include "sandbox.h"
#include "text_reader.h"

/* NO_LIMIT also stands for a number that is missing, since an unknown limit bounds nothing. */
#define NO_LIMIT UINT64_MAX
/* A limit from here on is none: a cgroup v1 without a limit reports the largest multiple of the
 * page size within 63 bits. */
#define LEAST_ENDLESS_LIMIT (UINT64_C(1) << 62)
/* A buffer of this size holds every number and keyword that this file looks for. */
#define WORD_BYTES 64
/* Linux has at most this many nodes. */
#define NODES_END 1024u

/* 1 / LEFT_SHARE of the machine's memory, or of a cgroup's limit, is left to others. */
#define LEFT_SHARE 16u

/* Begins to read the file, through the descriptor that machine_keep_open opened if there is one. */
static void reader_open_kept(struct reader *reader, const struct machine *machine, const char *path)
{
    const struct kept_file *kept = kept_file_find(machine->kept, machine->kept_count, path);
    if (kept)
        reader_begin(reader, kept->fd, true);
    else
        reader_open(reader, path);
}

/* Returns the number that the text is, or NO_LIMIT for other text and for numbers that are too
 * large. */
static uint64_t number_in(const char *text)
{
    uint64_t number = 0;
    if (*text == '\0')
        return NO_LIMIT;
    for (; *text != '\0'; text++)
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*text - '0'), &number))
            return NO_LIMIT;
    return number;
}

/* Returns the number that the file's first line is. */
static uint64_t number_in_file(const struct machine *machine, const char *path)
{
    struct reader reader;
    uint64_t number = NO_LIMIT;
    char line[WORD_BYTES];
    reader_open_kept(&reader, machine, path);
    if (reader_next_line(&reader) && reader_take_field(&reader, "", line, sizeof line))
        number = number_in(line);
    reader_close(&reader);
    return number;
}

/* Returns the number after the name and any spaces, in the first line that begins with the name. */
static uint64_t number_after(const struct machine *machine, const char *path, const char *name)
{
    struct reader reader;
    uint64_t number = NO_LIMIT;
    char word[WORD_BYTES];
    bool found = false;
    reader_open_kept(&reader, machine, path);
    while (!found && reader_next_line(&reader)) {
        reader_take_field(&reader, " ", word, sizeof word);
        found = strcmp(word, name) == 0;
    }
    /* Each further space ends an empty field. */
    word[0] = '\0';
    while (found && word[0] == '\0' && !reader.line_is_over)
        reader_take_field(&reader, " ", word, sizeof word);
    if (found)
        number = number_in(word);
    reader_close(&reader);
    return number;
}

/* --- the process's cgroups ------------------------------------------------------------------- */

enum version { V1, V2 };

/* Decodes the bytes that the kernel writes as \ooo in mountinfo, such as spaces and newlines. */
static void resolve_escapes(char *text)
{
    char *to = text;
    while (*text != '\0') {
        unsigned byte = 0, digits = 0;
        while (*text == '\\' && digits < 3 && text[digits + 1] >= '0' && text[digits + 1] <= '7')
            byte = 8 * byte + (unsigned)(text[++digits] - '0');
        *to = *text;
        if (digits == 3)
            *to = (char)byte;
        to++;
        text += digits == 3 ? 4 : 1;
    }
    *to = '\0';
}

/* Removes the last name of a path that was cut, because that name may be incomplete. */
static void cut_last_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
}

/* Takes the rest of the field, and returns whether one of its words is this word. separators is a
 * comma, which ends a word, and the character that ends the field. The line's end ends both. */
static bool has_word(struct reader *reader, const char *separators, const char *word)
{
    char text[WORD_BYTES];
    bool found = false;
    do
        found |=
            reader_take_field(reader, separators, text, sizeof text) && strcmp(text, word) == 0;
    while (reader->end == ',');
    return found;
}

/* Reads the process's path in its cgroup hierarchy of this version from /proc/self/cgroup. The
 * process need not be able to see that path. A line is ID:CONTROLLERS:PATH; v2 has no controllers
 * there. Returns false if there is no such line. */
static bool read_process_path(const char *root, enum version version, char *path)
{
    struct reader reader;
    bool found = false;
    snprintf(path, MACHINE_PATH_BYTES, "%s/proc/self/cgroup", root);
    reader_open(&reader, path);
    while (!found && reader_next_line(&reader)) {
        char id[WORD_BYTES];
        reader_take_field(&reader, ":", id, sizeof id);
        found = has_word(&reader, ",:", version == V1 ? "memory" : "") && reader.end == ':';
    }
    if (found && !reader_take_field(&reader, "", path, MACHINE_PATH_BYTES))
        cut_last_name(path);
    reader_close(&reader);
    return found;
}

/* Returns the part of the path below the mounted directory: "", or a path that begins with a slash.
 * Returns NULL if the path is not below that directory, or if this cannot be told. A process or a
 * mount from outside the cgroup namespace has "/.." in its path. */
static const char *path_below(const char *mounted, const char *path)
{
    size_t length = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    if (strncmp(path, mounted, length) != 0)
        return NULL;
    path += length;
    if (*path != '\0' && (*path != '/' || strstr(path, "/..")))
        return NULL;
    return strcmp(path, "/") == 0 ? "" : path;
}

/* Makes the directory with this path below the mount point the deepest level. Returns false if that
 * directory does not exist, or if the mount point's path is too long. */
static bool set_levels(struct machine_cgroup *cgroup, const char *root, const char *mount_point,
                       const char *below)
{
    int top = snprintf(cgroup->path, sizeof cgroup->path, "%s%s", root, mount_point);
    /* Leaves room for a slash, so that cut_last_name never cuts the mount point. */
    if (top < 0 || (size_t)top + 1 >= sizeof cgroup->path)
        return false;
    size_t room = sizeof cgroup->path - (size_t)top;
    int length = snprintf(cgroup->path + top, room, "%s", below);
    if (length < 0 || (size_t)length >= room)
        cut_last_name(cgroup->path);
    cgroup->top = (uint32_t)top;
    return access(cgroup->path, F_OK) == 0;
}

struct mount {
    char mounted[MACHINE_PATH_BYTES]; /* the file system's directory that is mounted at point */
    char point[MACHINE_PATH_BYTES];
};

/* Reads a line of mountinfo. Returns false if it is no mount of this version's cgroups. A line is
 * ID PARENT DEVICE MOUNTED POINT OPTIONS TAGS... - TYPE SOURCE SUPER_OPTIONS. A path that is too
 * long is cut to MACHINE_PATH_BYTES - 1 bytes. No process's path is below a MOUNTED of that length,
 * and set_levels rejects a POINT of that length. Escapes make a cut path shorter, so that it may
 * pass. */
static bool read_mount(struct reader *reader, enum version version, struct mount *mount)
{
    char word[WORD_BYTES];
    for (int i = 0; i < 3; i++)
        reader_skip_field(reader);
    reader_take_field(reader, " ", mount->mounted, sizeof mount->mounted);
    reader_take_field(reader, " ", mount->point, sizeof mount->point);
    do
        reader_take_field(reader, " ", word, sizeof word);
    while (!reader->line_is_over && strcmp(word, "-") != 0);
    reader_take_field(reader, " ", word, sizeof word);
    if (strcmp(word, version == V1 ? "cgroup" : "cgroup2") != 0)
        return false;
    reader_skip_field(reader);
    resolve_escapes(mount->mounted);
    resolve_escapes(mount->point);
    return version == V2 || has_word(reader, ", ", "memory");
}

/* Takes the first mount that shows the process's cgroup. If none does, takes the first mount whose
 * mount point exists, with its root as the only level. If there is none, *cgroup stays as it is. */
static void find_in_mounts(struct machine_cgroup *cgroup, const char *root, enum version version,
                           const char *process_path)
{
    struct machine_cgroup candidate;
    struct reader reader;
    struct mount mount;
    bool found = false;
    snprintf(candidate.path, sizeof candidate.path, "%s/proc/self/mountinfo", root);
    reader_open(&reader, candidate.path);
    while (!found && reader_next_line(&reader)) {
        if (!read_mount(&reader, version, &mount))
            continue;
        const char *below = path_below(mount.mounted, process_path);
        found = below && set_levels(&candidate, root, mount.point, below);
        if (found || (cgroup->path[0] == '\0' && set_levels(&candidate, root, mount.point, "")))
            *cgroup = candidate;
    }
    reader_close(&reader);
}

/* Tries a place where distributions mount cgroups, for a process that cannot see its mounts. */
static bool find_at(struct machine_cgroup *cgroup, const char *root, const char *mount_point,
                    const char *process_path)
{
    const char *below = path_below("/", process_path);
    return (below && set_levels(cgroup, root, mount_point, below)) ||
           set_levels(cgroup, root, mount_point, "");
}

static void find_cgroup(struct machine_cgroup *cgroup, const char *root, enum version version)
{
    char path[MACHINE_PATH_BYTES];
    cgroup->path[0] = '\0';
    if (!read_process_path(root, version, path))
        return;
    find_in_mounts(cgroup, root, version, path);
    if (cgroup->path[0] != '\0')
        return;
    bool found = version == V1 ? find_at(cgroup, root, "/sys/fs/cgroup/memory", path)
                               : find_at(cgroup, root, "/sys/fs/cgroup/unified", path) ||
                                     find_at(cgroup, root, "/sys/fs/cgroup", path);
    if (!found)
        cgroup->path[0] = '\0';
}

/* --- limits and usage of levels -------------------------------------------------------------- */

/* The names of a level's files. */
struct level_files {
    const char *limit, *throttle, *usage, *unused; /* unused: a line of memory.stat */
};

static const struct level_files files_of[] = {
    [V1] = {.limit = "memory.limit_in_bytes",
            .usage = "memory.usage_in_bytes",
            .unused = "total_inactive_file"},
    [V2] = {.limit = "memory.max",
            .throttle = "memory.high",
            .usage = "memory.current",
            .unused = "inactive_file"},
};

/* The level that is being read. The first length bytes of path are the level's directory. path has
 * room for the name of one of its files. */
struct level {
    const struct machine *machine;
    const struct machine_cgroup *cgroup; /* of the machine, in the level's version */
    const struct level_files *files;
    size_t length;
    char path[MACHINE_PATH_BYTES + WORD_BYTES];
};

static const char *level_file(struct level *level, const char *name)
{
    snprintf(level->path + level->length, sizeof level->path - level->length, "/%s", name);
    return level->path;
}

static uint64_t limit_of(struct level *level)
{
    uint64_t limit = number_in_file(level->machine, level_file(level, level->files->limit));
    if (level->files->throttle)
        limit = smaller_of(
            limit, number_in_file(level->machine, level_file(level, level->files->throttle)));
    return limit < LEAST_ENDLESS_LIMIT ? limit : NO_LIMIT;
}

/* Returns left: the bytes that are left of the level's limit. If left >= least, it may return
 * another number >= least, without reading memory.stat. min(least, left) does not change by that.
 * Usage that cannot be read counts as 0, so left is at most the limit. */
static uint64_t left_of(struct level *level, uint64_t limit, uint64_t least)
{
    uint64_t usage = number_in_file(level->machine, level_file(level, level->files->usage));
    if (usage == NO_LIMIT)
        usage = 0;
    if (rest_of(limit, usage) >= least)
        return limit;
    uint64_t unused =
        number_after(level->machine, level_file(level, "memory.stat"), level->files->unused);
    if (unused == NO_LIMIT)
        unused = 0;
    return rest_of(limit, rest_of(usage, unused));
}

/* Moves to the level above. Returns false if there is none, or if that level does not count. Before
 * Linux 5.11, a v1 group whose memory.use_hierarchy is 0 does not bound the groups below it. */
static bool level_up(struct level *level)
{
    if (level->length <= level->cgroup->top)
        return false;
    level->path[level->length] = '\0';
    level->length = (size_t)(strrchr(level->path, '/') - level->path);
    return level->files != &files_of[V1] ||
           number_in_file(level->machine, level_file(level, "memory.use_hierarchy")) != 0;
}

enum measure { LIMIT, LEFT };

/* Returns false if the process has no cgroup of this version. */
static bool deepest_level(struct level *level, const struct machine *machine, enum version version)
{
    level->machine = machine;
    level->cgroup = version == V1 ? &machine->v1 : &machine->v2;
    level->files = &files_of[version];
    level->length = strlen(level->cgroup->path);
    memcpy(level->path, level->cgroup->path, level->length);
    return level->length > 0;
}

static uint64_t least_of_levels(const struct machine *machine, enum version version,
                                enum measure measure)
{
    struct level level;
    uint64_t least = NO_LIMIT;
    if (!deepest_level(&level, machine, version))
        return NO_LIMIT;
    do {
        uint64_t limit = limit_of(&level);
        if (limit != NO_LIMIT && measure == LEFT)
            limit = left_of(&level, limit, least);
        least = smaller_of(least, limit);
    } while (level_up(&level));
    return least;
}

static uint64_t least_of_all_levels(const struct machine *machine, enum measure measure)
{
    return smaller_of(least_of_levels(machine, V1, measure), least_of_levels(machine, V2, measure));
}

uint64_t machine_memory_left(const struct machine *machine)
{
    int error = errno, cancellation = cancellation_off();
    uint64_t left = least_of_all_levels(machine, LEFT);
    cancellation_restore(cancellation);
    errno = error;
    return left;
}

/* Returns the bytes that a line of /proc/meminfo gives in KiB. */
static uint64_t read_meminfo(const struct machine *machine, const char *name)
{
    uint64_t bytes;
    return __builtin_mul_overflow(number_after(machine, machine->meminfo, name), 1024, &bytes)
               ? NO_LIMIT
               : bytes;
}

uint64_t machine_memory_available(const struct machine *machine)
{
    int error = errno, cancellation = cancellation_off();
    uint64_t available = read_meminfo(machine, "MemAvailable:");
    cancellation_restore(cancellation);
    errno = error;
    return smaller_of(available, machine_memory_left(machine));
}

uint64_t machine_memory_missing(const struct machine *machine, uint64_t bytes)
{
    return rest_of(bytes + machine->memory_bytes / LEFT_SHARE, machine_memory_available(machine));
}

static uint64_t read_memory_bytes(const struct machine *machine)
{
    uint64_t bytes = read_meminfo(machine, "MemTotal:");
    bytes = smaller_of(bytes, least_of_all_levels(machine, LIMIT));
    return bytes == NO_LIMIT ? 0 : bytes;
}

/* --- NUMA nodes ------------------------------------------------------------------------------ */

/* The processors that threads of the process may run on. */
struct affinity {
    cpu_set_t processors[MACHINE_PROCESSORS / CPU_SETSIZE];
};

/* Reads the first thread's affinity and the caller's, and unites them: a program may pin either
 * thread and leave the rest of the process free. Returns false if the kernel has more processors
 * than fit. */
static bool read_affinity(struct affinity *affinity)
{
    struct affinity own;
    if (sched_getaffinity(getpid(), sizeof affinity->processors, affinity->processors) != 0 ||
        sched_getaffinity(0, sizeof own.processors, own.processors) != 0)
        return false;
    CPU_OR_S(sizeof own.processors, affinity->processors, affinity->processors, own.processors);
    return true;
}

/* Opens a list: a file of one line, like "0-3,8,10-11". */
static void list_open(struct reader *list, const char *path)
{
    reader_open(list, path);
    reader_next_line(list);
}

/* Takes the next range of a list, cut to numbers below end. Returns false if the list is over, or
 * if something else follows. */
static bool next_range(struct reader *list, uint64_t end, uint64_t *first, uint64_t *after)
{
    char text[WORD_BYTES];
    if (list->line_is_over || !reader_take_field(list, ",", text, sizeof text))
        return false;
    char *dash = strchr(text, '-');
    if (dash)
        *dash++ = '\0';
    *first = number_in(text);
    uint64_t last = dash ? number_in(dash) : *first;
    if (last == NO_LIMIT || *first > last)
        return false;
    *after = smaller_of(last + 1, end);
    return true;
}

/* Returns whether the process may run on one of the node's processors. */
static bool node_is_spanned(const char *list_path, const struct affinity *affinity)
{
    struct reader list;
    uint64_t processor, after;
    bool spanned = false;
    list_open(&list, list_path);
    while (!spanned && next_range(&list, MACHINE_PROCESSORS, &processor, &after))
        for (; processor < after; processor++)
            spanned |= CPU_ISSET_S(processor, sizeof affinity->processors, affinity->processors);
    reader_close(&list);
    return spanned;
}

/* Gives the number to all of the node's processors, since a thread's affinity may change. */
static void number_processors(struct machine *machine, const char *list_path, unsigned number)
{
    struct reader list;
    uint64_t first, after;
    list_open(&list, list_path);
    while (next_range(&list, MACHINE_PROCESSORS, &first, &after))
        if (first < after)
            memset(machine->node_of + first, (int)number, after - first);
    reader_close(&list);
}

static void read_nodes(struct machine *machine, const char *root)
{
    char path[MACHINE_PATH_BYTES];
    struct affinity affinity;
    struct reader online;
    uint64_t node, after;
    unsigned spanned = 0;
    memset(machine->node_of, 0, sizeof machine->node_of);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    list_open(&online, path);
    if (read_affinity(&affinity))
        while (next_range(&online, NODES_END, &node, &after))
            for (; node < after; node++) {
                snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root,
                         (unsigned)node);
                if (node_is_spanned(path, &affinity))
                    number_processors(machine, path, spanned++ % MACHINE_NODES);
            }
    reader_close(&online);
    if (spanned == 0)
        spanned = 1;
    machine->nodes = spanned < MACHINE_NODES ? spanned : MACHINE_NODES;
}

unsigned machine_node_of_thread(const struct machine *machine)
{
    int error = errno;
    int processor = sched_getcpu();
    errno = error;
    return processor < 0 ? 0 : machine_node_of(machine, (unsigned)processor);
}

void machine_read(struct machine *machine, const char *root)
{
    int error = errno, cancellation = cancellation_off();
    machine->kept_count = 0;
    find_cgroup(&machine->v1, root, V1);
    find_cgroup(&machine->v2, root, V2);
    snprintf(machine->meminfo, sizeof machine->meminfo, "%s/proc/meminfo", root);
    machine->memory_bytes = read_memory_bytes(machine);
    read_nodes(machine, root);
    cancellation_restore(cancellation);
    errno = error;
}

/* --- files that are held open ---------------------------------------------------------------- */

static void keep_open(struct machine *machine, const char *path)
{
    if (machine->kept_count < MACHINE_KEPT &&
        kept_file_open(&machine->kept[machine->kept_count], path))
        machine->kept_count++;
}

static void keep_levels_open(struct machine *machine, enum version version)
{
    struct level level;
    if (!deepest_level(&level, machine, version))
        return;
    do {
        const struct level_files *files = level.files;
        const char *const names[] = {files->limit, files->throttle, files->usage, "memory.stat",
                                     version == V1 ? "memory.use_hierarchy" : NULL};
        for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
            if (names[i])
                keep_open(machine, level_file(&level, names[i]));
    } while (level_up(&level));
}

void machine_keep_open(struct machine *machine)
{
    int error = errno, cancellation = cancellation_off();
    keep_open(machine, machine->meminfo);
    keep_levels_open(machine, V1);
    keep_levels_open(machine, V2);
    cancellation_restore(cancellation);
    errno = error;
}

void machine_close(const struct machine *machine)
{
    for (unsigned i = 0; i < machine->kept_count; i++)
        kept_file_close(&machine->kept[i]);
}
