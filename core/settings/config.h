/*
 * The settings: what a JSON file may say, and the defaults.
 *
 * struct settings is plain data, filled once before the pool starts and only read afterwards; it
 * owns no memory. Reading JSON needs jansson and therefore lives in libcudapool_config.so
 * (config_json.h), which the preload object opens only when there is a file to read.
 */
#ifndef CUDAPOOL_CORE_CONFIG_H
#define CUDAPOOL_CORE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/size_class.h"

#define SETTINGS_VERSION  1
#define SETTINGS_PATH_MAX 4096

/* A number of bytes, fixed or as a share of the device's total memory. */
struct byte_size {
    uint64_t bytes; /* used where percent is 0 */
    double percent; /* over 0 and up to 100: a share of the device's memory */
    bool unlimited; /* JSON null, where the schema allows it: no limit */
};

enum evict_policy { EVICT_LARGEST_FIRST, EVICT_LEAST_RECENTLY_USED };
enum report_at_exit { REPORT_NONE, REPORT_TABLE, REPORT_JSON };

struct bucket_settings {
    enum bucket_policy policy;
    uint32_t steps_per_doubling; /* geometric only: 1 to 64 */
    uint64_t smallest; /* bytes; requests below it are rounded up to it, or to a 64th of the device
                        * where that is less */
    struct byte_size largest; /* requests above it are not kept */
};

struct cap_settings {
    struct byte_size cached;    /* at most so many free bytes are kept, per device */
    uint64_t blocks_per_bucket; /* and so many free blocks in one bucket */
    double reserve_ratio;       /* 1.0 to 100 */
};

struct device_settings {
    bool enabled;
    struct bucket_settings buckets;
    struct cap_settings caps;
    struct byte_size growth_budget;
    enum evict_policy evict;
    uint64_t release_after_idle_ns; /* 0: never */
    bool barriers;                  /* a block may be handed out behind a wait on the device */
    bool free_synchronizes;
};

struct reuse_settings {
    bool follow_event_dependencies;
    bool opportunistic;
    bool internal_dependencies;
};

struct stream_ordered_settings {
    bool enabled;
    struct bucket_settings buckets;
    struct cap_settings caps;
    struct reuse_settings reuse;
    enum evict_policy evict;
    uint64_t release_after_idle_ns;
    struct byte_size driver_release_threshold; /* unlimited (null): left alone */
};

struct limit_settings {
    struct byte_size device_bytes; /* unlimited by default */
};

struct report_settings {
    enum report_at_exit at_exit;
    char file[SETTINGS_PATH_MAX]; /* empty: stderr; %p pid, %h host, %r rank are expanded */
};

struct figures_settings {
    bool enabled;                      /* there may be a file with the counters as they are */
    bool keep;                         /* when the process ends */
    char directory[SETTINGS_PATH_MAX]; /* empty: see figures_file.h; escapes as in report.file */
};

/* At least as many as there are settings (settings_json.h). */
#define SETTINGS_MOST 64

struct settings {
    struct device_settings device;
    struct stream_ordered_settings stream_ordered;
    struct limit_settings limits;
    struct report_settings report;
    struct figures_settings figures;
    /* How each was spelled in its file, in settings_table's order: for whoever echoes them, and
     * without any meaning for the pool. */
    uint8_t spelled[SETTINGS_MOST];
};

/* The defaults, as configs/default.json states them. */
void settings_defaults(struct settings *settings);

/* What a size means on a device of total_bytes; UINT64_MAX where it is unlimited. */
uint64_t byte_size_resolve(const struct byte_size *size, uint64_t total_bytes);

/* The block sizes that the settings make on a device of total_bytes. */
void bucket_settings_resolve(const struct bucket_settings *settings, uint64_t total_bytes,
                             struct size_classes *classes);

#endif
