/*
 * Unknown keys, with the nearest known key, and retired settings (unknown_setting_json.h).
 *
 * Part of libcudapool_config.so and the command.
 */
#include "unknown_setting_json.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/nearest.h"
#include "settings_table_json.h"

/* The distance of an unknown key from the path that ends at length. The spelling of the key's own
 * name counts most, and then whether it stands in the right object. */
static size_t distance_to(const char *parent, const char *key, const char *path, size_t length)
{
    char known[128];

    snprintf(known, sizeof(known), "%.*s", (int)length, path);
    char *name = strrchr(known, '.');
    size_t distance = edit_distance(key, name == NULL ? known : name + 1) * 2;
    if (name != NULL)
        *name = '\0';
    return distance + (strcmp(parent, name == NULL ? "" : known) != 0);
}

/* Compares the key with every path that a path of the table passes through: a, a.b and a.b.c. */
static void nearest_of_path(const char *parent, const char *key, const char *path, size_t *least,
                            char nearest[128])
{
    for (size_t length = strcspn(path, "."); length != 0;) {
        size_t distance = distance_to(parent, key, path, length);
        if (distance < *least) {
            *least = distance;
            snprintf(nearest, 128, "%.*s", (int)length, path);
        }
        if (path[length] == '\0')
            break;
        length += 1 + strcspn(path + length + 1, ".");
    }
}

static void nearest_known_key(const char *parent, const char *key, char nearest[128])
{
    size_t least = SIZE_MAX;

    nearest_of_path(parent, key, "version", &least, nearest);
    nearest_of_path(parent, key, "$schema", &least, nearest);
    for (size_t i = 0; i < settings_table_length; i++)
        nearest_of_path(parent, key, settings_table[i].path, &least, nearest);
}

/* The length of path's own name where path stands directly in the object parent; otherwise 0. */
static size_t name_in(const char *parent, const char *path, const char **name)
{
    size_t length = strlen(parent);

    if (length != 0 && (strncmp(path, parent, length) != 0 || path[length] != '.'))
        return 0;
    *name = path + (length == 0 ? 0 : length + 1);
    return strcspn(*name, ".");
}

void list_known_keys(const char *parent, char *text, size_t bytes)
{
    const char *previous = NULL, *name;
    size_t previous_length = 0, used = 0;

    text[0] = '\0';
    if (parent[0] == '\0')
        used = (size_t)snprintf(text, bytes, "$schema, version");
    for (size_t i = 0; i < settings_table_length && used < bytes; i++) {
        size_t length = name_in(parent, settings_table[i].path, &name);
        /* Settings of one object are adjacent in the table. */
        if (length == 0 || (length == previous_length && strncmp(previous, name, length) == 0))
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%.*s", used == 0 ? "" : ", ",
                                 (int)length, name);
        previous = name;
        previous_length = length;
    }
}

int refuse_unknown_setting(const struct document *document, const char *place, const char *parent,
                           const char *key)
{
    char nearest[128], known[256];

    nearest_known_key(parent, key, nearest);
    list_known_keys(parent, known, sizeof(known));
    return document_fail(document, place,
                         "unknown key; the nearest known one is %s; allowed here "
                         "are %s",
                         nearest, known);
}

static const char *const retired_settings[] = {
    "stream_ordered.reuse.follow_event_dependencies",
    "stream_ordered.unserved_release_threshold",
};

bool setting_is_retired(const char *path)
{
    for (size_t i = 0; i < sizeof(retired_settings) / sizeof(retired_settings[0]); i++)
        if (strcmp(retired_settings[i], path) == 0)
            return true;
    return false;
}

int note_retired_setting(const struct document *document, const char *place)
{
    document_fail(document, place, "has no effect any more; the next version refuses it");
    return 0;
}
