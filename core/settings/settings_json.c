/*
 * Reads, checks and writes whole objects of settings (settings_json.h). If document->each is set,
 * it receives all errors, and functions go on after an error. Otherwise they stop at the first
 * error.
 *
 * Part of libcudapool_config.so and the cudapool command.
 */
#include "settings_json.h"

#include <stdio.h>
#include <string.h>

#include "unknown_setting_json.h"

/* Whether to look for more errors. */
static bool goes_on(const struct document *document, int failed)
{
    return failed == 0 || document->each != NULL;
}

static const struct setting *setting_at(const char *path)
{
    for (size_t i = 0; i < settings_table_length; i++)
        if (strcmp(settings_table[i].path, path) == 0)
            return &settings_table[i];
    return NULL;
}

static bool is_group(const char *path)
{
    size_t length = strlen(path);

    for (size_t i = 0; i < settings_table_length; i++)
        if (strncmp(settings_table[i].path, path, length) == 0 &&
            settings_table[i].path[length] == '.')
            return true;
    return false;
}

/* Reads the two keys of a file that are not settings. Returns 1 if key is neither of them,
 * otherwise 0 or -1. */
static int read_file_key(const struct document *document, const char *place, const char *key,
                         const json_t *value)
{
    if (strcmp(key, "$schema") == 0)
        return json_is_string(value) ? 0 : document_refuse(document, place, value, "a string");
    if (strcmp(key, "version") != 0)
        return 1;
    if (json_is_integer(value) && json_integer_value(value) == SETTINGS_VERSION)
        return 0;
    return document_refuse(document, place, value, "the version that this cudapool reads, 1");
}

/* Reads one object of the settings. path is the object's path in the settings. place is its path in
 * the document. They differ if the settings are only a part of the document. */
static int read_object(const struct document *document, const char *place, const char *path,
                       const json_t *object, struct settings *settings)
{
    char key_place[PLACE_BYTES], key_path[PLACE_BYTES];
    const char *key;
    json_t *value;
    int failed = 0;

    if (!json_is_object(object))
        return document_refuse(document, place, object, "an object");
    json_object_foreach((json_t *)object, key, value)
    {
        place_of_key(key_place, place, key);
        place_of_key(key_path, path, key);
        const struct setting *setting = setting_at(key_path);
        /* A key that contains a dot is unknown: it is not read as a path. */
        bool plain = strchr(key, '.') == NULL;
        int status = 1;
        if (path[0] == '\0')
            status = read_file_key(document, key_place, key, value);
        if (status == 1 && plain && setting != NULL)
            status = setting_from_json(document, key_place, setting, value, settings);
        else if (status == 1 && plain && is_group(key_path))
            status = read_object(document, key_place, key_path, value, settings);
        else if (status == 1 && plain && setting_is_retired(key_path))
            status = note_retired_setting(document, key_place);
        else if (status == 1)
            status = refuse_unknown_setting(document, key_place, path, key);
        failed |= status;
        if (failed != 0 && document->each == NULL)
            return -1;
    }
    return failed == 0 ? 0 : -1;
}

/* Refuses buckets whose largest size is below the smallest. A largest size of 0 means that nothing
 * is cached. */
static int check_buckets(const struct document *document, const char *place, enum memory_kind kind,
                         const struct bucket_settings *buckets)
{
    char kind_place[PLACE_BYTES], largest[PLACE_BYTES];
    const struct byte_size *size = &buckets->largest;

    /* What a percentage is of, the device's memory, is not known here. */
    if (size->percent > 0 || size->bytes == 0 || size->bytes >= buckets->smallest)
        return 0;
    place_of_key(kind_place, place, memory_kind_names[kind]);
    place_of_key(largest, kind_place, "buckets.largest");
    return document_fail(document, largest,
                         "found %llu, allowed is 0 or at least buckets.smallest, %llu",
                         (unsigned long long)size->bytes, (unsigned long long)buckets->smallest);
}

/* Refuses the policy split for pinned host memory, whose blocks cannot be cut. */
static int check_policy(const struct document *document, const char *place, enum memory_kind kind,
                        const struct bucket_settings *buckets)
{
    char kind_place[PLACE_BYTES], policy[PLACE_BYTES];

    if (buckets->policy != BUCKETS_SPLIT || kind != KIND_HOST)
        return 0;
    place_of_key(kind_place, place, memory_kind_names[kind]);
    place_of_key(policy, kind_place, "buckets.policy");
    return document_fail(document, policy,
                         "found \"split\", allowed are geometric, pow2 and exact; blocks of pinned "
                         "memory cannot be cut");
}

/* Checks that a segment's size is a multiple of the driver's page, and not smaller than least. */
static int check_segment(const struct document *document, const char *place, enum memory_kind kind,
                         const char *name, uint64_t bytes, uint64_t least)
{
    char kind_place[PLACE_BYTES], segment[PLACE_BYTES], key[32];

    if (bytes % SIZE_CLASS_PAGE == 0 && bytes >= least)
        return 0;
    snprintf(key, sizeof(key), "segments.%s", name);
    place_of_key(kind_place, place, memory_kind_names[kind]);
    place_of_key(segment, kind_place, key);
    return document_fail(
        document, segment, "found %llu, allowed are multiples of %llu from %llu on",
        (unsigned long long)bytes, (unsigned long long)SIZE_CLASS_PAGE, (unsigned long long)least);
}

static int check_segments(const struct document *document, const char *place, enum memory_kind kind,
                          const struct segment_settings *segments)
{
    int failed = check_segment(document, place, kind, "small", segments->small, SIZE_CLASS_PAGE);

    if (goes_on(document, failed))
        failed |= check_segment(document, place, kind, "large", segments->large, segments->small);
    return failed;
}

static int refuse_group_bytes(const struct document *document, const char *place, const char *why)
{
    char limits_place[PLACE_BYTES], bytes[PLACE_BYTES];

    place_of_key(limits_place, place, "limits");
    place_of_key(bytes, limits_place, "group_bytes");
    return document_fail(document, bytes, "%s", why);
}

/* Refuses a group's limit where no group is named. */
static int check_group(const struct document *document, const char *place,
                       const struct limits_settings *limits)
{
    if (limits->group_bytes.unlimited || limits->group[0] != '\0')
        return 0;
    return refuse_group_bytes(document, place,
                              "found a limit of a group, and no group; allowed is null, unless "
                              "limits.group names the group");
}

/* Refuses a group's limit if neighbours.enabled is false. A process that does not see the others of
 * its group cannot obey a limit that all of them share. */
static int check_group_is_seen(const struct document *document, const char *place,
                               const struct settings *settings)
{
    if (settings->limits.group_bytes.unlimited || settings->limits.group[0] == '\0' ||
        settings->neighbours.enabled)
        return 0;
    return refuse_group_bytes(document, place,
                              "found a limit of a group while neighbours.enabled is false; "
                              "allowed is null, unless neighbours.enabled is true");
}

/* Refuses memory_nodes "pool" if captures.allocate is false. Memory that replaces a graph's memory
 * nodes stays with the graph, as memory that a capture allocates does. */
static int check_memory_nodes(const struct document *document, const char *place,
                              const struct captures_settings *captures)
{
    char captures_place[PLACE_BYTES], nodes[PLACE_BYTES];

    if (captures->memory_nodes == MEMORY_NODES_DRIVER || captures->allocate)
        return 0;
    place_of_key(captures_place, place, "captures");
    place_of_key(nodes, captures_place, "memory_nodes");
    return document_fail(document, nodes,
                         "found \"pool\" while captures.allocate is false; allowed is \"driver\", "
                         "unless captures.allocate is true");
}

int settings_check(const struct document *document, const char *place,
                   const struct settings *settings)
{
    int failed = 0;

    for (int kind = 0; kind < MEMORY_KINDS && goes_on(document, failed); kind++) {
        const struct bucket_settings *buckets =
            settings_of_kind(settings, (enum memory_kind)kind).buckets;
        failed |= check_buckets(document, place, (enum memory_kind)kind, buckets);
        if (goes_on(document, failed))
            failed |= check_policy(document, place, (enum memory_kind)kind, buckets);
    }
    if (goes_on(document, failed))
        failed |= check_segments(document, place, KIND_DEVICE, &settings->device.segments);
    if (goes_on(document, failed))
        failed |= check_segments(document, place, KIND_STREAM_ORDERED,
                                 &settings->stream_ordered.segments);
    if (goes_on(document, failed))
        failed |= check_group(document, place, &settings->limits);
    if (goes_on(document, failed))
        failed |= check_group_is_seen(document, place, settings);
    if (goes_on(document, failed))
        failed |= check_memory_nodes(document, place, &settings->captures);
    return failed;
}

int settings_from_json(const struct document *document, const char *place, const json_t *object,
                       struct settings *settings)
{
    struct settings read;

    settings_defaults(&read);
    int failed = read_object(document, place, "", object, &read);
    if (failed == 0 || document->each != NULL)
        failed |= settings_check(document, place, &read);
    if (failed != 0)
        return -1;
    *settings = read;
    return 0;
}

static int refuse_path(const struct document *document, const char *path)
{
    char parent[PLACE_BYTES], known[256];
    const char *key = strrchr(path, '.');

    if (is_group(path)) {
        list_known_keys(path, known, sizeof(known));
        return document_fail(document, path, "is a group of settings; allowed in it are %s", known);
    }
    snprintf(parent, sizeof(parent), "%.*s", key == NULL ? 0 : (int)(key - path), path);
    return refuse_unknown_setting(document, path, is_group(parent) ? parent : "",
                                  key == NULL ? path : key + 1);
}

int settings_assign(const struct document *document, const char *path, const json_t *value,
                    struct settings *settings)
{
    const struct setting *setting = setting_at(path);

    if (setting_is_retired(path))
        return note_retired_setting(document, path);
    if (setting == NULL)
        return refuse_path(document, path);
    return setting_from_json(document, path, setting, value, settings);
}

/* Returns a borrowed reference to the object called name in parent, and makes the object if it is
 * missing. Returns NULL if memory is short. */
static json_t *object_in(json_t *parent, const char *name)
{
    json_t *object = json_object_get(parent, name);

    if (object == NULL && json_object_set_new(parent, name, json_object()) == 0)
        object = json_object_get(parent, name);
    return object;
}

/* Stores value at a path such as a.b.c, and takes over its reference. */
static int set_at_path(json_t *root, const char *path, json_t *value)
{
    char name[64];
    size_t length;
    json_t *object = root;

    while (path[length = strcspn(path, ".")] == '.' && object != NULL) {
        snprintf(name, sizeof(name), "%.*s", (int)length, path);
        object = object_in(object, name);
        path += length + 1;
    }
    if (object == NULL) {
        json_decref(value);
        return -1;
    }
    return json_object_set_new(object, path, value);
}

json_t *settings_to_json(const struct settings *settings)
{
    json_t *root = json_object();
    int status = json_object_set_new(root, "version", json_integer(SETTINGS_VERSION));

    for (size_t i = 0; i < settings_table_length && status == 0; i++)
        status = set_at_path(root, settings_table[i].path,
                             setting_to_json(&settings_table[i], settings));
    return json_unless_failed(root, status);
}
