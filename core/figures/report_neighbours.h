/*
 * What a report says of other processes on a device, of limits, and of the pool's own thread: lines
 * for people, where there is something to say. A program that is alone and has no limit has none.
 *
 * Part of the preload object: libc only, and no memory is taken. No state.
 */
#ifndef CUDAPOOL_CORE_REPORT_NEIGHBOURS_H
#define CUDAPOOL_CORE_REPORT_NEIGHBOURS_H

#include <stdbool.h>

#include "report.h"

#define REPORT_LINE_BYTES 320

/* Lines of a device, numbered from 0; those that say nothing are left out. False for one of these.
 */
#define REPORT_DEVICE_LINES 7u
bool report_device_line(const struct report_device *device, unsigned number,
                        char text[REPORT_LINE_BYTES]);

/* Whether the pool has kept so much that other processes may have missed it. */
bool report_kept_much(const struct report_device *devices, size_t count);

/* Of a process, likewise: what has kept it from its neighbours. kept_much: as above; grouped:
 * whether a group's limit is in force. */
#define REPORT_PROCESS_LINES 3u
struct report_aloneness {
    const struct report_housekeeper *housekeeper;
    bool enabled; /* neighbours.enabled */
    bool kept_much;
    bool grouped;
};
bool report_process_line(const struct report_aloneness *of, unsigned number,
                         char text[REPORT_LINE_BYTES]);

/* Whether a limit of a group holds on one of the devices. */
bool report_is_grouped(const struct report_device *devices, size_t count);

#endif
