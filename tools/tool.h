/*
 * What the files of the command share. One subcommand to a file; main is in cudapool.c.
 */
#ifndef CUDAPOOL_TOOLS_TOOL_H
#define CUDAPOOL_TOOLS_TOOL_H

/* The Makefile says what these are; whoever reads the sources without it shall get through. */
#ifndef CUDAPOOL_VERSION
#define CUDAPOOL_VERSION "unknown"
#endif
#ifndef CUDAPOOL_LIBDIR
#define CUDAPOOL_LIBDIR "/usr/local/lib"
#endif

/* Exit statuses: the input is wrong; a program cannot be run; a program cannot be found. */
#define EXIT_BAD_INPUT  2
#define EXIT_CANNOT_RUN 126
#define EXIT_NOT_FOUND  127

/* Room for one error line. */
#define ERROR_BYTES 1024

struct command {
    const char *name;
    const char *summary;               /* one line of `cudapool help` */
    const char *help;                  /* all of `cudapool NAME --help` */
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand; returns the exit status */
};

extern const struct command check_command;
extern const struct command configs_command;
extern const struct command report_command;
extern const struct command run_command;
extern const struct command top_command;
extern const struct command try_command;

/* Prints "cudapool: " and the message, as one line, on stderr. Returns EXIT_BAD_INPUT. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for a line that another module has made, as a document_complaint. */
void complain_of(const char *line, void *context);

/* Closes what was printed on stdout. The exit status: the given one, or that of a failed write. */
int finish_output(int status);

#endif
