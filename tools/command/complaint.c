/*
 * Error messages on stderr, and write errors of stdout (complaint.h).
 */
#include "complaint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/one_line.h"
#include "sink.h"

int complain(const char *format, ...)
{
    char line[8 * ERROR_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    make_printable(line, sizeof(line));
    fprintf(stderr, "cudapool: %s\n", line);
    return EXIT_BAD_INPUT;
}

void complain_of(const char *line, void *context)
{
    (void)context;
    complain("%s", line);
}

static struct sink standard_output = {.fd = STDOUT_FILENO};

void begin_output(void)
{
    bool wanted = fileno(stdout) == STDOUT_FILENO && isatty(STDOUT_FILENO) == 0;
    FILE *stream = wanted ? sink_open(&standard_output) : NULL;

    if (stream != NULL)
        stdout = stream;
}

int finish_output(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    int error = standard_output.error != 0 ? standard_output.error : errno;
    complain("the output cannot be written: %s", strerror(error));
    return status == 0 ? EXIT_FAILURE : status;
}
