/*
 * Prints the JSON Schema of settings files, out of their declarations (core/settings/settings.def).
 * settings_documents.py, which `make settings` runs, makes the other documents out of it.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/settings/settings_json.h"

#define NUMBER_PATTERN "^[0-9]+(\\.[0-9]+)? ?"

/* The objects that are open, the innermost last: where the next property belongs. */
static json_t *open_objects[4];
static size_t depth;

static json_t *properties(void)
{
    return json_object_get(open_objects[depth - 1], "properties");
}

static void begin_object(const char *name, const char *description)
{
    json_t *object = json_pack("{s:s, s:s, s:b, s:{}}", "description", description, "type",
                               "object", "additionalProperties", 0, "properties");

    assert(depth < sizeof(open_objects) / sizeof(open_objects[0]));
    json_object_set_new(properties(), name, object);
    open_objects[depth++] = object;
}

static void end_object(void)
{
    depth--;
}

static const struct setting *setting_at(const char *path)
{
    const struct setting *setting = settings_table;

    while (strcmp(setting->path, path) != 0)
        setting++;
    return setting;
}

static json_t *integer_schema(const struct setting *setting)
{
    return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum", (json_int_t)setting->least,
                     "maximum", (json_int_t)setting->most);
}

static json_t *text_schema(const char *pattern)
{
    return json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
}

/* An integer, or text with a unit, or else a share, or null. */
static json_t *size_schema(const struct setting *setting)
{
    json_t *choices = json_array();

    json_array_append_new(choices, integer_schema(setting));
    json_array_append_new(choices, text_schema(NUMBER_PATTERN "([kKmMgGtT]([iI]?[bB])?|[bB])$"));
    if (setting->type == SETTING_SIZE)
        json_array_append_new(choices, text_schema("^0*(100(\\.0+)?|[0-9]{1,2}(\\.[0-9]+)?) ?%$"));
    if (setting->may_be_null)
        json_array_append_new(choices, json_pack("{s:s}", "type", "null"));
    return json_pack("{s:o}", "anyOf", choices);
}

static json_t *word_schema(const struct setting *setting)
{
    json_t *words = json_array();

    for (const struct setting_value *value = setting->values; value->word != NULL; value++)
        json_array_append_new(words, json_string(value->word));
    return json_pack("{s:s, s:o}", "type", "string", "enum", words);
}

static json_t *value_schema(const struct setting *setting)
{
    switch (setting->type) {
    case SETTING_FLAG:
        return json_pack("{s:s}", "type", "boolean");
    case SETTING_WORD:
        return word_schema(setting);
    case SETTING_COUNT32:
    case SETTING_COUNT64:
        return integer_schema(setting);
    case SETTING_BYTES:
    case SETTING_SIZE:
        return size_schema(setting);
    case SETTING_RATIO:
        return json_pack("{s:s, s:I, s:I}", "type", "number", "minimum", (json_int_t)setting->least,
                         "maximum", (json_int_t)setting->most);
    case SETTING_TIME:
        return text_schema(NUMBER_PATTERN "([nNuUmM]?[sS]|[mM][iI][nN]|[hH])$");
    case SETTING_FILE:
        return json_pack("{s:[s, s], s:i, s:i, s:s}", "type", "string", "null", "minLength", 1,
                         "maxLength", SETTINGS_PATH_MAX - 1, "pattern", "^([^%]|%[phr%])+$");
    case SETTING_NAME:
        return json_pack("{s:[s, s], s:i, s:i, s:s}", "type", "string", "null", "minLength", 1,
                         "maxLength", SETTINGS_NAME_BYTES - 1, "pattern", "^[A-Za-z0-9._-]+$");
    }
    return NULL;
}

static void add_setting(const char *path, const char *name, const char *description)
{
    const struct setting *setting = setting_at(path);
    struct settings defaults;

    settings_defaults(&defaults);
    json_t *schema = json_pack("{s:s, s:o}", "description", description, "default",
                               setting_to_json(setting, &defaults));
    json_object_update_new(schema, value_schema(setting));
    json_object_set_new(properties(), name, schema);
}

/* What stands beside the sections. */
static void add_keys_of_the_file(void)
{
    json_object_set_new(properties(), "$schema",
                        json_pack("{s:s, s:s}", "description", "Where this schema is, for editors.",
                                  "type", "string"));
    json_object_set_new(properties(), "version",
                        json_pack("{s:s, s:i, s:s, s:i}", "description",
                                  "The version of the settings' format.", "default",
                                  SETTINGS_VERSION, "type", "integer", "const", SETTINGS_VERSION));
}

/* The declarations are expanded to calls. */
static void add_sections(void)
{
/* clang-format off */
#define SECTION(section, title, description)      begin_object(#section, description);
#define SECTION_END                               end_object();
#define GROUP(tag, in, name, description, ...)    begin_object(#name, description); __VA_ARGS__ end_object();
#define ADD(in, name, description)                add_setting(#in "." #name, #name, description);
#define FLAG(in, name, value, description, ...)   ADD(in, name, description)
#define WORD(in, name, tag, value, description)   ADD(in, name, description)
#define COUNT32(in, name, value, description, ...) ADD(in, name, description)
#define COUNT64(in, name, value, description, ...) ADD(in, name, description)
#define BYTES(in, name, value, description, ...)  ADD(in, name, description)
#define SIZE(in, name, value, description, ...)   ADD(in, name, description)
#define RATIO(in, name, value, description, ...)  ADD(in, name, description)
#define TIME(in, name, value, description, ...)   ADD(in, name, description)
#define FILE_NAME(in, name, description, ...)     ADD(in, name, description)
#define NAME(in, name, description, ...)          ADD(in, name, description)
#include "core/settings/settings.def"
    /* clang-format on */
}

int main(void)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:{}}", "$schema",
        "https://json-schema.org/draft/2020-12/schema", "title", "cudapool settings", "description",
        "Sizes are bytes, or strings such as \"512MiB\"; where a share of the device's memory (in "
        "host, of the machine's) is allowed, also \"50%\". Times are strings such as \"10s\". What "
        "a file does not name has its default.",
        "type", "object", "additionalProperties", 0, "properties");

    open_objects[depth++] = root;
    add_keys_of_the_file();
    add_sections();
    int status = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(root);
    return status == 0 && printf("\n") == 1 && fflush(stdout) == 0 ? 0 : 1;
}
