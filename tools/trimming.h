/*
 * Asking processes on the board (core/board/board.h) to give back what they cache.
 *
 * A process is asked, looked at until it has answered and the GPU is past what it has pending, and
 * let go. One thread; BOARD_DEMANDS processes at a time.
 */
#ifndef CUDAPOOL_TOOLS_TRIMMING_H
#define CUDAPOOL_TOOLS_TRIMMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "top_watch.h"

enum trim_outcome {
    TRIM_UNDER_WAY,   /* it has answered, and gives more as soon as the GPU is past it */
    TRIM_DONE,        /* it has given all, or has nothing */
    TRIM_LITTLE,      /* it keeps so little that nobody there has to answer */
    TRIM_SILENT,      /* it has not answered in time */
    TRIM_STOPPED,     /* nor can it: a signal or a debugger has stopped it */
    TRIM_REFUSED,     /* the board does not ask it, and says why */
    TRIM_NO_ANSWERER, /* nobody listens there, though it keeps much */
    TRIM_ALONE        /* it is not on the board */
};

struct trimming {
    struct process_identity process;
    bool is_elsewhere; /* in another pid namespace, where the number means nothing here */
    char name[64];     /* its command, as far as it fits */
    enum trim_outcome outcome;
    struct board_demand *demand; /* NULL: it is not asked, or not any more */
    uint64_t given, pending;
    uint64_t kept;             /* before it was asked */
    char why[BOARD_WHY_BYTES]; /* of TRIM_REFUSED and TRIM_ALONE */
};

/* Asks a process of the view for what it caches on the device (NULL: on all). Returns at once. */
struct trimming trimming_begin(const struct view *view, const struct watched *watched,
                               const unsigned char *uuid);

/* How far it has come. Waits for the first answer, for BOARD_SILENCE_NANOSECONDS at most. */
void trimming_look(struct trimming *trimming);

/* Asks no more; what it gives later is not counted. May be called again. */
void trimming_end(struct trimming *trimming);

/* Whether it has done, or could do, what it was asked for. */
bool trimming_is_answered(const struct trimming *trimming);

/* "4711 python3 train.py: 12.3 GiB back, 1.0 GiB still in use by the GPU" */
#define TRIMMING_BYTES 256
void trimming_describe(const struct trimming *trimming, char text[TRIMMING_BYTES]);

/* "12.3 GiB back, 1.0 GiB still in use by the GPU" */
void trimming_describe_bytes(uint64_t given, uint64_t pending, char *text, size_t bytes);

#endif
