/*
 * Reading settings: from a file, from text, one by one. Needs jansson: part of
 * libcudapool_config.so and of the command.
 *
 * The reader belongs to the calling thread; no lock, no state.
 */
#ifndef CUDAPOOL_CORE_CONFIG_JSON_H
#define CUDAPOOL_CORE_CONFIG_JSON_H

#include <stddef.h>

#include "config.h"
#include "document_json.h"

/* Longer files are an error. */
#define SETTINGS_FILE_MAX (1024 * 1024)

/*
 * Fills *settings with the defaults and what the file says. 0, or -1 with *settings untouched and
 * one line in error (cut off after error_bytes): the file, the place in it, what was found and
 * what is allowed.
 */
int config_read_file(const char *path, struct settings *settings, char *error, size_t error_bytes);

/*
 * Reads, as config_read_file does, what CUDAPOOL_CONFIG may be: the name of settings that come
 * along (shipped_json.h), a file's name, or the JSON itself where it begins with a brace. (So
 * `cudapool run --set` needs no file that must outlive the last process of a job.)
 */
int config_read(const char *source, struct settings *settings, char *error, size_t error_bytes);

/*
 * config_read for a person who waits: tells every error that there is, and reads pipes as well, and
 * - as stdin. 0, or -1 with *settings untouched.
 */
int config_read_patiently(const char *source, struct settings *settings,
                          document_complaint *complain, void *context);

/*
 * Sets one setting after another, each as "device.growth_budget=64MiB": what follows the first "="
 * is JSON, or else a string. 0, or -1 with *settings untouched and every error told.
 */
int config_set(const char *const *assignments, size_t count, struct settings *settings,
               document_complaint *complain, void *context);

/* The settings as JSON on one line, in memory that the caller frees; NULL where it is short. */
char *config_to_text(const struct settings *settings);

/* config_read, as libcudapool_config.so exports it to the preload object. */
int cudapool_config_read(const char *source, struct settings *settings, char *error,
                         size_t error_bytes);

#endif
