/*
 * The defaults, and the meaning of a size on a given device.
 *
 * Part of both the preload object and libcudapool_config.so: libc only. Any thread may call any of
 * the functions: none takes a lock or accesses anything but its arguments.
 */
#include "config.h"

#include <string.h>

#define MIB    (UINT64_C(1) << 20)
#define SECOND UINT64_C(1000000000)

void settings_defaults(struct settings *settings)
{
    /* Zeroes padding and the rest of file names, too, so that two copies compare equal. */
    memset(settings, 0, sizeof(*settings));
#define DEFAULT(in, name, value, ...)          settings->in.name = (value);
#define FIXED(number)                          .bytes = (number)
#define SHARE(number)                          .percent = (number)
#define UNLIMITED                              .unlimited = true
#define GROUP(tag, in, name, description, ...) __VA_ARGS__
#define FLAG(...)                              DEFAULT(__VA_ARGS__)
#define WORD(in, name, tag, value, ...)        DEFAULT(in, name, value)
#define COUNT32(...)                           DEFAULT(__VA_ARGS__)
#define COUNT64(...)                           DEFAULT(__VA_ARGS__)
#define BYTES(...)                             DEFAULT(__VA_ARGS__)
#define SIZE(in, name, value, ...)             settings->in.name value;
#define RATIO(...)                             DEFAULT(__VA_ARGS__)
#define TIME(in, name, value, ...)             DEFAULT(in, name##_ns, value)
#include "settings.def"
}

const char *const memory_kind_names[MEMORY_KINDS] = {
#define KIND(id, section, ...) [KIND_##id] = #section,
#include "settings.def"
};

enum memory_kind memory_kind_named(const char *name)
{
    int kind = 0;

    while (kind < MEMORY_KINDS && strcmp(memory_kind_names[kind], name) != 0)
        kind++;
    return (enum memory_kind)kind;
}

bool memory_kind_is_of_device(enum memory_kind kind)
{
    return kind != KIND_HOST;
}

struct kind_settings settings_of_kind(const struct settings *settings, enum memory_kind kind)
{
    const struct kind_settings of_kinds[MEMORY_KINDS] = {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a member cannot stand in parentheses. */
#define KIND(id, section, ...)                                                                     \
    [KIND_##id] = {&settings->section.buckets, &settings->section.caps,                            \
                   settings->section.release_after_idle_ns},
#include "settings.def"
    };

    return of_kinds[kind];
}

uint64_t byte_size_resolve(const struct byte_size *size, uint64_t total_bytes)
{
    if (size->unlimited)
        return UINT64_MAX;
    if (!(size->percent > 0))
        return size->bytes;
    double share = (double)total_bytes * size->percent / 100;
    /* At 100 %, or where rounding has raised the product past a large total. */
    if (size->percent >= 100 || share >= (double)total_bytes)
        return total_bytes;
    return (uint64_t)share;
}

void bucket_settings_resolve(const struct bucket_settings *settings, uint64_t total_bytes,
                             struct size_classes *classes)
{
    size_classes_init(classes, settings->policy, settings->steps_per_doubling, settings->smallest,
                      byte_size_resolve(&settings->largest, total_bytes), total_bytes);
}
