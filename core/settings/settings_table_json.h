/*
 * The table of settings: the path in the file, type, range and meaning of each, as settings.def
 * declares them.
 *
 * All code that reads, writes, checks or explains settings uses this table, so that it agrees. The
 * table is constant: any thread.
 */
#ifndef CUDAPOOL_CORE_SETTINGS_TABLE_JSON_H
#define CUDAPOOL_CORE_SETTINGS_TABLE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

enum setting_type {
    SETTING_FLAG,    /* true or false: bool */
    SETTING_WORD,    /* one of a few words: an enum */
    SETTING_COUNT32, /* an integer: uint32_t */
    SETTING_COUNT64, /* an integer: uint64_t */
    SETTING_BYTES,   /* an integer, or a string with a unit: uint64_t */
    SETTING_SIZE,    /* as BYTES, or a share of all memory: struct byte_size */
    SETTING_RATIO,   /* a number: double */
    SETTING_TIME,    /* a string with a unit: uint64_t nanoseconds */
    SETTING_FILE,    /* a name with %p, %h, %r, %%: char[SETTINGS_PATH_MAX] */
    SETTING_NAME,    /* letters, digits, ., _ and -: char[SETTINGS_NAME_BYTES] */
};

/* A value of a word or a flag, and its meaning. */
struct setting_value {
    const char *word;
    int value;
    const char *means;
};

struct setting {
    const char *path; /* "device.caps.cached" */
    enum setting_type type;
    size_t offset;              /* in struct settings */
    uint64_t least, most;       /* inclusive bounds: counts, bytes, nanoseconds, whole ratios */
    bool may_be_null;           /* whether null is allowed: an unlimited size, no file, no name */
    enum memory_owner share_of; /* for a size: whose memory it may be a share of */
    const struct setting_value *values; /* for words and flags; ends with a NULL word */
    const char *means;                  /* a sentence with one %s for the value */
    const char *means_if_null; /* what null means, and below what 0 means where that differs */
    const char *means_if_zero;
};

/* A section of the settings, and its title. */
struct setting_group {
    const char *path;
    const char *title;
};

extern const struct setting settings_table[];
extern const size_t settings_table_length;

/* The sections at the top of a file, in its order. Ends with a NULL path. */
extern const struct setting_group setting_groups[];

#endif
