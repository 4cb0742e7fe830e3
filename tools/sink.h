/*
 * Streams that remember why writing failed: stdio tells it only to whoever made the call in which
 * the buffer was written.
 */
#ifndef CUDAPOOL_TOOLS_SINK_H
#define CUDAPOOL_TOOLS_SINK_H

#include <stdio.h>

struct sink {
    int fd;
    int error; /* of the first write that failed; 0: none has */
};

/* A stream to sink->fd, which stays open when the stream is closed. NULL where memory is short. */
FILE *sink_open(struct sink *sink);

#endif
