/*
 * The limits of the memory that the process takes: from the settings, or else from a scheduler by
 * way of the container's environment.
 *
 * Schedulers that share a GPU among containers announce a container's share in the environment.
 * HAMi sets CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_MEMORY_LIMIT_<device>, in bytes or with one of
 * the letters k, m and g (powers of 1024). They count unless CUDA_DISABLE_CONTROL is true. KAI
 * Scheduler sets GPU_MEMORY_LIMIT, in bytes. Such a limit holds for all processes of the container
 * together, so they form a group.
 *
 * Part of both the preload object and the command: libc only. struct limits is filled once, before
 * the pool starts, and only read afterwards.
 */
#ifndef CUDAPOOL_CORE_LIMITS_H
#define CUDAPOOL_CORE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

/* The number of devices that can have a variable of their own. */
#define LIMITS_DEVICES 64u

/* Room for the name of a setting or a variable. */
#define LIMIT_NAME_BYTES 40u

/* A smaller value is not taken as bytes. Other programs use variables of these names, too, in
 * megabytes or gigabytes. */
#define LIMIT_LEAST (UINT64_C(1) << 20)

/* The variables by number: GPU_MEMORY_LIMIT, CUDA_DEVICE_MEMORY_LIMIT, and from LIMITS_OF_EACH on
 * CUDA_DEVICE_MEMORY_LIMIT_<device>. */
enum { LIMITS_GPU, LIMITS_EVERY, LIMITS_OF_EACH };
#define LIMITS_VARIABLES (LIMITS_OF_EACH + LIMITS_DEVICES)

/* The limits in the environment. */
struct limits {
    uint64_t bytes[LIMITS_VARIABLES]; /* 0: none */
    char group[SETTINGS_NAME_BYTES];  /* the process's group, from the settings or else for the
                                         container; empty: none */
};

/* The limits in force on one device. */
struct device_limits {
    uint64_t device_bytes;              /* for the process; UINT64_MAX: none */
    uint64_t group_bytes;               /* for its group; UINT64_MAX: none */
    char device_from[LIMIT_NAME_BYTES]; /* the setting or variable that sets it; empty: none */
    char group_from[LIMIT_NAME_BYTES];
    char group[SETTINGS_NAME_BYTES]; /* empty: none */
};

/* Receives an error about a variable that cannot be read, at most once. */
typedef void limits_complaint(const char *line);

/* Reads the environment with the function environment: getenv, secure_getenv, or NULL to use the
 * settings alone. A variable that cannot be read counts as unset. complain may be NULL. */
void limits_read(struct limits *limits, const struct settings *settings,
                 char *(*environment)(const char *name), limits_complaint *complain);

/* Writes the limit variable of this number, from 0 on: its name, its value, and its device. Device
 * -1 means every device that has no variable of its own. False after the last variable. */
struct limit_variable {
    char name[LIMIT_NAME_BYTES];
    uint64_t bytes; /* 0: it sets no limit */
    int device;
};
bool limits_variable(const struct limits *limits, unsigned number, struct limit_variable *variable);

/* The limits on a device of total_bytes. ordinal: the device's number in the process. */
void limits_of_device(const struct limits *limits, const struct settings *settings, int ordinal,
                      uint64_t total_bytes, struct device_limits *found);

/* The total memory that the program is told of a device of total_bytes. Programs take a share of
 * it, so it is a limit that is in force there, as the setting limits.tell_total says. */
uint64_t limits_told_total(const struct device_limits *limits, enum tell_total tell,
                           uint64_t total_bytes);

#endif
