/*
 * What a report says of its process: who it is, on what it ran, and how it ended.
 *
 * Nothing here takes a lock or memory, and what cannot be found out is left empty: also for a
 * process that ends, of which only the calling thread goes on.
 */
#ifndef CUDAPOOL_CORE_REPORT_PROCESS_H
#define CUDAPOOL_CORE_REPORT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a process came to be reported. */
enum report_ending {
    REPORT_EXITED,  /* it said so itself when it ended */
    REPORT_KILLED,  /* it ended without a word: what its figures said then */
    REPORT_RUNNING, /* what its figures said while it was running */
};

/* What became of a process, as whoever waited for it knows. */
struct report_exit {
    bool known;
    int status; /* where no signal ended it */
    int signal; /* 0: none */
};

/* What ran in the process; empty or 0: unknown. */
struct report_versions {
    char cudapool[24];
    char driver[32]; /* the driver's release, "580.159.04" */
    uint32_t cuda;   /* what the driver speaks, 12040 for CUDA 12.4 */
};

struct report_process {
    int64_t pid;
    char host[256];
    char rank[32]; /* empty where no launcher's variable is set */
    char command[4096];
    double wall_seconds;
    uint64_t started_nanoseconds; /* since 1970, when it was started; 0: unknown */
    enum report_ending ending;
    struct report_exit exit;
    struct report_versions versions;
};

/* How the environment is read: getenv, or secure_getenv inside someone else's program. */
typedef char *(*environment_reader)(const char *name);

/* Fills pid, host, rank and command of this process; what cannot be found out is left empty.
 * wall_seconds is the caller's. */
void report_describe_process(struct report_process *process, environment_reader environment);

/* The command line of a process (0: of this one), as /proc has it, with spaces between its
 * arguments; empty where it can't be seen. */
void report_find_command(int64_t pid, char *command, size_t bytes);

/* This cudapool's own version, and the driver's release where the kernel tells it. */
void report_find_versions(struct report_versions *versions);

/* The release out of what /proc/driver/nvidia/version says; empty where there is none. */
void report_driver_release(const char *text, char *release, size_t bytes);

/* "cudapool 0.1.0, driver 580.159.04 (CUDA 13.0), 2026-11-22 11:54:13 UTC", as far as it is known.
 */
#define REPORT_ORIGIN_BYTES 160
void report_describe_origin(const struct report_versions *versions, uint64_t started_nanoseconds,
                            char text[REPORT_ORIGIN_BYTES]);

/* The rank that an MPI launcher, torchrun or Slurm gave this process, in digits; empty where none
 * did. */
void report_find_rank(environment_reader environment, char *rank, size_t bytes);

/* The name that a pattern means for the process (core/base/file_pattern.h). 0, or -1 with errno:
 * EINVAL for another escape, ENAMETOOLONG where it does not fit. */
int report_expand_file_name(const char *name, const struct report_process *process, char *expanded,
                            size_t bytes);

/* How a process ended, in words that follow its name: "killed by SIGSEGV"; empty where there is
 * nothing to say. */
#define REPORT_END_BYTES 80
void report_describe_end(enum report_ending ending, struct report_exit exit,
                         char text[REPORT_END_BYTES]);

#endif
