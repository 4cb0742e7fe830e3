/*
 * Complaints about a command line, for all subcommands that take options.
 */
#ifndef CUDAPOOL_TOOLS_COMMAND_LINE_H
#define CUDAPOOL_TOOLS_COMMAND_LINE_H

#include <getopt.h>

/* Complains of an option that getopt_long refused, and suggests the nearest known one. known: the
 * options given to getopt_long. option: what getopt_long returned; ':' if a value is missing. word:
 * what stands on the command line. allowed: all options, in words. Returns EXIT_BAD_INPUT. */
int refuse_option(const char *command, const struct option *known, int option, const char *word,
                  const char *allowed);

/* Reads a whole number from least, which is not negative, to most. Returns 0, or EXIT_BAD_INPUT
 * after a complaint that names the command and what the number is. */
int read_number(const char *command, const char *name, const char *text, long long least,
                long long most, long long *number);

#endif
