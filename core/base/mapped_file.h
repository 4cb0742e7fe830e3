/*
 * Checks for files that a process maps, and for the directories they are in. The checks keep the
 * process from being ended by a signal, and from trusting somebody else's file.
 *
 * Memory that is mapped from a file is safe to touch under three conditions. Its blocks were
 * reserved before. The file is in a memory file system with room to spare. The file is no longer
 * than the limit on file sizes allows; past the limit the kernel sends a signal. What is in a
 * directory that only its owner can enter was put there by the owner.
 *
 * Any thread; no lock. These change errno, and may be cancellation points.
 */
#ifndef CUDAPOOL_CORE_MAPPED_FILE_H
#define CUDAPOOL_CORE_MAPPED_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Finds type, mode, owner, inode and size of the file with this name in the directory fd, without
 * following links; name "": of fd itself. Returns false with errno. */
bool mapped_file_identify(int fd, const char *name, struct statx *found);
uint64_t mapped_file_device(const struct statx *found);

/* Returns whether it is the file with this device and inode. */
bool mapped_file_is(const struct statx *found, uint64_t device, uint64_t inode);

/* Returns whether the file or directory is the user's own, and others have no access to it. */
bool mapped_file_is_private(const struct statx *found);

/* Returns whether the file is in memory, and whether bytes is next to nothing of what is free
 * there. */
bool mapped_file_is_in_memory(int fd);
bool mapped_file_has_plenty(int fd, uint64_t bytes);

/* Returns whether the process's limit on the size of files allows this many bytes. */
bool mapped_file_may_have(uint64_t bytes);

/* Reserves the file's bytes [from, to). Returns false with errno. */
bool mapped_file_reserve(int fd, uint64_t from, uint64_t to);

/* Opens a directory; the last name of its path must not be a link. Creates the directory (0700) if
 * there is none. Returns -1 with errno; EPERM: it is not the user's own, or others can look into
 * it. */
int mapped_file_open_directory(const char *path);

#endif
