/*
 * Reading a settings file. Needs jansson: part of libcudapool_config.so and of the command.
 *
 * The reader belongs to the calling thread; no lock, no state.
 */
#ifndef CUDAPOOL_CORE_CONFIG_JSON_H
#define CUDAPOOL_CORE_CONFIG_JSON_H

#include <stddef.h>

#include "config.h"

/* Longer files are an error. */
#define SETTINGS_FILE_MAX (1024 * 1024)

/*
 * Fills *settings with the defaults and what the file says. 0, or -1 with *settings untouched and
 * one line in error (cut off after error_bytes): the file, the place in it, what was found and
 * what is allowed.
 */
int config_read_file(const char *path, struct settings *settings, char *error, size_t error_bytes);

/* The same, as libcudapool_config.so exports it to the preload object. */
int cudapool_config_read(const char *path, struct settings *settings, char *error,
                         size_t error_bytes);

#endif
