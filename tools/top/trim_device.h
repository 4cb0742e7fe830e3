/*
 * Finds the device that `cudapool trim --device` names, among the devices of the processes that use
 * the pool.
 */
#ifndef CUDAPOOL_TOOLS_TRIM_DEVICE_H
#define CUDAPOOL_TOOLS_TRIM_DEVICE_H

#include <stdbool.h>

#include "top_watch.h"

/* All devices, if zeroed. */
struct trim_device {
    bool is_one;
    unsigned char uuid[16];
    char text[REPORT_UUID_BYTES]; /* the UUID as text */
};

/* Checks that the text can name a device. Returns 0, or the exit status after a complaint. */
int trim_device_check(const char *text);

/* Finds the device that a number, as processes count devices, or the beginning of a UUID names.
 * Returns 0, or the exit status after a complaint if no device or several devices match. */
int trim_device_find(const char *text, const struct view *view, struct trim_device *device);

/* Returns the UUID for board_trim, or NULL for all devices. */
const unsigned char *trim_device_uuid(const struct trim_device *device);

/* Returns whether the process has memory on the device. */
bool trim_device_is_of(const struct trim_device *device, const struct watched *watched);

#endif
