/*
 * The file that holds a process's figures: where it is made, how it is named, and when it is
 * removed.
 *
 * The pool makes the file when it first serves a context, in the directory that the settings name.
 * Otherwise it takes cudapool-UID (0700) below the first of $XDG_RUNTIME_DIR, /dev/shm, $TMPDIR and
 * /tmp that is a file system in memory with plenty of room. Other file systems are used only on
 * request. On a disk, the kernel makes the program wait while it writes back a page that is being
 * counted in. On a copy-on-write or network file system, a full disk or a lost server would raise
 * SIGBUS. To avoid SIGBUS, the file's blocks are reserved before they are mapped. The limit on file
 * sizes is checked first, because a write past it sends a signal.
 *
 * The file is created with O_EXCL and mode 0600. Its name holds pid, start time and pid namespace,
 * so that processes never share a file, even in containers that share a directory. No descriptor
 * stays open. The process that made the file removes it; a child of a fork does not touch it.
 * Killed processes leave their files in the usual directories. When too many files are there, the
 * oldest of dead processes are removed.
 *
 * A pid does not tell whether a process of another pid namespace lives, but its file does. While
 * the process lives, it maps the file for writing. A file that anybody has open or mapped for
 * writing cannot get a read lease (fcntl(2)). An observer therefore requests a lease, and releases
 * it at once. This needs no lock and no open descriptor, which the program might close or pass to
 * its children, and works for files of earlier versions. A child of a fork drops the mapping
 * (figures_forget). The test is made only on tmpfs, where it is reliable. An overlay checks another
 * inode than the mapped one, and a network file system checks one machine alone.
 *
 * Part of the preload object. Callers hold the figures lock, except at exit, where nothing may wait
 * for a lock. What is read at exit was written before the arena's header was published.
 */
#ifndef CUDAPOOL_CORE_FIGURES_FILE_H
#define CUDAPOOL_CORE_FIGURES_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "figures_layout.h"

/* The suffix of the files' names. */
#define FIGURES_SUFFIX ".figures"

/* The figures file of this process, if there is one. */
struct figures_file {
    char path[PATH_MAX];
    uint64_t device, inode; /* of the file; a path that leads to another file is somebody else's */
    uint64_t bytes;         /* reserved in the file system */
};

/* Tells the user one line. */
typedef void figures_complaint(const char *line);

/* Makes the file and maps it with room for FIGURES_BYTES_MAX, of which file->bytes may be used.
 * NULL where that fails or is not wanted; complains only where the settings name a directory. */
void *figures_file_make(struct figures_file *file, const struct figures_settings *settings,
                        figures_complaint *complain);

/* Reserves at least so many bytes for the whole file. False where that fails. */
bool figures_file_grow(struct figures_file *file, uint64_t bytes);

/* Whether the file is still where it was made. */
bool figures_file_is_there(const struct figures_file *file);

/* Whether somebody has truncated the file below the reserved bytes. */
bool figures_file_is_cut(const struct figures_file *file);

/* Removes the file, if it is there. */
void figures_file_remove(const struct figures_file *file);

/* Describes the calling process in a zeroed struct. What cannot be found out stays 0. */
void figures_file_describe_process(struct figures_process *process);

/* Fills only the fields that identify the calling process: pid, namespace, start, boot. */
void figures_file_identify_process(struct figures_process *process);

/* The usual base directories in their order, and the directory cudapool-UID below each. The files
 * are there unless the settings name a directory. index < FIGURES_DIRECTORIES. NULL, or false,
 * where there is none. */
#define FIGURES_DIRECTORIES 4u
const char *figures_file_base(unsigned index);
bool figures_file_directory(unsigned index, char *path, size_t bytes);

/* Writes the first usual base directory that is in memory, writable, and has plenty of room for so
 * many bytes. False where there is none. */
bool figures_file_memory(uint64_t bytes, char *path, size_t path_bytes);

/* Opens the first cudapool-UID directory that is usable, making it if needed, and writes its path.
 * Returns the descriptor, or -1 where there is none. */
int figures_file_open_directory(char *path, size_t bytes);

/* Whether any process, in any pid namespace, has the file open or mapped for writing. fd must be
 * open for reading only. */
enum figures_use { FIGURES_USE_UNKNOWN, FIGURES_UNUSED, FIGURES_USED };
enum figures_use figures_file_use(int fd);

/* Whether the process with this pid and start (struct figures_process) exists. FIGURES_GOING: it is
 * exiting, as a process is for a moment after a kill. */
enum figures_life { FIGURES_GONE, FIGURES_GOING, FIGURES_ALIVE };
enum figures_life figures_file_life(uint64_t pid, uint64_t start_ticks);

#endif
