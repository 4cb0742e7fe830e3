/*
 * The output of a command (output.h).
 */
#include "output.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "complaint.h"
#include "core/figures/report_file_json.h"

static int complain_of_path(const char *path, int error)
{
    return complain("%s: cannot be written: %s", path, strerror(error));
}

int output_open(struct output *output, const char *path)
{
    *output = (struct output){.path = path, .sink = {.fd = -1}};
    if (path == NULL || strcmp(path, "-") == 0) {
        output->path = NULL;
        output->out = stdout;
        return 0;
    }
    if (report_file_check(path) != 0)
        return complain_of_path(path, errno);
    if (report_file_is_direct(path)) {
        output->sink.fd = report_file_open_direct(path, true);
        output->out = output->sink.fd < 0 ? NULL : sink_open(&output->sink);
    } else {
        output->out = open_memstream(&output->text, &output->bytes);
    }
    return output->out != NULL ? 0 : complain_of_path(path, errno);
}

/* Closes a sink. Returns 0, or the number of the first error. */
static int close_sink(struct output *output)
{
    fclose(output->out);
    int error = output->sink.error;
    if (close(output->sink.fd) != 0 && error == 0)
        error = errno;
    return error;
}

/* Writes the regular file, if status is 0. Returns 0, or the number of the error. */
static int write_file(struct output *output, int status)
{
    int error = 0;

    if (ferror(output->out) || fclose(output->out) != 0)
        error = ENOMEM;
    else if (status == 0 &&
             report_file_write(output->path, output->text, output->bytes, UINT64_MAX) != 0)
        error = errno;
    free(output->text);
    return error;
}

int output_close(struct output *output, int status)
{
    if (output->path == NULL)
        return finish_output(status);
    int error = output->sink.fd >= 0 ? close_sink(output) : write_file(output, status);
    if (error != 0)
        complain_of_path(output->path, error);
    return status == 0 && error != 0 ? EXIT_FAILURE : status;
}
