/*
 * Finds the sanitizer's run time library of a program (sanitizer.h).
 */
#include "sanitizer.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM_HEADERS_MOST 64u
#define DYNAMIC_MOST         512u
#define NAME_BYTES           256u

/* --- names --------------------------------------------------------------------------------------
 */

/* The libraries of GCC and of clang. */
static bool is_sanitizer(const char *name, size_t length)
{
    static const char *const beginnings[] = {
        "libasan.so",       "libhwasan.so",       "libtsan.so",      "liblsan.so",
        "libclang_rt.asan", "libclang_rt.hwasan", "libclang_rt.tsan"};

    for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++) {
        size_t beginning = strlen(beginnings[i]);
        if (length >= beginning && strncmp(name, beginnings[i], beginning) == 0)
            return true;
    }
    return false;
}

size_t sanitizers_in_list(const char *list)
{
    size_t all = 0;

    for (;;) {
        size_t length = strcspn(list + all, ": "), name = length;
        while (name > 0 && list[all + name - 1] != '/')
            name--;
        if (!is_sanitizer(list + all + name, length - name))
            return all;
        all += length;
        all += strspn(list + all, ": ");
    }
}

/* --- the program's file -------------------------------------------------------------------------
 */

static bool is_executable(const char *path)
{
    return access(path, X_OK) == 0;
}

/* Finds the program's file as execvp does. */
static bool find_program(const char *program, char path[PATH_MAX])
{
    const char *place = getenv("PATH");

    if (strchr(program, '/') != NULL)
        return (size_t)snprintf(path, PATH_MAX, "%s", program) < PATH_MAX;
    for (; place != NULL; place = *place == ':' ? place + 1 : NULL) {
        size_t length = strcspn(place, ":");
        int written = snprintf(path, PATH_MAX, "%.*s%s%s", (int)length, place,
                               length == 0 ? "" : "/", program);
        if (written > 0 && written < PATH_MAX && is_executable(path))
            return true;
        place += length;
    }
    return false;
}

struct elf {
    int fd;
    Elf64_Ehdr header;
    Elf64_Phdr segments[PROGRAM_HEADERS_MOST];
};

static bool read_at(const struct elf *elf, void *to, size_t bytes, uint64_t offset)
{
    return offset <= INT64_MAX && pread(elf->fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static bool read_headers(struct elf *elf)
{
    const Elf64_Ehdr *header = &elf->header;

    return read_at(elf, &elf->header, sizeof(elf->header), 0) &&
           memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB &&
           header->e_phentsize == sizeof(Elf64_Phdr) && header->e_phnum <= PROGRAM_HEADERS_MOST &&
           read_at(elf, elf->segments, header->e_phnum * sizeof(Elf64_Phdr), header->e_phoff);
}

static const Elf64_Phdr *find_segment(const struct elf *elf, uint32_t type)
{
    for (unsigned i = 0; i < elf->header.e_phnum; i++)
        if (elf->segments[i].p_type == type)
            return &elf->segments[i];
    return NULL;
}

/* Converts an address of the program to an offset in its file. */
static bool find_offset(const struct elf *elf, uint64_t address, uint64_t *offset)
{
    for (unsigned i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *segment = &elf->segments[i];
        if (segment->p_type == PT_LOAD && address - segment->p_vaddr < segment->p_filesz) {
            *offset = address - segment->p_vaddr + segment->p_offset;
            return true;
        }
    }
    return false;
}

/* Reads a string from the file and cuts it off at bytes - 1 characters. */
static bool read_string(const struct elf *elf, uint64_t offset, char *text, size_t bytes)
{
    if (offset > INT64_MAX)
        return false;
    ssize_t got = pread(elf->fd, text, bytes - 1, (off_t)offset);
    if (got <= 0)
        return false;
    text[got] = '\0';
    return true;
}

/* Finds the sanitizer's run time library among the libraries that the program needs (DT_NEEDED). */
static bool find_needed(const struct elf *elf, char name[NAME_BYTES])
{
    Elf64_Dyn entries[DYNAMIC_MOST];
    const Elf64_Phdr *dynamic = find_segment(elf, PT_DYNAMIC);
    uint64_t names = 0;
    size_t count = 0;

    if (dynamic == NULL || dynamic->p_filesz > sizeof(entries) ||
        !read_at(elf, entries, dynamic->p_filesz, dynamic->p_offset))
        return false;
    for (; count < dynamic->p_filesz / sizeof(entries[0]) && entries[count].d_tag != DT_NULL;
         count++)
        if (entries[count].d_tag == DT_STRTAB &&
            !find_offset(elf, entries[count].d_un.d_ptr, &names))
            return false;
    for (size_t i = 0; i < count; i++)
        if (entries[i].d_tag == DT_NEEDED &&
            read_string(elf, names + entries[i].d_un.d_val, name, NAME_BYTES) &&
            is_sanitizer(name, strlen(name)))
            return true;
    return false;
}

/* --- asking the program's dynamic linker where the library is -----------------------------------
 */

/* A line is "	libasan.so.8 => /lib/x86_64-linux-gnu/libasan.so.8 (0x...)". */
static bool take_path(const char *line, const char *name, char path[PATH_MAX])
{
    size_t length = strlen(name);

    line += strspn(line, " \t");
    if (strncmp(line, name, length) != 0 || strncmp(line + length, " => /", 5) != 0)
        return false;
    line += length + strlen(" => ");
    size_t bytes = strcspn(line, " \n");
    return bytes < PATH_MAX && line[bytes] == ' ' &&
           (size_t)snprintf(path, PATH_MAX, "%.*s", (int)bytes, line) == bytes &&
           strpbrk(path, ": ") == NULL;
}

static bool read_list(FILE *list, const char *name, char path[PATH_MAX])
{
    char line[2 * PATH_MAX];
    bool found = false;

    while (fgets(line, sizeof(line), list) != NULL)
        found = found || take_path(line, name, path);
    return found;
}

/* Makes the dynamic linker list the program's libraries. This runs no code of the program. */
static bool ask_linker(char *linker, char *program, const char *name, char path[PATH_MAX])
{
    char *arguments[] = {linker, "--list", program, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], status;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    bool started = posix_spawn(&child, linker, &actions, NULL, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    FILE *list = fdopen(ends[0], "r");
    bool found = started && list != NULL && read_list(list, name, path);
    if (list != NULL)
        fclose(list);
    else
        close(ends[0]);
    if (started)
        waitpid(child, &status, 0);
    return found;
}

/* Returns the library's path, or only its name if the dynamic linker does not tell the path. The
 * linker then searches for the name when the program starts. */
static char *find_library(const struct elf *elf, char *program, const char *name)
{
    char linker[PATH_MAX], path[PATH_MAX];
    const Elf64_Phdr *segment = find_segment(elf, PT_INTERP);

    if (segment != NULL && read_string(elf, segment->p_offset, linker, sizeof(linker)) &&
        ask_linker(linker, program, name, path))
        return strdup(path);
    return strdup(name);
}

char *sanitizer_of_program(const char *program)
{
    struct elf elf;
    char path[PATH_MAX], name[NAME_BYTES], *library = NULL;

    if (!find_program(program, path))
        return NULL;
    elf.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (elf.fd < 0)
        return NULL;
    if (read_headers(&elf) && find_needed(&elf, name))
        library = find_library(&elf, path, name);
    close(elf.fd);
    return library;
}
