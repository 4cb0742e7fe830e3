/*
 * Reading settings (config_json.h).
 */
#include "config_json.h"

#include <stdio.h>
#include <string.h>

#include "document_json.h"
#include "settings_json.h"

int config_read_file(const char *path, struct settings *settings, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    json_t *root = document_load(&document, SETTINGS_FILE_MAX);

    if (root == NULL)
        return -1;
    int status = settings_from_json(&document, "", root, settings);
    json_decref(root);
    return status;
}

static int read_settings_text(const char *text, struct settings *settings, char *error,
                              size_t error_bytes)
{
    struct document document = {
        .file = "CUDAPOOL_CONFIG", .error = error, .error_bytes = error_bytes};
    json_t *root = document_parse(&document, text, strlen(text));

    if (root == NULL)
        return -1;
    int status = settings_from_json(&document, "", root, settings);
    json_decref(root);
    return status;
}

int config_read(const char *source, struct settings *settings, char *error, size_t error_bytes)
{
    if (source[0] == '{')
        return read_settings_text(source, settings, error, error_bytes);
    return config_read_file(source, settings, error, error_bytes);
}

/* 64, true, null and "text" are JSON; 64MiB is a string without its quotation marks. */
static json_t *value_of_assignment(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);

    return value != NULL ? value : json_string(text);
}

static int set_one(const struct document *document, const char *assignment,
                   struct settings *settings)
{
    char path[PLACE_BYTES];
    size_t length = strcspn(assignment, "=");

    if (assignment[length] != '=' || length == 0 || length >= sizeof(path))
        return document_fail(document, NULL,
                             "found \"%.100s\", allowed is a setting and its value, such as "
                             "device.growth_budget=64MiB",
                             assignment);
    memcpy(path, assignment, length);
    path[length] = '\0';
    json_t *value = value_of_assignment(assignment + length + 1);
    if (value == NULL)
        return document_fail(document, path, "the value is not UTF-8");
    int status = settings_assign(document, path, value, settings);
    json_decref(value);
    return status;
}

int config_set(const char *const *assignments, size_t count, struct settings *settings, char *error,
               size_t error_bytes)
{
    struct document document = {.file = "--set", .error = error, .error_bytes = error_bytes};
    struct settings changed = *settings;

    for (size_t i = 0; i < count; i++)
        if (set_one(&document, assignments[i], &changed) != 0)
            return -1;
    if (settings_check(&document, "", &changed) != 0)
        return -1;
    *settings = changed;
    return 0;
}

char *config_to_text(const struct settings *settings)
{
    json_t *root = settings_to_json(settings);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15));

    json_decref(root);
    return text;
}

__attribute__((visibility("default"))) int
cudapool_config_read(const char *source, struct settings *settings, char *error, size_t error_bytes)
{
    return config_read(source, settings, error, error_bytes);
}
