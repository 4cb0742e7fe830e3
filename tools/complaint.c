/*
 * What goes wrong, told (complaint.h).
 */
#include "complaint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/one_line.h"

int complain(const char *format, ...)
{
    char line[8 * ERROR_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    replace_control_characters(line);
    fprintf(stderr, "cudapool: %s\n", line);
    return EXIT_BAD_INPUT;
}

void complain_of(const char *line, void *context)
{
    (void)context;
    complain("%s", line);
}

int finish_output(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    complain("the output cannot be written: %s", strerror(errno));
    return status == 0 ? EXIT_FAILURE : status;
}
