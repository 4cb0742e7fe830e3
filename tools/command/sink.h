/*
 * Streams that remember why writing failed. stdio reports the error only in the call that writes
 * the buffer, which may be any call.
 */
#ifndef CUDAPOOL_TOOLS_SINK_H
#define CUDAPOOL_TOOLS_SINK_H

#include <stdio.h>

struct sink {
    int fd;
    int error; /* errno of the first write that failed; 0: none has failed */
};

/* Returns a stream that writes to sink->fd, or NULL if memory is short. Closing the stream leaves
 * sink->fd open. */
FILE *sink_open(struct sink *sink);

#endif
