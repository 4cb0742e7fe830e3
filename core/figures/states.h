/*
 * How the pool's own thread is, and the board of the user's processes: between whoever counts
 * (stats.h) and whoever reports (report.h).
 */
#ifndef CUDAPOOL_CORE_STATES_H
#define CUDAPOOL_CORE_STATES_H

enum housekeeper_state {
    HOUSEKEEPER_NEVER,  /* there was nothing for it to do */
    HOUSEKEEPER_RUNS,   /* its thread is there */
    HOUSEKEEPER_WENT,   /* it was there until nothing was cached any more */
    HOUSEKEEPER_OFF,    /* the settings want none */
    HOUSEKEEPER_CANNOT, /* no thread could be made */
    HOUSEKEEPER_STATES
};

enum board_state {
    BOARD_NOT_TRIED, /* no device is known yet, or the settings want no board */
    BOARD_JOINED,
    BOARD_REFUSED, /* see board_why */
    BOARD_STATES
};

#define BOARD_WHY_BYTES 96u

#endif
