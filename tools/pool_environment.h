/*
 * What programs need in order to run with the pool: its library in LD_PRELOAD, and settings in the
 * environment; and the options of commands that run programs so.
 */
#ifndef CUDAPOOL_TOOLS_POOL_ENVIRONMENT_H
#define CUDAPOOL_TOOLS_POOL_ENVIRONMENT_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/settings/config.h"

#define PRELOAD_NAME "libcudapool_preload.so"

/* Where the settings are, and what is changed of them. */
struct pool_options {
    const char *config;
    const char **assignments; /* --set; an array of its own */
    size_t assignment_count;
};

/* In a list of getopt_long's, the options that pool_options_take knows. */
#define POOL_OPTIONS                                                                               \
    {"config", required_argument, NULL, 'c'},                                                      \
    {                                                                                              \
        "set", required_argument, NULL, 's'                                                        \
    }

/* Takes what getopt_long has found. False where it is none of POOL_OPTIONS. */
bool pool_options_take(struct pool_options *options, int option, const char *argument);

/* Runs the rest of a command with options that have room for those in argv. Returns its exit
 * status. */
typedef int pool_options_command(int argc, char **argv, struct pool_options *options);
int run_with_pool_options(int argc, char **argv, pool_options_command *command);

/* Puts the preload object into LD_PRELOAD, for this program. 0, or the exit status after a
 * complaint. */
int pool_environment_set_preload(const char *program);

/* Reads the settings, changes them, checks them, and passes them on in the environment. 0, or the
 * exit status after a complaint. */
int pool_environment_set_config(const struct pool_options *options, struct settings *settings);

#endif
