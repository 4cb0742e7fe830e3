/*
 * Puts a test into a locale with a decimal comma.
 */
#ifndef CUDAPOOL_TESTS_UNIT_DECIMAL_COMMA_H
#define CUDAPOOL_TESTS_UNIT_DECIMAL_COMMA_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes the locale in a directory of its own, since few machines have it ready; false, with a
 * line on stderr, where that is not possible. */
static inline bool use_decimal_comma(void)
{
    char directory[] = "/tmp/cudapool-locale-XXXXXX", command[256];
    bool used = false;

    if (mkdtemp(directory) == NULL)
        return false;
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1",
             directory, directory);
    if (system(command) == 0) {
        setenv("LOCPATH", directory, 1);
        used = setlocale(LC_ALL, "de_DE.UTF-8") != NULL &&
               strcmp(localeconv()->decimal_point, ",") == 0;
    }
    snprintf(command, sizeof(command), "rm -rf %s", directory);
    if (system(command) != 0 || !used)
        fprintf(stderr, "no locale with a decimal comma here: not tested\n");
    return used;
}

#endif
