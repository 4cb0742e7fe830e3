/*
 * cudapool check: validates settings files, and says in words what they mean. Every file is
 * checked; the exit status is 2 if one of them, or a limit in the environment, is not valid.
 */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/settings/config_json.h"
#include "core/settings/limits.h"
#include "core/settings/quantity_json.h"
#include "core/settings/settings_json.h"
#include "tools/command/command_line.h"
#include "tools/command/terminal.h"
#include "tools/command/tool.h"

struct check {
    struct settings settings, defaults;
    bool all;  /* show every setting, not only those that differ from the defaults */
    FILE *out; /* stdout, or a stream to it that folds lines too long for the terminal */
};

static bool is_in_group(const struct setting *setting, const char *group)
{
    size_t length = strlen(group);

    return strncmp(setting->path, group, length) == 0 && setting->path[length] == '.';
}

static bool differs(const struct check *check, const struct setting *setting)
{
    return !setting_is_equal(setting, &check->settings, &check->defaults);
}

static void explain_setting(const struct check *check, const struct setting *setting)
{
    char words[SETTING_TEXT_BYTES];
    json_t *json = setting_to_json(setting, &check->settings);
    char *value = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    setting_to_words(setting, &check->settings, words);
    if (value != NULL) {
        fprintf(check->out, "%c %s = ", differs(check, setting) ? '*' : ' ', setting->path);
        print_printable(value, check->out);
        fprintf(check->out, "\n      %s\n", words);
    }
    free(value);
    json_decref(json);
}

/* Prints the group's settings that are to be shown, below its title. */
static void explain_group(const struct check *check, const struct setting_group *group)
{
    bool titled = false;

    for (size_t i = 0; i < settings_table_length; i++) {
        const struct setting *setting = &settings_table[i];
        if (!is_in_group(setting, group->path) || (!check->all && !differs(check, setting)))
            continue;
        if (!titled)
            fprintf(check->out, "  %s\n", group->title);
        titled = true;
        explain_setting(check, setting);
    }
}

static size_t count_differing(const struct check *check)
{
    size_t count = 0;

    for (size_t i = 0; i < settings_table_length; i++)
        count += differs(check, &settings_table[i]);
    return count;
}

static void print_title(const struct check *check, const char *source)
{
    char name[ERROR_BYTES];
    size_t count = count_differing(check);

    snprintf(name, sizeof(name), "%s", strcmp(source, "-") == 0 ? "stdin" : source);
    make_printable(name, sizeof(name));
    fprintf(check->out, "%s: valid; ", name);
    if (check->all)
        fputs("* marks what differs from the default\n", check->out);
    else if (count == 0)
        fputs("every setting is the default (--all shows them)\n", check->out);
    else
        fprintf(check->out, "%zu setting%s from the default (--all shows the rest)\n", count,
                count == 1 ? " differs" : "s differ");
}

static void explain_variable(const struct check *check, const struct limit_variable *variable)
{
    const struct limits_settings *limits = &check->settings.limits;
    bool process = limits->device_bytes.unlimited;
    bool container = limits->group[0] == '\0' && check->settings.neighbours.enabled;
    char bytes[QUANTITY_TEXT_BYTES], device[32] = "each device";

    bytes_to_text(variable->bytes, " ", bytes);
    if (variable->device >= 0)
        snprintf(device, sizeof(device), "device %d", variable->device);
    fprintf(check->out, "* %s = %" PRIu64 "\n      ", variable->name, variable->bytes);
    if (!process && !container)
        fputs("Not in force: limits.device_bytes holds, and neighbours.enabled or limits.group "
              "keeps the container from being a group.\n",
              check->out);
    else if (!container)
        fprintf(check->out, "On %s the process may hold %s.\n", device, bytes);
    else
        fprintf(check->out, "On %s %sall processes of the container together may hold %s.\n",
                device, process ? "the process and " : "", bytes);
}

/* Prints the limits that the environment states (core/settings/limits.h). A program that is started
 * from here sees the same ones. */
static void explain_environment(const struct check *check, const struct limits *limits)
{
    struct limit_variable variable;
    bool titled = false;

    for (unsigned i = 0; limits_variable(limits, i, &variable); i++) {
        if (variable.bytes == 0)
            continue;
        if (!titled)
            fputs("  the container's limits, in the environment\n", check->out);
        titled = true;
        explain_variable(check, &variable);
    }
}

static bool environment_is_bad;

static void complain_of_environment(const char *line)
{
    environment_is_bad = true;
    complain("%s", line);
}

static int check_source(const char *source, bool all)
{
    struct check check = {.all = all};
    struct limits limits;

    settings_defaults(&check.defaults);
    if (config_read_patiently(source, &check.settings, complain_of, NULL) != 0)
        return EXIT_BAD_INPUT;
    limits_read(&limits, &check.settings, getenv,
                environment_is_bad ? NULL : complain_of_environment);
    struct look look = terminal_look(stdout, all);
    struct folding folding;
    check.out = folding_begin(&folding, &look, stdout);
    print_title(&check, source);
    for (const struct setting_group *group = setting_groups; group->path != NULL; group++)
        explain_group(&check, group);
    explain_environment(&check, &limits);
    folding_end(&folding);
    return environment_is_bad ? EXIT_BAD_INPUT : 0;
}

/* Returns 0, or the exit status after a complaint. */
static int read_options(int argc, char **argv, bool *all)
{
    static const struct option known[] = {{"all", no_argument, NULL, 'a'}, {0}};

    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", known, NULL)) != -1) {
        if (option != 'a')
            return refuse_option("check", known, option, argv[optind - 1], "allowed is --all");
        *all = true;
    }
    if (optind == argc)
        return complain("check: no file given; usage: cudapool check [--all] FILE...");
    return 0;
}

/* Checks every file, even after a bad one. */
static int check(int argc, char **argv)
{
    bool all = false;
    int status = read_options(argc, argv, &all);

    if (status != 0)
        return status;
    for (int i = optind; i < argc; i++) {
        int file_status = check_source(argv[i], all);
        if (file_status != 0)
            status = file_status;
    }
    return finish_output(status);
}

const struct command check_command = {
    .name = "check",
    .summary = "validate settings, and say in words what they mean",
    .help =
        "usage: cudapool check [--all] FILE...\n"
        "\n"
        "Validates settings files, and says in words what those settings mean that differ from "
        "the\n"
        "defaults. Built-in presets may be named (see `cudapool configs`), and - is "
        "stdin.\n"
        "\n"
        "Limits that a scheduler has put into the environment (CUDA_DEVICE_MEMORY_LIMIT,\n"
        "GPU_MEMORY_LIMIT) are said as well.\n"
        "\n"
        "  --all   says it of every setting, and marks with * what differs\n"
        "\n"
        "Sizes are integers (bytes) or have a unit: K, M, G, T and KiB, MiB, GiB, TiB are powers "
        "of\n"
        "1024, kB, MB, GB, TB powers of 1000, capitals or not: 64M is 67108864 bytes, 64MB is\n"
        "64000000. Times: ns, us, ms, s, min, h.\n"
        "\n"
        "Of a file that is not valid every error is a line on stderr, and the exit status is 2.\n",
    .run = check,
};
