/*
 * The table of settings: path in the file, type, range and meaning of each, as settings.def
 * declares them.
 *
 * Whoever reads, writes, checks or explains settings goes through this table, so that they agree.
 * It is constant: any thread.
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

/* A value of a word or a flag, and what it means. */
struct setting_value {
    const char *word;
    int value;
    const char *means;
};

struct setting {
    const char *path; /* "device.caps.cached" */
    enum setting_type type;
    size_t offset;              /* in struct settings */
    uint64_t least, most;       /* counts, bytes, nanoseconds, whole ratios; both ends included */
    bool may_be_null;           /* an unlimited size, no file, no name */
    enum memory_owner share_of; /* of a size */
    const struct setting_value *values; /* words and flags; ends with a NULL word */
    const char *means;                  /* in plain words, with one %s for the value */
    const char *means_if_null;          /* and what null and 0 mean where that differs */
    const char *means_if_zero;
};

/* A part of the settings, and what it is about. */
struct setting_group {
    const char *path;
    const char *title;
};

extern const struct setting settings_table[];
extern const size_t settings_table_length;

/* The parts at the top of a file, in its order. Ends with a NULL path. */
extern const struct setting_group setting_groups[];

#endif
