/*
 * The table of settings: path in the file, type, range and meaning of each, as settings.def
 * declares them.
 *
 * Whoever reads, writes, checks or explains settings goes through this table, so that they agree.
 * The table is constant: any thread.
 */
#ifndef CUDAPOOL_CORE_SETTINGS_JSON_H
#define CUDAPOOL_CORE_SETTINGS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "document_json.h"

enum setting_type {
    SETTING_FLAG,    /* true or false: bool */
    SETTING_WORD,    /* one of a few words: an enum */
    SETTING_COUNT32, /* an integer: uint32_t */
    SETTING_COUNT64, /* an integer: uint64_t */
    SETTING_BYTES,   /* an integer, or a string with a unit: uint64_t */
    SETTING_SIZE,    /* the same, or a share of the device's memory: struct byte_size */
    SETTING_RATIO,   /* a number: double */
    SETTING_TIME,    /* a string with a unit: uint64_t nanoseconds */
    SETTING_FILE,    /* a name with %p, %h, %r, %%: char[SETTINGS_PATH_MAX] */
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
    size_t offset;        /* in struct settings */
    uint64_t least, most; /* counts, bytes, nanoseconds, whole ratios; both ends included */
    bool may_be_null;     /* an unlimited size, or no file */
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

/* Room for a setting's value as JSON, or its meaning in words. */
#define SETTING_TEXT_BYTES (SETTINGS_PATH_MAX + 256)

/* Reads one value. 0, or -1 with the error written and *settings untouched. */
int setting_from_json(const struct document *document, const char *place,
                      const struct setting *setting, const json_t *value,
                      struct settings *settings);

/* The value as a settings file spells it, a new reference. NULL where memory is short. */
json_t *setting_to_json(const struct setting *setting, const struct settings *settings);

/* Whether both have the same value, however it is spelled. False where memory is short. */
bool setting_is_equal(const struct setting *setting, const struct settings *one,
                      const struct settings *other);

/* What the value means, in words, on one line. */
void setting_to_words(const struct setting *setting, const struct settings *settings,
                      char text[SETTING_TEXT_BYTES]);

/* What values are allowed, for errors. */
#define SETTING_ALLOWED_BYTES 384
void setting_allowed(const struct setting *setting, char *text, size_t bytes);

/* Reads a whole settings object: what it does not name is the default. place is where it stands in
 * its document, "" for a file of its own. 0, or -1 with the error written and *settings untouched.
 */
int settings_from_json(const struct document *document, const char *place, const json_t *object,
                       struct settings *settings);

/* Sets the one setting at a path such as device.caps.cached. 0, or -1 with the error written, for
 * an unknown path as well, and *settings untouched. Whoever is done with a few of these calls owes
 * a settings_check. */
int settings_assign(const struct document *document, const char *path, const json_t *value,
                    struct settings *settings);

/* Whether the settings agree with each other. 0, or -1 with the error written. */
int settings_check(const struct document *document, const char *place,
                   const struct settings *settings);

/* The whole settings object, a new reference; settings_from_json reads it back to the same. NULL
 * where memory is short. */
json_t *settings_to_json(const struct settings *settings);

#endif
