/*
 * States of the housekeeper and of the board. The counting code (stats.h) stores them, and the
 * reporting code (report.h) reads them.
 */
#ifndef CUDAPOOL_CORE_STATES_H
#define CUDAPOOL_CORE_STATES_H

enum housekeeper_state {
    HOUSEKEEPER_NEVER,  /* never started: it had nothing to do */
    HOUSEKEEPER_RUNS,   /* its thread is running */
    HOUSEKEEPER_WENT,   /* its thread ended when nothing was cached any more */
    HOUSEKEEPER_OFF,    /* switched off by the settings */
    HOUSEKEEPER_CANNOT, /* its thread could not be created */
    HOUSEKEEPER_STATES
};

enum board_state {
    BOARD_NOT_TRIED, /* no device is known yet, or the settings want no board */
    BOARD_JOINED,
    BOARD_REFUSED, /* could not be joined; see board_why */
    BOARD_STATES
};

#define BOARD_WHY_BYTES 96u

/* Memory of a device that the program takes by calls which the pool does not serve: physical memory
 * (cuMemCreate), arrays, managed memory, and what the driver has reserved for graphs. The last kind
 * is memory of other processes and APIs that the program has opened. It is in no sum of the others,
 * and no limit counts it. */
enum unpooled_kind {
    UNPOOLED_PHYSICAL,
    UNPOOLED_ARRAYS,
    UNPOOLED_MANAGED,
    UNPOOLED_GRAPHS,
    UNPOOLED_OPENED,
    UNPOOLED_KINDS
};

#endif
