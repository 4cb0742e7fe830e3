/*
 * Streams that remember the first write error (sink.h).
 */
#include "sink.h"

#include <errno.h>
#include <unistd.h>

static ssize_t write_to_sink(void *cookie, const char *text, size_t bytes)
{
    struct sink *sink = cookie;
    size_t done = 0;

    while (done < bytes && sink->error == 0) {
        ssize_t written = write(sink->fd, text + done, bytes - done);
        if (written >= 0)
            done += (size_t)written;
        else if (errno != EINTR)
            sink->error = errno;
    }
    return (ssize_t)done;
}

FILE *sink_open(struct sink *sink)
{
    static const cookie_io_functions_t functions = {.write = write_to_sink};

    sink->error = 0;
    return fopencookie(sink, "w", functions);
}
