/*
 * The subcommands of cudapool. Each is in a file of its own; main is in cudapool.c.
 */
#ifndef CUDAPOOL_TOOLS_TOOL_H
#define CUDAPOOL_TOOLS_TOOL_H

#include "complaint.h"

/* The Makefile defines the version. This default lets tools read the sources without it. */
#ifndef CUDAPOOL_VERSION
#define CUDAPOOL_VERSION "unknown"
#endif

struct command {
    const char *name;
    const char *summary;               /* its line in `cudapool help` */
    const char *help;                  /* the full text of `cudapool NAME --help` */
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand; returns the exit status */
};

extern const struct command check_command;
extern const struct command configs_command;
extern const struct command limit_command;
extern const struct command report_command;
extern const struct command run_command;
extern const struct command top_command;
extern const struct command trim_command;
extern const struct command try_command;

#endif
