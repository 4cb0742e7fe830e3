/*
 * Reads settings (config_json.h): finds out what a source is, loads it as a document, and passes
 * the document to settings_json.h.
 */
#include "config_json.h"

#include <stdio.h>
#include <string.h>

#include "document_json.h"
#include "settings_json.h"
#include "shipped_json.h"

/* Reads the settings of a document. Takes over the reference root, which is NULL after an error. */
static int read_root(const struct document *document, json_t *root, struct settings *settings)
{
    if (root == NULL)
        return -1;
    int status = settings_from_json(document, "", root, settings);
    json_decref(root);
    return status;
}

static int read_text(struct document *document, const char *text, size_t bytes,
                     struct settings *settings)
{
    return read_root(document, document_parse(document, text, bytes), settings);
}

static void hint_at_shipped(const char *source, char *hint, size_t bytes)
{
    const char *nearest = shipped_config_nearest(source);

    snprintf(hint, bytes, "%s%s%s", nearest == NULL ? "" : "; did you mean ",
             nearest == NULL ? "" : nearest, nearest == NULL ? "" : "?");
}

static int read_source(struct document *document, const char *source, struct settings *settings)
{
    const struct shipped_config *shipped = shipped_config_named(source);
    char hint[64];

    document->file = source;
    if (shipped != NULL)
        return read_text(document, shipped->text, (size_t)(shipped->end - shipped->text), settings);
    if (source[0] != '{') {
        hint_at_shipped(source, hint, sizeof(hint));
        document->hint = hint;
        return read_root(document, document_load(document, SETTINGS_FILE_MAX), settings);
    }
    document->file = "CUDAPOOL_CONFIG";
    return read_text(document, source, strlen(source), settings);
}

int config_read_file(const char *path, struct settings *settings, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};

    return read_root(&document, document_load(&document, SETTINGS_FILE_MAX), settings);
}

int config_read(const char *source, struct settings *settings, char *error, size_t error_bytes)
{
    struct document document = {.error = error, .error_bytes = error_bytes};

    return read_source(&document, source, settings);
}

int config_read_patiently(const char *source, struct settings *settings,
                          document_complaint *complain, void *context)
{
    struct document document = {.each = complain, .each_context = context, .waits = true};

    return read_source(&document, source, settings);
}

/* 64, true, null and "text" are JSON. Other text, such as 64MiB, is taken as a string. */
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

int config_set(const char *const *assignments, size_t count, struct settings *settings,
               document_complaint *complain, void *context)
{
    struct document document = {.file = "--set", .each = complain, .each_context = context};
    struct settings changed = *settings;
    int failed = 0;

    for (size_t i = 0; i < count; i++)
        failed |= set_one(&document, assignments[i], &changed);
    failed |= settings_check(&document, "", &changed);
    if (failed != 0)
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
