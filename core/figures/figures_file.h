/*
 * The file that a process's figures are mapped from: where it is made, by what name, and when it
 * goes.
 *
 * It is made when the pool first serves a context, in the directory that the settings name, or else
 * in cudapool-UID (0700) below the first of $XDG_RUNTIME_DIR, /dev/shm, $TMPDIR and /tmp that is a
 * file system in memory with plenty of room. Not elsewhere unless asked to: on a disk the kernel
 * makes the program wait while it writes a page that is being counted in, and on a file system that
 * copies what is overwritten, or on a network, a full disk or a lost server would mean SIGBUS. For
 * the same reason its blocks are reserved before they are mapped, and what a file may cost is
 * looked at first: a limit on file sizes sends signals.
 *
 * The file is new (O_EXCL), 0600, and of a name that holds pid, start time and pid namespace:
 * processes do not mix, in containers that share a directory neither. No descriptor stays open. Who
 * made it removes it; a child of a fork does not touch it. What processes that were killed have
 * left behind in such a directory goes when there is too much of it, the oldest first.
 *
 * Whether a process lives cannot be seen by its number from another pid namespace, but by its file:
 * as long as the process is there, the file is mapped for writing, and a file that anybody has open
 * or mapped for writing cannot have a read lease (fcntl(2)). So whoever wants to know asks for one,
 * and gives it back. Nothing has to be locked for that, no descriptor has to be kept (which the
 * program might close, or hand to its children), and it holds for files of earlier versions. A
 * child of a fork gives up the mapping (figures_forget). Asked for where it is sure to be right: on
 * tmpfs; an overlay looks at another inode than the one that is mapped, and a network at one
 * machine alone.
 *
 * Part of the preload object. Called with the figures lock held; or at exit, where nothing may wait
 * for a lock: what is read then was written before the arena's header was published.
 */
#ifndef CUDAPOOL_CORE_FIGURES_FILE_H
#define CUDAPOOL_CORE_FIGURES_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "figures_layout.h"

/* How file names end. */
#define FIGURES_SUFFIX ".figures"

/* Where the file of this process's figures is, while there is one. */
struct figures_file {
    char path[PATH_MAX];
    uint64_t device, inode; /* that the path must lead to, or the file is somebody else's */
    uint64_t bytes;         /* so many are reserved on the disk */
};

/* Tells the user one line. */
typedef void figures_complaint(const char *line);

/* The new file, mapped with room for FIGURES_BYTES_MAX, of which file->bytes may be used. NULL
 * where there is none; complains only where the settings name a directory. */
void *figures_file_make(struct figures_file *file, const struct figures_settings *settings,
                        figures_complaint *complain);

/* Reserves at least so many bytes. */
bool figures_file_grow(struct figures_file *file, uint64_t bytes);

/* Whether the file is still where it was made. */
bool figures_file_is_there(const struct figures_file *file);

/* Whether somebody has made the file shorter than what is reserved. */
bool figures_file_is_cut(const struct figures_file *file);

/* Removes the file, if it is there. */
void figures_file_remove(const struct figures_file *file);

/* The calling process, in a zeroed struct. What cannot be found out stays 0. */
void figures_file_describe_process(struct figures_process *process);

/* Of that only what tells processes apart: pid, namespace, start, boot. */
void figures_file_identify_process(struct figures_process *process);

/* The directories below which files may be unless the settings name one, in their order; index is
 * below FIGURES_DIRECTORIES. NULL, or false, where there is none. */
#define FIGURES_DIRECTORIES 4u
const char *figures_file_base(unsigned index);
bool figures_file_directory(unsigned index, char *path, size_t bytes);

/* The first directory in memory, of those below which files may be, that has plenty of room for so
 * many bytes: $XDG_RUNTIME_DIR, /dev/shm and so on. False where there is none. */
bool figures_file_memory(uint64_t bytes, char *path, size_t path_bytes);

/* Makes the first usual directory that can be, and opens it. -1 where there is none. */
int figures_file_open_directory(char *path, size_t bytes);

/* Whether a process counts in the file, in whatever namespace; fd: opened for reading alone. */
enum figures_use { FIGURES_USE_UNKNOWN, FIGURES_UNUSED, FIGURES_USED };
enum figures_use figures_file_use(int fd);

/* Whether the process with this number and start, as figures_process has them, is there: it may
 * also be on its way out, as one is for a moment after it was killed. */
enum figures_life { FIGURES_GONE, FIGURES_GOING, FIGURES_ALIVE };
enum figures_life figures_file_life(uint64_t pid, uint64_t start_ticks);

#endif
