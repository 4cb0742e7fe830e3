/*
 * Explains why a run has no report (no_report.h).
 *
 * The explanation reads the program's file to find out what the dynamic linker does with it.
 * LD_PRELOAD works only for programs of this machine that have an interpreter (PT_INTERP). The
 * dynamic linker ignores it if the kernel raises the program's privileges.
 */
#include "no_report.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/base/one_line.h"
#include "core/figures/report_process.h"

/* Finds the program as execvp does. False if it is not there. */
static bool find_program(const char *program, char path[PATH_MAX])
{
    const char *directories = getenv("PATH");

    if (strchr(program, '/') != NULL || directories == NULL)
        return (size_t)snprintf(path, PATH_MAX, "%s", program) < PATH_MAX;
    while (*directories != '\0') {
        int length = (int)strcspn(directories, ":");
        int written = snprintf(path, PATH_MAX, "%.*s/%s", length, directories, program);
        if (written < PATH_MAX && access(path, X_OK) == 0)
            return true;
        directories += length;
        directories += *directories == ':';
    }
    return false;
}

static bool read_at(int file, void *memory, size_t bytes, uint64_t offset)
{
    return offset <= INT64_MAX && pread(file, memory, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Whether one of the program headers names an interpreter. True also if they cannot be read. */
static bool has_interpreter(int file, const ElfW(Ehdr) * header)
{
    ElfW(Phdr) part;

    for (unsigned i = 0; i < header->e_phnum; i++) {
        if (!read_at(file, &part, sizeof(part), header->e_phoff + (uint64_t)i * sizeof(part)))
            return true;
        if (part.p_type == PT_INTERP)
            return true;
    }
    return false;
}

/* Whether the kernel raises the program's privileges; only then does the dynamic linker ignore
 * LD_PRELOAD. The kernel does not if the program belongs to its user, its file system forbids it
 * (nosuid), or no_new_privs is set. */
static bool raises_privileges(int file, const struct stat *status)
{
    struct statvfs system;
    mode_t group = S_ISGID | S_IXGRP;

    if ((fstatvfs(file, &system) == 0 && (system.f_flag & ST_NOSUID) != 0) ||
        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return false;
    if ((status->st_mode & S_ISUID) != 0 && status->st_uid != geteuid())
        return true;
    if ((status->st_mode & group) == group && status->st_gid != getegid())
        return true;
    return geteuid() != 0 && fgetxattr(file, "security.capability", NULL, 0) > 0;
}

/* Returns why the dynamic linker does not load the pool into the file's program. NULL: it does, or
 * the file is not itself a program, such as a script. */
static const char *what_keeps_it_out(int file)
{
    ElfW(Ehdr) header;
    struct stat status;

    if (!read_at(file, &header, sizeof(header), 0) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return NULL;
    if (header.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32))
        return "is a program of another word size, which the pool cannot be loaded into";
    if (!has_interpreter(file, &header))
        return "is a static binary, which LD_PRELOAD does not reach";
    if (fstat(file, &status) == 0 && raises_privileges(file, &status))
        return "raises its user's privileges, so LD_PRELOAD is not heeded";
    return NULL;
}

/* Explains by the program's file and CUDAPOOL_DISABLE. False if these explain nothing. */
static bool explain_by_program(const char *program, char text[NO_REPORT_BYTES])
{
    char path[PATH_MAX];
    const char *disabled = getenv("CUDAPOOL_DISABLE"), *reason = NULL;
    int file = find_program(program, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (file >= 0) {
        reason = what_keeps_it_out(file);
        close(file);
    }
    if (disabled != NULL && strcmp(disabled, "1") == 0)
        snprintf(text, NO_REPORT_BYTES, "CUDAPOOL_DISABLE is 1");
    else if (reason != NULL)
        snprintf(text, NO_REPORT_BYTES, "%.*s %s", (int)whole_characters(path, 512), path, reason);
    else
        return false;
    return true;
}

#define GUESSES                                                                                    \
    "none used CUDA, or none asked for memory of a device or for pinned memory (what settings "    \
    "leave to the driver passes the pool by), or a line above says why the pool stepped aside"

void explain_no_report(const char *program, char text[NO_REPORT_BYTES])
{
    if (!explain_by_program(program, text))
        snprintf(text, NO_REPORT_BYTES, GUESSES);
}

void explain_no_report_without_figures(const char *program, const struct program_end *end,
                                       char text[NO_REPORT_BYTES])
{
    char how[REPORT_END_BYTES];
    struct report_exit its_end = {.known = true, .status = end->status, .signal = end->signal};

    if (explain_by_program(program, text))
        return;
    if (end->signal == 0) {
        snprintf(text, NO_REPORT_BYTES,
                 GUESSES ", or the one that did left by _exit or was killed, and figures, which "
                         "would tell of it, are off");
        return;
    }
    report_describe_end(REPORT_KILLED, its_end, how);
    snprintf(text, NO_REPORT_BYTES,
             "the program was %s, and figures, which would tell what it took, are off", how);
}
