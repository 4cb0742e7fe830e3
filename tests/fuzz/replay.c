/*
 * Runs a fuzz target on the files of directories: the corpus as a regression test, with any
 * compiler. One line says how many inputs there were; an input that breaks a promise ends the
 * process, after its name was printed.
 *
 * usage: TARGET DIRECTORY...
 */
#include <dirent.h>
#include <limits.h>

#include "fuzz.h"

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    long end;

    PROMISE(file != NULL && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) >= 0, "%s", path);
    rewind(file);
    /* Exactly as large as the input, so that a sanitizer sees what reads past it. */
    uint8_t *data = malloc((size_t)end);
    PROMISE(data != NULL || end == 0, "%s", path);
    PROMISE(end == 0 || fread(data, 1, (size_t)end, file) == (size_t)end, "%s", path);
    fclose(file);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, (size_t)end);
    free(data);
}

static unsigned run_directory(const char *directory)
{
    struct dirent **entries;
    unsigned inputs = 0;
    char path[PATH_MAX];
    int count = scandir(directory, &entries, NULL, alphasort);

    PROMISE(count >= 0, "%s", directory);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", directory, entries[i]->d_name);
            run_file(path);
            inputs++;
        }
        free(entries[i]);
    }
    free(entries);
    return inputs;
}

int main(int argc, char **argv)
{
    unsigned inputs = 0;

    for (int i = 1; i < argc; i++)
        inputs += run_directory(argv[i]);
    PROMISE(inputs > 0, "there is no input in what was named");
    printf("ok %u inputs\n", inputs);
    return 0;
}
