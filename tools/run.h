/*
 * What `cudapool run` prepares for a program, for other commands that run programs with the pool.
 */
#ifndef CUDAPOOL_TOOLS_RUN_H
#define CUDAPOOL_TOOLS_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/settings/config.h"

struct run_options {
    const char *config;
    const char *report;
    bool all;                 /* of the table */
    const char **assignments; /* --set; an array of its own */
    size_t assignment_count;
};

/* Puts the preload object into LD_PRELOAD, for this program. 0, or the exit status after a
 * complaint. */
int run_set_preload(const char *program);

/* Reads the settings, changes them, checks them, and passes them on in the environment. 0, or the
 * exit status after a complaint. */
int run_set_config(const struct run_options *options, struct settings *settings);

#endif
