/*
 * The device that `cudapool trim --device` means, among those of the processes that are on the
 * pool.
 */
#ifndef CUDAPOOL_TOOLS_TRIM_DEVICE_H
#define CUDAPOOL_TOOLS_TRIM_DEVICE_H

#include <stdbool.h>

#include "top_watch.h"

/* Zeroed: all devices. */
struct trim_device {
    bool is_one;
    unsigned char uuid[16];
    char text[REPORT_UUID_BYTES]; /* the same */
};

/* 0, or the exit status after a complaint of text that names no device anywhere. */
int trim_device_check(const char *text);

/* The one that a number, as processes count it, or the beginning of a UUID means. 0, or the exit
 * status after a complaint: there is none, or there are several. */
int trim_device_find(const char *text, const struct view *view, struct trim_device *device);

/* What board_trim takes: NULL for all. */
const unsigned char *trim_device_uuid(const struct trim_device *device);

/* Whether the process has memory there. */
bool trim_device_is_of(const struct trim_device *device, const struct watched *watched);

#endif
