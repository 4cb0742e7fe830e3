/*
 * Reads what the pool must know of the machine to cache host memory. This is how much memory the
 * process may have, how much of that memory is left, and which NUMA node a thread runs on.
 *
 * The kernel bounds a process's memory by its control group ("cgroup") and by every ancestor of
 * that group. Each of these groups is called a level here. The limit of a cgroup v2 level is the
 * lesser of memory.max and memory.high. The limit of a cgroup v1 level is memory.limit_in_bytes. A
 * hybrid machine has levels of both versions. A process in a container may see neither its cgroup's
 * real path nor the ancestors. It then has one level: the root of the cgroup file system that it
 * sees. A limit that cannot be read, or is no number, counts as no limit.
 *
 * All sizes are bytes. The caller owns struct machine. The struct holds no memory and no lock, and
 * holds descriptors only after machine_keep_open. Only machine_read and machine_keep_open change
 * the struct, so any thread may use it afterwards.
 *
 * Nothing here fails, allocates, prints, changes errno or is a cancellation point.
 *
 * The functions that read files need 8 KiB of stack. If the process may open no more files, or has
 * restricted its system calls (sandbox.h), these functions read only files that are held open.
 */
#ifndef CUDAPOOL_CORE_MACHINE_H
#define CUDAPOOL_CORE_MACHINE_H

#include <stdint.h>

#include "kept_file.h"

enum {
    /* The size of a level's path, including the zero byte at its end. A longer path is cut to the
     * deepest ancestor that fits, and the levels below that ancestor do not count. Nothing else
     * bounds the number of levels. */
    MACHINE_PATH_BYTES = 1024,
    /* The length of node_of. A machine with more processors counts as one node. */
    MACHINE_PROCESSORS = 4096,
    /* Nodes have numbers below this. Further nodes share the numbers of the first ones. */
    MACHINE_NODES = 32,
    /* At most this many files are held open, which is enough for 15 levels. */
    MACHINE_KEPT = 64
};

/* The process's place in one hierarchy of cgroups. */
struct machine_cgroup {
    char path[MACHINE_PATH_BYTES]; /* of the deepest level; "": there is no level */
    uint32_t top;                  /* path's first top bytes are the path of the topmost level */
};

struct machine {
    /* min(the machine's memory, the least limit of all levels). 0: neither is known. */
    uint64_t memory_bytes;
    /* The number of NUMA nodes with a processor that the process may run on: from 1 to
     * MACHINE_NODES, and 1 if it is not known. */
    uint32_t nodes;
    uint8_t node_of[MACHINE_PROCESSORS]; /* the node of each processor; < nodes */
    struct machine_cgroup v1, v2;
    char meminfo[MACHINE_PATH_BYTES]; /* the path of /proc/meminfo, below root */
    unsigned kept_count;
    struct kept_file kept[MACHINE_KEPT];
};

/* Fills the struct. root is "", or a directory whose proc and sys are read instead of the real
 * ones. Takes a fraction of a millisecond. The struct stays as it is when the process moves to
 * another cgroup or its affinity changes. Fill another struct then. */
void machine_read(struct machine *machine, const char *root);

/* Opens the files that machine_memory_left and machine_memory_available read, since the process may
 * restrict its system calls later. To be called once, after machine_read. If the program closes
 * such a file, or a file appears later, each read opens it. */
void machine_keep_open(struct machine *machine);

/* Closes the files that are held open, for example in the child of a fork. The struct keeps their
 * numbers, and each later read opens its file. Async-signal-safe. */
void machine_close(const struct machine *machine);

/* Returns min(limit - usage) over all levels: how much more memory the processes of these levels
 * may take before a level is full. Files in the page cache that were not used lately count as
 * unused, since the kernel drops them first. 0: a level is full. UINT64_MAX: no level has a limit.
 * The machine's own memory is not considered.
 *
 * Limits and usage are read anew, so limits that appeared or changed since machine_read count.
 * Reads two files for each level, and up to two more where the level has a limit. This takes some
 * ten microseconds a level, so call it on cold paths only. */
uint64_t machine_memory_left(const struct machine *machine);

/* Returns min(MemAvailable, machine_memory_left). MemAvailable is the kernel's estimate of how much
 * memory processes may still take. UINT64_MAX: that estimate is not known, and no level has a
 * limit. Takes about as long as machine_memory_left. */
uint64_t machine_memory_available(const struct machine *machine);

/* Returns max(0, bytes + memory_bytes / 16 - machine_memory_available). This much is missing if the
 * process is to take bytes and to leave a sixteenth of memory_bytes to others. */
uint64_t machine_memory_missing(const struct machine *machine, uint64_t bytes);

/* Returns the number of the processor's node, which is below machine->nodes. Returns 0 for a
 * processor past the table. Also returns 0 if the process could not run on that node during
 * machine_read. */
static inline unsigned machine_node_of(const struct machine *machine, unsigned processor)
{
    return processor < MACHINE_PROCESSORS ? machine->node_of[processor] : 0;
}

/* Returns machine_node_of for the processor that the calling thread runs on; 0 if it is not
 * known. */
unsigned machine_node_of_thread(const struct machine *machine);

/* Returns the number of the calling thread's node, which is below machine->nodes. The thread may
 * have moved to another node before the caller uses the answer. With one node it calls nothing. */
static inline unsigned machine_node(const struct machine *machine)
{
    return machine->nodes <= 1 ? 0 : machine_node_of_thread(machine);
}

#endif
