/*
 * Finds files of figures (figures_search.h).
 */
#include "figures_search.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/figures/figures_file.h"

static bool ends_with_suffix(const char *name)
{
    size_t length = strlen(name), end = strlen(FIGURES_SUFFIX);

    return length > end && strcmp(name + length - end, FIGURES_SUFFIX) == 0;
}

int figures_search_in(const char *directory, figures_visitor *visit, void *context)
{
    DIR *entries = opendir(directory);
    const struct dirent *entry;
    char path[2 * PATH_MAX];

    if (entries == NULL)
        return -1;
    while ((entry = readdir(entries)) != NULL) {
        if (!ends_with_suffix(entry->d_name))
            continue;
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        visit(path, context);
    }
    closedir(entries);
    return 0;
}

/* Whether path is a directory of this user. The search skips other users' directories, even
 * readable ones, and symbolic links. */
static bool is_own_directory(const char *path)
{
    struct stat status;

    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

static void search_below(const char *base, figures_visitor *visit, void *context)
{
    DIR *entries = opendir(base);
    const struct dirent *entry;
    char path[2 * PATH_MAX];

    if (entries == NULL)
        return;
    while ((entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, "cudapool-", strlen("cudapool-")) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", base, entry->d_name);
        if (is_own_directory(path))
            figures_search_in(path, visit, context);
    }
    closedir(entries);
}

/* Whether the search has visited a base with this path: two bases may have equal paths. */
static bool was_searched(const char *bases[], unsigned count, const char *base)
{
    for (unsigned i = 0; i < count; i++)
        if (bases[i] != NULL && strcmp(bases[i], base) == 0)
            return true;
    return false;
}

void figures_search(figures_visitor *visit, void *context)
{
    const char *bases[FIGURES_DIRECTORIES];

    for (unsigned i = 0; i < FIGURES_DIRECTORIES; i++) {
        bases[i] = figures_file_base(i);
        if (bases[i] != NULL && !was_searched(bases, i, bases[i]))
            search_below(bases[i], visit, context);
    }
}
