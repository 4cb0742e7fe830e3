/*
 * The settings: what a JSON file may say, and the defaults.
 *
 * settings.def declares the settings and their meaning; this file makes structs of them. struct
 * settings is plain data that owns no memory. It is filled once before the pool starts, and only
 * read afterwards. Reading JSON needs jansson and is therefore a part of libcudapool_config.so
 * (config_json.h). The preload object opens that library only when there is a file to read.
 */
#ifndef CUDAPOOL_CORE_CONFIG_H
#define CUDAPOOL_CORE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/size_class.h"

#define SETTINGS_VERSION    1
#define SETTINGS_PATH_MAX   4096
#define SETTINGS_NAME_BYTES 64 /* of a name, with its closing zero */

/* A number of bytes: fixed, or a share of the device's or the machine's memory (enum
 * memory_owner). */
struct byte_size {
    uint64_t bytes; /* used where percent is 0 */
    double percent; /* > 0 and <= 100: a share of the memory */
    bool unlimited; /* no limit: JSON null, where the setting allows it */
};

enum evict_policy { EVICT_LARGEST_FIRST, EVICT_LEAST_RECENTLY_USED };
enum host_large { HOST_LARGE_DRIVER, HOST_LARGE_HUGE_PAGES };
enum memory_nodes { MEMORY_NODES_DRIVER, MEMORY_NODES_POOL };
enum tell_total { TELL_TOTAL_SCHEDULER, TELL_TOTAL_ALWAYS, TELL_TOTAL_NEVER };
enum report_at_exit { REPORT_NONE, REPORT_TABLE, REPORT_JSON };

/* The memory of which a size may be a share. */
enum memory_owner { SHARE_OF_DEVICE, SHARE_OF_MACHINE };

/* An upper bound of the number of settings. */
#define SETTINGS_MOST 64

/* ---- one struct for each section, a member for each setting ---- */

/* clang-format off */
#define SECTION(section, ...)               struct section##_settings {
#define SECTION_END                         };
#define GROUP(tag, in, name, ...)           struct tag name;
#define FLAG(in, name, ...)                 bool name;
#define WORD(in, name, tag, ...)            enum tag name;
#define COUNT32(in, name, ...)              uint32_t name;
#define COUNT64(in, name, ...)              uint64_t name;
#define BYTES(in, name, ...)                uint64_t name;
#define SIZE(in, name, ...)                 struct byte_size name;
#define RATIO(in, name, ...)                double name;
#define TIME(in, name, ...)                 uint64_t name##_ns;
#define FILE_NAME(in, name, ...)            char name[SETTINGS_PATH_MAX]; /* empty: null */
#define NAME(in, name, ...)                 char name[SETTINGS_NAME_BYTES]; /* empty: null */
#include "shared_settings.def"
struct bucket_settings { BUCKET_SETTINGS(,,,) };
struct segment_settings { SEGMENT_SETTINGS() };
struct cap_settings { CAP_SETTINGS(,,) };
struct reuse_settings { REUSE_SETTINGS() };
#include "settings.def"

struct settings {
#define SECTION(section, ...) struct section##_settings section;
#include "settings.def"
    /* A code for how the file spells each setting, in the order of settings.def. It lets a program
     * echo the settings, and has no meaning for the pool. */
    uint8_t spelled[SETTINGS_MOST];
};
/* The kinds of memory, in the order of settings.def and of reports. */
enum memory_kind {
#define KIND(id, ...) KIND_##id,
#include "settings.def"
    MEMORY_KINDS
};
/* clang-format on */

/* The name of each kind, which is also that of its section. */
extern const char *const memory_kind_names[MEMORY_KINDS];

/* The kind with this name; MEMORY_KINDS where there is none. */
enum memory_kind memory_kind_named(const char *name);

/* Whether the kind's blocks lie on the device, and count among the bytes that the process holds
 * there. Pinned host memory lies elsewhere, and is only counted under its context's device. */
bool memory_kind_is_of_device(enum memory_kind kind);

/* The settings that the section of every kind has. */
struct kind_settings {
    const struct bucket_settings *buckets;
    const struct cap_settings *caps;
    uint64_t release_after_idle_ns;
};

struct kind_settings settings_of_kind(const struct settings *settings, enum memory_kind kind);

/* Fills in the defaults, as configs/default.json states them. */
void settings_defaults(struct settings *settings);

/* The bytes of a size, given total_bytes of the device's or the machine's memory; UINT64_MAX where
 * it is unlimited. */
uint64_t byte_size_resolve(const struct byte_size *size, uint64_t total_bytes);

/* Fills classes with the block sizes that the settings give for total_bytes of memory. */
void bucket_settings_resolve(const struct bucket_settings *settings, uint64_t total_bytes,
                             struct size_classes *classes);

#endif
