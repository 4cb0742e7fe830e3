/*
 * cudapool configs: lists or prints the settings files that ship with cudapool.
 *
 * The files are part of the executable, so the command has them wherever it was copied to. In
 * configs/, a file names its schema relative to itself. The command replaces that name by the
 * schema's absolute address on this machine. An editor then finds the schema wherever the settings
 * are saved.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/settings/shipped_json.h"
#include "tools/command/own_path.h"
#include "tools/command/tool.h"

#define SCHEMA "cudapool.schema.json"

/* Finds the schema where it is installed, or in configs/ if this command is in a build directory.
 */
static bool find_schema(char path[PATH_MAX])
{
    return own_path("../share/cudapool/" SCHEMA, path) || own_path("../configs/" SCHEMA, path);
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("/-._~", c) != NULL;
}

static void print_address(const char *path)
{
    fputs("file://", stdout);
    for (; *path != '\0'; path++)
        if (is_plain(*path))
            putchar(*path);
        else
            printf("%%%02X", (unsigned char)*path);
}

static int list_configs(void)
{
    for (size_t i = 0; i < shipped_config_count(); i++)
        printf("%-12s %s\n", shipped_config_at(i)->name, shipped_config_at(i)->purpose);
    return 0;
}

static void print_file(const struct shipped_config *config)
{
    static const char relative[] = "\"$schema\": \"" SCHEMA;
    size_t bytes = (size_t)(config->end - config->text), head = sizeof(relative) - 1;
    const char *place = memmem(config->text, bytes, relative, head);
    char path[PATH_MAX];

    if (place == NULL || !find_schema(path)) {
        fwrite(config->text, 1, bytes, stdout);
        return;
    }
    fwrite(config->text, 1, (size_t)(place - config->text) + head - strlen(SCHEMA), stdout);
    print_address(path);
    fwrite(place + head, 1, (size_t)(config->end - place) - head, stdout);
}

/* Prints the settings of this name. The name may end with .json, as the installed files do. */
static int print_config(const char *name)
{
    size_t length = strlen(name);
    const struct shipped_config *schema = shipped_schema();

    if (length > 5 && strcmp(name + length - 5, ".json") == 0)
        length -= 5;
    for (size_t i = 0; i < shipped_config_count(); i++) {
        const struct shipped_config *config = shipped_config_at(i);
        if (strlen(config->name) != length || strncmp(config->name, name, length) != 0)
            continue;
        print_file(config);
        return 0;
    }
    if (strcmp(name, schema->name) != 0) {
        const char *nearest = shipped_config_nearest(name);
        return complain("configs: found \"%s\", allowed is default, low-memory, strict, throughput "
                        "or schema%s%s%s",
                        name, nearest == NULL ? "" : "; did you mean ",
                        nearest == NULL ? "" : nearest, nearest == NULL ? "" : "?");
    }
    fwrite(schema->text, 1, (size_t)(schema->end - schema->text), stdout);
    return 0;
}

static int configs_run(int argc, char **argv)
{
    if (argc > 2)
        return complain("configs: found %d names, allowed is one; usage: cudapool configs [NAME]",
                        argc - 1);
    return finish_output(argc < 2 ? list_configs() : print_config(argv[1]));
}

const struct command configs_command = {
    .name = "configs",
    .summary = "list the built-in presets, and print one",
    .help = "usage: cudapool configs [NAME]\n"
            "\n"
            "Lists the built-in presets, or prints one to start from:\n"
            "\n"
            "  cudapool configs low-memory >settings.json\n"
            "  cudapool check settings.json\n"
            "  cudapool run --config settings.json ./program\n"
            "\n"
            "As they are, their names do: cudapool run --config low-memory ./program\n"
            "\n"
            "`cudapool configs schema` prints their JSON Schema. The files name it by where it is\n"
            "installed, so that editors know what is allowed and say what each setting means.\n",
    .run = configs_run,
};
