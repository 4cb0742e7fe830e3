/*
 * Lines for people about a device: other processes on it, segments, limits, memory that the pool
 * does not serve; and about the housekeeper. A line
 * is left out where there is nothing to say: a program that is alone and has no limit has none.
 *
 * Part of the preload object: libc only, and no memory is taken. No state.
 */
#ifndef CUDAPOOL_CORE_REPORT_NEIGHBOURS_H
#define CUDAPOOL_CORE_REPORT_NEIGHBOURS_H

#include <stdbool.h>

#include "report.h"

#define REPORT_LINE_BYTES 320

/* Writes a device's line of this number, from 0 on. False for a line that has nothing to say. */
#define REPORT_DEVICE_LINES 11u
bool report_device_line(const struct report_device *device, unsigned number,
                        char text[REPORT_LINE_BYTES]);

/* Whether the pool has ever cached so much that other processes may have lacked it. */
bool report_kept_much(const struct report_device *devices, size_t count);

/* Writes a process's line of this number, about what prevented it from sharing memory with other
 * processes. False for a line that has nothing to say. kept_much: of report_kept_much; grouped: of
 * report_is_grouped. */
#define REPORT_PROCESS_LINES 3u
struct report_aloneness {
    const struct report_housekeeper *housekeeper;
    bool enabled; /* neighbours.enabled */
    bool kept_much;
    bool grouped;
};
bool report_process_line(const struct report_aloneness *of, unsigned number,
                         char text[REPORT_LINE_BYTES]);

/* Whether a group's limit is in force on one of the devices. */
bool report_is_grouped(const struct report_device *devices, size_t count);

#endif
