/*
 * cudapool check: is a settings file right, and what does it say?
 */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config_json.h"
#include "core/one_line.h"
#include "core/settings_json.h"
#include "tool.h"

static bool is_in_group(const struct setting *setting, const char *group)
{
    size_t length = strlen(group);

    return strncmp(setting->path, group, length) == 0 && setting->path[length] == '.';
}

/* Two values of one setting are the same where they are spelled the same. */
static bool differs_from_default(const char *value, const struct setting *setting)
{
    struct settings defaults;

    settings_defaults(&defaults);
    json_t *json = setting_to_json(setting, &defaults);
    char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    bool differs = text == NULL || strcmp(text, value) != 0;
    free(text);
    json_decref(json);
    return differs;
}

static void explain_setting(const struct setting *setting, const struct settings *settings)
{
    char words[SETTING_TEXT_BYTES];
    json_t *json = setting_to_json(setting, settings);
    char *value = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    setting_to_words(setting, settings, words);
    if (value != NULL)
        printf("%c %s = %s\n      %s\n", differs_from_default(value, setting) ? '*' : ' ',
               setting->path, value, words);
    free(value);
    json_decref(json);
}

static void explain(const struct settings *settings)
{
    for (const struct setting_group *group = setting_groups; group->path != NULL; group++) {
        printf("  %s\n", group->title);
        for (size_t i = 0; i < settings_table_length; i++)
            if (is_in_group(&settings_table[i], group->path))
                explain_setting(&settings_table[i], settings);
    }
}

static int check_file(const char *path)
{
    struct settings settings;
    char error[ERROR_BYTES]; /* or the file's name, to be printed */

    if (config_read_file(path, &settings, error, sizeof(error)) != 0)
        return complain("%s", error);
    snprintf(error, sizeof(error), "%s", path);
    replace_control_characters(error);
    printf("%s: valid; * marks what differs from the default\n", error);
    explain(&settings);
    return 0;
}

/* Every file is checked, also after a bad one. */
static int check(int argc, char **argv)
{
    int status = 0;

    if (argc < 2)
        return complain("check: no file given; usage: cudapool check FILE...");
    for (int i = 1; i < argc; i++) {
        int file_status = check_file(argv[i]);
        if (file_status != 0)
            status = file_status;
    }
    return finish_output(status);
}

const struct command check_command = {
    .name = "check",
    .summary = "validate settings files, and say in words what they mean",
    .help = "usage: cudapool check FILE...\n"
            "\n"
            "Validates settings files, and says in words what the settings mean. A file that is\n"
            "not valid gets one line on stderr, and the exit status is 2.\n",
    .run = check,
};
