/*
 * What a command says of its command line.
 */
#ifndef CUDAPOOL_TOOLS_COMMAND_LINE_H
#define CUDAPOOL_TOOLS_COMMAND_LINE_H

#include <getopt.h>

/* Complains of an option that getopt_long refused: option is what it returned, ':' where a value is
 * missing, and word what stands on the command line. known: what it was given. allowed: all options
 * as words. Returns EXIT_BAD_INPUT. */
int refuse_option(const char *command, const struct option *known, int option, const char *word,
                  const char *allowed);

#endif
