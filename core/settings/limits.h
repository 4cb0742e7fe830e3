/*
 * What bounds the memory that the process takes: the settings, or else what a scheduler has told
 * its container.
 *
 * Schedulers that share a GPU among containers say in the environment what a container may have of
 * it: CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_MEMORY_LIMIT_<device> where HAMi is at work, in
 * bytes or with one of the letters k, m and g (powers of 1024), unless CUDA_DISABLE_CONTROL is
 * true; GPU_MEMORY_LIMIT where KAI Scheduler is, in bytes. Such a limit is meant for all processes
 * of the container together, so they are a group.
 *
 * Part of both the preload object and the command: libc only. struct limits is filled once, before
 * the pool starts, and only read afterwards.
 */
#ifndef CUDAPOOL_CORE_LIMITS_H
#define CUDAPOOL_CORE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

/* Devices that can have a variable of their own. */
#define LIMITS_DEVICES 64u

/* Of a setting or a variable. */
#define LIMIT_NAME_BYTES 40u

/* What is less is no number of bytes: other programs have variables of these names, too, which
 * count in megabytes or gigabytes. */
#define LIMIT_LEAST (UINT64_C(1) << 20)

/* What the environment says. Bytes; 0: nothing. */
struct limits {
    uint64_t gpu;                    /* GPU_MEMORY_LIMIT */
    uint64_t every;                  /* CUDA_DEVICE_MEMORY_LIMIT */
    uint64_t each[LIMITS_DEVICES];   /* and of one device */
    char group[SETTINGS_NAME_BYTES]; /* of the process, by its settings or else its container's;
                                        empty: none */
};

/* What holds on one device. */
struct device_limits {
    uint64_t device_bytes;              /* of the process; UINT64_MAX: none */
    uint64_t group_bytes;               /* of its group; UINT64_MAX: none */
    char device_from[LIMIT_NAME_BYTES]; /* the setting or variable that says so; empty: none does */
    char group_from[LIMIT_NAME_BYTES];
    char group[SETTINGS_NAME_BYTES]; /* empty: none */
};

/* Is told, once, of a variable that cannot be read. */
typedef void limits_complaint(const char *line);

/* Reads the environment by this function, getenv or secure_getenv; NULL: there are the settings
 * alone. What cannot be read counts as not there. complain may be NULL. */
void limits_read(struct limits *limits, const struct settings *settings,
                 char *(*environment)(const char *name), limits_complaint *complain);

/* The variables that say a limit, numbered from 0: the name, what it says, and the device; -1:
 * every one that has no variable of its own. False after the last one. */
#define LIMITS_VARIABLES (LIMITS_DEVICES + 2)
struct limit_variable {
    char name[LIMIT_NAME_BYTES];
    uint64_t bytes; /* 0: it says nothing */
    int device;
};
bool limits_variable(const struct limits *limits, unsigned number, struct limit_variable *variable);

/* The limits on the device of this ordinal, as the process counts them, with total_bytes. */
void limits_of_device(const struct limits *limits, const struct settings *settings, int ordinal,
                      uint64_t total_bytes, struct device_limits *found);

#endif
