/*
 * The machine that the process runs on, as far as pinned host memory is concerned: how much memory
 * the process may have, how much of that is left, and which NUMA node a thread runs on.
 *
 * The kernel bounds a process's memory by its control group ("cgroup") and by every ancestor of
 * that; each of them is called a level here. A level's limit is memory.max or memory.high, the
 * lesser, of a cgroup v2, and memory.limit_in_bytes of a cgroup v1. Hybrid machines have both
 * kinds. A container may see neither its cgroup's real path nor the ancestors: then it has one
 * level, the one that its cgroup file system shows as the root. What cannot be read, or is no
 * number, is no limit.
 *
 * All sizes are bytes. The struct belongs to the caller; it holds no memory and no lock, no
 * descriptor but by machine_keep_open, and nobody changes it after that, so that any thread may use
 * it. Nothing here fails, allocates, prints, changes errno or is a cancellation point. The
 * functions that read files need 8 KiB of stack; where the process may open no more files, they
 * find no limit. In a process that has restricted its system calls (sandbox.h) only what is kept
 * open is read.
 */
#ifndef CUDAPOOL_CORE_MACHINE_H
#define CUDAPOOL_CORE_MACHINE_H

#include <stdint.h>

#include "kept_file.h"

enum {
    /* Of a level's path, with its end. A longer path is cut to an ancestor that fits: that level
     * and those above it count, those below it do not. The number of levels has no bound of its
     * own. */
    MACHINE_PATH_BYTES = 1024,
    /* Processors have numbers below this. A machine with more of them counts as one node. */
    MACHINE_PROCESSORS = 4096,
    /* Further nodes share the numbers of the first ones. */
    MACHINE_NODES = 32,
    /* So many files are kept open: those of ten levels or more. */
    MACHINE_KEPT = 64
};

/* The process's place in one hierarchy of cgroups. */
struct machine_cgroup {
    char path[MACHINE_PATH_BYTES]; /* of the deepest level; "" where the process has none */
    uint32_t top;                  /* how much of path is the path of the topmost level */
};

struct machine {
    /* The memory of the machine, or the least limit, whichever is less. 0: neither is known. */
    uint64_t memory_bytes;
    /* How many NUMA nodes have a processor that the process may run on: at least 1, at most
     * MACHINE_NODES, and 1 where that is not known. */
    uint32_t nodes;
    uint8_t node_of[MACHINE_PROCESSORS]; /* < nodes */
    struct machine_cgroup v1, v2;
    char meminfo[MACHINE_PATH_BYTES]; /* path of a file; "": what it says is not known */
    unsigned kept_count;
    struct kept_file kept[MACHINE_KEPT];
};

/* Fills the struct. root is "", or a directory whose proc and sys are read instead of the real
 * ones. Takes a fraction of a millisecond. A process that is moved to another cgroup later, or
 * whose affinity changes, is best served by reading again into another struct. */
void machine_read(struct machine *machine, const char *root);

/* Opens what the functions below read, for a process that may restrict its system calls later. A
 * file that the program closes since, or that comes later, is opened for a moment each time. */
void machine_keep_open(struct machine *machine);

/* Closes what is kept open: in the child of a fork, for one. Async-signal-safe. */
void machine_close(const struct machine *machine);

/* How much more memory the process and those that share its levels may take before the kernel holds
 * them back: the least, over all levels, of limit - usage, where files in the page cache that were
 * not used lately count as unused, since the kernel drops them first. 0 where a level is full;
 * UINT64_MAX where none has a limit. The machine's own memory does not enter.
 *
 * Limits and usage are read anew, so that limits which came or changed since machine_read count.
 * Reads two files for each level and two more for each that has a limit: some ten microseconds a
 * level, for cold paths. */
uint64_t machine_memory_left(const struct machine *machine);

/* How much more memory a process may take before the machine runs short of it, as the kernel
 * estimates that (MemAvailable), and machine_memory_left, whichever is less. UINT64_MAX where
 * neither is known. As quick. */
uint64_t machine_memory_available(const struct machine *machine);

/* What of that is missing if, after so many bytes more, a sixteenth of memory_bytes is to be left
 * to others. 0: nothing. */
uint64_t machine_memory_missing(const struct machine *machine, uint64_t bytes);

/* The number, below machine->nodes, of the node that has this processor. 0 for a processor that is
 * past the table, and on nodes where the process could not run when machine_read looked. */
static inline unsigned machine_node_of(const struct machine *machine, unsigned processor)
{
    return processor < MACHINE_PROCESSORS ? machine->node_of[processor] : 0;
}

/* The same for the processor that the calling thread runs on. */
unsigned machine_node_of_thread(const struct machine *machine);

/* The number, below machine->nodes, of the calling thread's node. The thread may have moved by the
 * time that the caller uses the answer. No call is made where there is one node. */
static inline unsigned machine_node(const struct machine *machine)
{
    return machine->nodes <= 1 ? 0 : machine_node_of_thread(machine);
}

#endif
