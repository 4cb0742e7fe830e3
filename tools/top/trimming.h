/*
 * Asks processes on the board (core/board/board.h) to release their cached memory to the driver.
 *
 * A demand asks one process. It stays active until the process has answered and the GPU work on its
 * pending memory has completed. Only one thread calls these functions. It asks at most
 * BOARD_DEMANDS processes at a time.
 */
#ifndef CUDAPOOL_TOOLS_TRIMMING_H
#define CUDAPOOL_TOOLS_TRIMMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "top_watch.h"

enum trim_outcome {
    TRIM_UNDER_WAY,   /* it was asked, and its pending memory waits for GPU work */
    TRIM_DONE,        /* it has released all that it cached, or cached nothing */
    TRIM_LITTLE,      /* it has no housekeeper, and caches at most HOUSEKEEPER_BYTES */
    TRIM_SILENT,      /* it has not answered in time */
    TRIM_STOPPED,     /* it cannot answer: a signal or a debugger has stopped it */
    TRIM_REFUSED,     /* the board does not ask it; the member why holds the reason */
    TRIM_NO_ANSWERER, /* it has no housekeeper, but caches more than HOUSEKEEPER_BYTES */
    TRIM_ALONE        /* it is not on the board */
};

struct trimming {
    struct process_identity process;
    bool is_elsewhere; /* in another pid namespace, so its pid has no meaning here */
    char name[64];     /* its command, cut to fit */
    enum trim_outcome outcome;
    struct board_demand *demand; /* NULL: not asked, or no longer asked */
    uint64_t given, pending;
    uint64_t kept;             /* bytes that it cached before it was asked */
    char why[BOARD_WHY_BYTES]; /* the reason of TRIM_REFUSED and TRIM_ALONE */
};

/* Asks a process of the view to release what it caches on the device with this uuid; NULL: on all
 * devices. Does not wait for an answer. */
struct trimming trimming_begin(const struct view *view, const struct watched *watched,
                               const unsigned char *uuid);

/* Updates the outcome and the bytes. The first call waits for the answer, for
 * BOARD_SILENCE_NANOSECONDS at most. */
void trimming_look(struct trimming *trimming);

/* Ends the demand. Memory that the process releases later is not counted. May be called again. */
void trimming_end(struct trimming *trimming);

/* Returns true for TRIM_UNDER_WAY, TRIM_DONE and TRIM_LITTLE: the process does what it was asked
 * for, or has too little to be asked. */
bool trimming_is_answered(const struct trimming *trimming);

/* Writes the command without its directory, with as many of its arguments as fit. */
void trimming_name(const char *command, char *name, size_t bytes);

/* Returns why a process that has figures is not on the board. */
const char *trimming_why_alone(const struct report *report);

/* Writes, for example, "4711 python3 train.py: 12.3 GiB back, 1.0 GiB still in use by the GPU". */
#define TRIMMING_BYTES 256
void trimming_describe(const struct trimming *trimming, char text[TRIMMING_BYTES]);

/* Writes, for example, "12.3 GiB back, 1.0 GiB still in use by the GPU". */
void trimming_describe_bytes(uint64_t given, uint64_t pending, char *text, size_t bytes);

#endif
