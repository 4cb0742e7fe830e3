/*
 * Why a run has no report (no_report.h).
 *
 * What the dynamic linker would make of the program is read from its file: LD_PRELOAD reaches
 * programs that have an interpreter (PT_INTERP) and are of this machine, and the pool's settings
 * are not read where the kernel raises the program's privileges.
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
#include <sys/stat.h>
#include <unistd.h>

/* Where a shell would find it, as execvp does. False where it is not there. */
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

/* Whether one of the program's headers names an interpreter; true also where they cannot be read.
 */
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

/* Why the dynamic linker does not load the pool into the file's program; NULL: it does, or it is no
 * program by itself, as scripts are not. */
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
    if (fstat(file, &status) == 0 && (status.st_mode & (S_ISUID | S_ISGID)) != 0)
        return "is set-user-ID or set-group-ID, so LD_PRELOAD is not heeded";
    return NULL;
}

void explain_no_report(const char *program, char text[NO_REPORT_BYTES])
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
        snprintf(text, NO_REPORT_BYTES, "%.512s %s", path, reason);
    else
        snprintf(text, NO_REPORT_BYTES,
                 "none used CUDA, or none allocated device memory (pinned and managed memory pass "
                 "the pool by), or a line above says why the pool stepped aside");
}
