/*
 * The process in a report: its identity, the versions that it ran on, and how it ended.
 *
 * Nothing here takes a lock or allocates memory, and what cannot be found out is left empty. A
 * process that is ending may therefore call it, when only the calling thread still runs.
 */
#ifndef CUDAPOOL_CORE_REPORT_PROCESS_H
#define CUDAPOOL_CORE_REPORT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The state of a process when its report was made. */
enum report_ending {
    REPORT_EXITED,  /* it ended by itself and wrote its report */
    REPORT_KILLED,  /* it ended without a report (a kill, _exit): its last figures */
    REPORT_RUNNING, /* its figures while it was running */
};

/* How a process ended, as its parent learned from waiting. */
struct report_exit {
    bool known;
    int status; /* exit status, where no signal ended it */
    int signal; /* 0: none */
};

/* Versions of the software in the process; empty or 0: unknown. */
struct report_versions {
    char cudapool[24];
    char driver[32]; /* the driver's release, "580.159.04" */
    uint32_t cuda;   /* the CUDA version that the driver supports: 12040 for CUDA 12.4 */
};

struct report_process {
    int64_t pid;
    char host[256];
    char rank[32]; /* empty where no launcher's variable is set */
    char command[4096];
    double wall_seconds;
    uint64_t started_nanoseconds; /* its start, since 1970; 0: unknown */
    enum report_ending ending;
    struct report_exit exit;
    struct report_versions versions;
};

/* Reads the environment: getenv, or secure_getenv inside another program. */
typedef char *(*environment_reader)(const char *name);

/* Fills pid, host, rank and command of this process; what cannot be found out is left empty. The
 * caller fills wall_seconds. */
void report_describe_process(struct report_process *process, environment_reader environment);

/* The command line of a process (0: of this one) from /proc, with spaces between its arguments.
 * Empty where it cannot be read. */
void report_find_command(int64_t pid, char *command, size_t bytes);

/* This cudapool's own version, and the driver's release where the kernel tells it. */
void report_find_versions(struct report_versions *versions);

/* Finds the driver's release in the text of /proc/driver/nvidia/version; empty where there is
 * none. */
void report_driver_release(const char *text, char *release, size_t bytes);

/* Writes "cudapool 0.1.0, driver 580.159.04 (CUDA 13.0), 2026-11-22 11:54:13 UTC", without what is
 * unknown. */
#define REPORT_ORIGIN_BYTES 160
void report_describe_origin(const struct report_versions *versions, uint64_t started_nanoseconds,
                            char text[REPORT_ORIGIN_BYTES]);

/* The rank, in digits, that an MPI launcher, torchrun or Slurm gave this process. Empty where none
 * did. */
void report_find_rank(environment_reader environment, char *rank, size_t bytes);

/* Expands a file name's pattern for the process (core/base/file_pattern.h). 0, or -1 with errno:
 * EINVAL for an unknown escape, ENAMETOOLONG where the name does not fit. */
int report_expand_file_name(const char *name, const struct report_process *process, char *expanded,
                            size_t bytes);

/* How a process ended, in words that follow its name, such as "killed by SIGSEGV". Empty where
 * there is nothing to say. */
#define REPORT_END_BYTES 80
void report_describe_end(enum report_ending ending, struct report_exit exit,
                         char text[REPORT_END_BYTES]);

#endif
