/*
 * Files that are mapped, and the directories where they are: what keeps a process that maps one
 * from being ended by a signal, or from trusting somebody else's file.
 *
 * Memory that is mapped from a file is safe to touch where its blocks are reserved before, in a
 * file system in memory with room to spare, and where the file is no longer than the limit on file
 * sizes allows, past which the kernel sends a signal. What is in a directory that only its owner
 * can enter was put there by the owner.
 *
 * Any thread; no lock. These change errno, and may be cancellation points.
 */
#ifndef CUDAPOOL_CORE_MAPPED_FILE_H
#define CUDAPOOL_CORE_MAPPED_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Type, mode, owner, inode and size of the file of that name below the directory, no link being
 * followed; name "": of what fd is itself. */
bool mapped_file_identify(int fd, const char *name, struct statx *found);
uint64_t mapped_file_device(const struct statx *found);

/* Whether the file, or directory, is the user's own, and others have no access to it. */
bool mapped_file_is_private(const struct statx *found);

/* Whether it is in memory, and so many bytes are next to nothing of what is free there. */
bool mapped_file_is_in_memory(int fd);
bool mapped_file_has_plenty(int fd, uint64_t bytes);

/* Whether the limit on the size of files allows so many. */
bool mapped_file_may_have(uint64_t bytes);

/* Reserves these bytes of the file. False with errno. */
bool mapped_file_reserve(int fd, uint64_t from, uint64_t to);

/* Opens a directory by its name, which is no link; makes it where there is none (0700). -1 with
 * errno: EPERM where it is not the user's own, or others can look into it. */
int mapped_file_open_directory(const char *path);

#endif
