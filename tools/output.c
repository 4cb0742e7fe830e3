/*
 * Where the output of a command goes (output.h).
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "complaint.h"

static int complain_of_path(const char *path)
{
    complain("%s: cannot be written: %s", path, strerror(errno));
    return EXIT_FAILURE;
}

/* What a rename would replace, and should not. */
static bool is_written_directly(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

static int open_directly(struct output *output)
{
    output->out = fopen(output->path, "we");
    return output->out != NULL ? 0 : complain_of_path(output->path);
}

/* A new file beside it. */
static int open_beside(struct output *output)
{
    int fd = -1;

    if (asprintf(&output->name, "%s.%ld.tmp", output->path, (long)getpid()) < 0)
        output->name = NULL;
    else
        fd = open(output->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    output->out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (output->out != NULL)
        return 0;
    int status = complain_of_path(output->path);
    if (fd >= 0)
        close(fd);
    free(output->name);
    return status;
}

int output_open(struct output *output, const char *path)
{
    *output = (struct output){.path = path};
    if (path == NULL || strcmp(path, "-") == 0) {
        output->path = NULL;
        output->out = stdout;
        return 0;
    }
    return is_written_directly(path) ? open_directly(output) : open_beside(output);
}

int output_close(struct output *output, int status)
{
    if (output->path == NULL)
        return finish_output(status);
    bool failed = ferror(output->out) != 0;
    failed |= fclose(output->out) != 0;
    if (!failed && status == 0 && output->name != NULL)
        failed = rename(output->name, output->path) != 0;
    if (failed)
        complain_of_path(output->path);
    if (output->name != NULL && (failed || status != 0))
        unlink(output->name);
    free(output->name);
    return status == 0 && failed ? EXIT_FAILURE : status;
}
