/*
 * The settings that are shipped in configs/ (shipped_json.h). The assembler embeds the files in the
 * object.
 */
#include "shipped_json.h"

#include <string.h>

#include "core/base/nearest.h"

/* EMBEDDED(symbol, file): the file's bytes. The path is relative to the source directory, where the
 * build runs. */
#define EMBEDDED(symbol, file)                                                                     \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" file "\"\n" #symbol                   \
            "_end:\n.popsection\n");                                                               \
    extern const char symbol[] __attribute__((visibility("hidden")));                              \
    extern const char symbol##_end[] __attribute__((visibility("hidden")))

EMBEDDED(config_default, "configs/default.json");
EMBEDDED(config_low_memory, "configs/low-memory.json");
EMBEDDED(config_strict, "configs/strict.json");
EMBEDDED(config_throughput, "configs/throughput.json");
EMBEDDED(config_schema, "configs/cudapool.schema.json");

enum { DEFAULT, LOW_MEMORY, STRICT, THROUGHPUT, CONFIGS, SCHEMA = CONFIGS, FILES };

/* FILE_OF(name, purpose, symbol) */
/* clang-format off */
#define FILE_OF(its_name, its_purpose, symbol)                                                     \
    {.name = its_name, .purpose = its_purpose, .text = symbol, .end = symbol##_end}
/* clang-format on */

static const struct shipped_config files[FILES] = {
    [DEFAULT] =
        FILE_OF("default", "all settings, at their defaults: the same as no file", config_default),
    [LOW_MEMORY] = FILE_OF("low-memory", "a GPU that is shared, or nearly full", config_low_memory),
    [STRICT] = FILE_OF("strict",
                       "a program that must see as little difference from the driver as possible",
                       config_strict),
    [THROUGHPUT] = FILE_OF("throughput", "a program that has the GPU to itself", config_throughput),
    [SCHEMA] = FILE_OF("schema", "the JSON Schema of settings files, for editors", config_schema),
};

size_t shipped_config_count(void)
{
    return CONFIGS;
}

const struct shipped_config *shipped_config_at(size_t index)
{
    return &files[index];
}

const struct shipped_config *shipped_config_named(const char *name)
{
    for (size_t i = 0; i < CONFIGS; i++)
        if (strcmp(files[i].name, name) == 0)
            return &files[i];
    return NULL;
}

const char *shipped_config_nearest(const char *name)
{
    const char *names[CONFIGS];

    for (size_t i = 0; i < CONFIGS; i++)
        names[i] = files[i].name;
    return nearest_word(name, names, CONFIGS);
}

const struct shipped_config *shipped_schema(void)
{
    return &files[SCHEMA];
}
