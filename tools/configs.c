/*
 * cudapool configs: the settings files that come along.
 *
 * They are part of the command, so that it has them wherever it was copied to.
 */
#include <stdio.h>
#include <string.h>

#include "tool.h"

/* EMBEDDED(symbol, file): the file's bytes, from the source directory, where the build runs. */
#define EMBEDDED(symbol, file)                                                                     \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" file "\"\n" #symbol                   \
            "_end:\n.popsection\n");                                                               \
    extern const char symbol[] __attribute__((visibility("hidden")));                              \
    extern const char symbol##_end[] __attribute__((visibility("hidden")))

EMBEDDED(config_default, "configs/default.json");
EMBEDDED(config_low_memory, "configs/low-memory.json");
EMBEDDED(config_strict, "configs/strict.json");
EMBEDDED(config_throughput, "configs/throughput.json");

static const struct config {
    const char *name;
    const char *purpose;
    const char *text, *end;
} configs[] = {
    {"default", "all settings, at their defaults: the same as no file", config_default,
     config_default_end},
    {"low-memory", "a GPU that is shared, or nearly full", config_low_memory,
     config_low_memory_end},
    {"strict", "a program that must see as little difference from the driver as possible",
     config_strict, config_strict_end},
    {"throughput", "a program that has the GPU to itself", config_throughput,
     config_throughput_end},
};
#define CONFIGS (sizeof(configs) / sizeof(configs[0]))

static int list_configs(void)
{
    for (size_t i = 0; i < CONFIGS; i++)
        printf("%-12s %s\n", configs[i].name, configs[i].purpose);
    return 0;
}

/* With or without .json, as in the directory that they are installed in. */
static int print_config(const char *name)
{
    size_t length = strlen(name);

    if (length > 5 && strcmp(name + length - 5, ".json") == 0)
        length -= 5;
    for (size_t i = 0; i < CONFIGS; i++) {
        if (strlen(configs[i].name) != length || strncmp(configs[i].name, name, length) != 0)
            continue;
        fwrite(configs[i].text, 1, (size_t)(configs[i].end - configs[i].text), stdout);
        return 0;
    }
    return complain("configs: found \"%s\", allowed is default, low-memory, strict or throughput",
                    name);
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
    .summary = "list the settings files that come along, and print one",
    .help = "usage: cudapool configs [NAME]\n"
            "\n"
            "Lists the settings files that come along, or prints one to start from:\n"
            "\n"
            "  cudapool configs low-memory >settings.json\n"
            "  cudapool check settings.json\n"
            "  cudapool run --config settings.json ./program\n",
    .run = configs_run,
};
