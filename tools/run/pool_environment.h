/*
 * Prepares the environment of programs that run with the pool: the preload object in LD_PRELOAD,
 * and the settings in CUDAPOOL_CONFIG. Also the options of commands that run programs with the
 * pool.
 */
#ifndef CUDAPOOL_TOOLS_POOL_ENVIRONMENT_H
#define CUDAPOOL_TOOLS_POOL_ENVIRONMENT_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/settings/config.h"

#define PRELOAD_NAME "libcudapool_preload.so"

/* Where the settings are, and the changes to them. */
struct pool_options {
    const char *config;
    const char **assignments; /* of --set; an array of its own */
    size_t assignment_count;
};

/* The options that pool_options_take knows, for a list of getopt_long's. */
#define POOL_OPTIONS                                                                               \
    {"config", required_argument, NULL, 'c'},                                                      \
    {                                                                                              \
        "set", required_argument, NULL, 's'                                                        \
    }

/* Takes an option that getopt_long found. False if it is none of POOL_OPTIONS. */
bool pool_options_take(struct pool_options *options, int option, const char *argument);

/* Runs the rest of a command. options has room for as many assignments as argv has words. Returns
 * the exit status. */
typedef int pool_options_command(int argc, char **argv, struct pool_options *options);
int run_with_pool_options(int argc, char **argv, pool_options_command *command);

/* Puts the preload object into LD_PRELOAD, in the order that this program needs (sanitizer.h).
 * Returns 0, or the exit status after a complaint. */
int pool_environment_set_preload(const char *program);

/* Reads the settings, changes them as options say, checks them, and passes them on in the
 * environment. Returns 0, or the exit status after a complaint. */
int pool_environment_set_config(const struct pool_options *options, struct settings *settings);

#endif
