/*
 * Reads settings: from a file, from text, or one by one. Needs jansson: part of
 * libcudapool_config.so and of the command.
 *
 * The reader belongs to the calling thread; no lock, no state.
 */
#ifndef CUDAPOOL_CORE_CONFIG_JSON_H
#define CUDAPOOL_CORE_CONFIG_JSON_H

#include <stddef.h>

#include "config.h"
#include "document_json.h"

/* Bytes; longer files are an error. */
#define SETTINGS_FILE_MAX (1024 * 1024)

/* Fills *settings with the defaults and what the file says. 0, or -1 with *settings untouched and
 * one line in error, cut off after error_bytes. The line says the file, the place in it, what was
 * found and what is allowed. Where the answer is 0, error is untouched, or names a setting that has
 * no effect any more. */
int config_read_file(const char *path, struct settings *settings, char *error, size_t error_bytes);

/* Reads a value of CUDAPOOL_CONFIG, as config_read_file reads a file. The value is the name of
 * shipped settings (shipped_json.h), a file's name, or JSON if it begins with a brace. The last
 * form lets `cudapool run --set` work without a file that must outlive the last process of a
 * job. */
int config_read(const char *source, struct settings *settings, char *error, size_t error_bytes);

/* As config_read, for a person who waits: reports every error instead of the first, and each
 * setting that has no effect any more, and also reads pipes, and stdin for "-". 0, or -1 with
 * *settings untouched. */
int config_read_patiently(const char *source, struct settings *settings,
                          document_complaint *complain, void *context);

/* Sets settings one after another from assignments such as "device.growth_budget=64MiB". The text
 * after the first "=" is JSON, or else a string. 0, or -1 with *settings untouched and every error
 * reported. */
int config_set(const char *const *assignments, size_t count, struct settings *settings,
               document_complaint *complain, void *context);

/* The settings as JSON on one line, which the caller frees; NULL where memory is short. */
char *config_to_text(const struct settings *settings);

/* As config_read, exported by libcudapool_config.so to the preload object. */
int cudapool_config_read(const char *source, struct settings *settings, char *error,
                         size_t error_bytes);

#endif
