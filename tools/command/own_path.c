/*
 * Finds files by where this command lies (own_path.h).
 */
#include "own_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool own_directory(char directory[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", directory, PATH_MAX - 1);

    if (length <= 0)
        return false;
    directory[length] = '\0';
    char *slash = strrchr(directory, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

bool own_path(const char *relative, char path[PATH_MAX])
{
    char directory[PATH_MAX], joined[2 * PATH_MAX];

    if (!own_directory(directory))
        return false;
    snprintf(joined, sizeof(joined), "%s/%s", directory, relative);
    return realpath(joined, path) != NULL;
}
