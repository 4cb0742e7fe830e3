/*
 * Settings files (core/settings/config_json.h): any file is read, or refused with one line that
 * names it and with the settings untouched. Settings that were read write to JSON that reads the
 * same, can be said in words, and give the pool sizes that it can work with.
 */
#include "core/base/one_line.h"
#include "core/base/size_class.h"
#include "core/settings/config_json.h"
#include "core/settings/settings_json.h"

#include "fuzz.h"

#define ERROR_BYTES 1024

static struct memory_file input, copy;

/* The settings as text, which the caller frees. */
static char *to_text(const struct settings *settings)
{
    json_t *json = settings_to_json(settings);
    char *text = json_dumps(json, JSON_REAL_PRECISION(17));

    PROMISE(text != NULL, "settings that do not write");
    json_decref(json);
    return text;
}

static void write_and_read_again(const struct settings *settings)
{
    static struct settings again;
    char error[ERROR_BYTES];
    char *text = to_text(settings);

    memory_file_set(&copy, text, strlen(text));
    PROMISE(config_read_file(copy.path, &again, error, sizeof(error)) == 0, "%s: %s", text, error);
    char *second = to_text(&again);
    PROMISE(strcmp(text, second) == 0, "%s became %s", text, second);
    free(second);
    free(text);
}

static void say_in_words(const struct settings *settings)
{
    char words[SETTING_TEXT_BYTES], allowed[SETTING_ALLOWED_BYTES];

    for (size_t i = 0; i < settings_table_length; i++) {
        const struct setting *setting = &settings_table[i];
        setting_to_words(setting, settings, words);
        PROMISE(words[0] != '\0' && is_one_line(words), "%s: %s", setting->path, words);
        setting_allowed(setting, allowed, sizeof(allowed));
        PROMISE(allowed[0] != '\0' && strlen(allowed) < sizeof(allowed) - 1, "%s", setting->path);
    }
}

/* A block holds what it serves, is in its own bucket, and costs no more than a doubling. */
static void promise_buckets(const struct bucket_settings *buckets, uint64_t device_bytes)
{
    struct size_classes classes;

    bucket_settings_resolve(buckets, device_bytes, &classes);
    for (uint64_t power = 1; power <= UINT64_C(1) << 50; power *= 2) {
        for (uint64_t bytes = power - (power > 1); bytes <= power + 1; bytes++) {
            uint64_t block = size_class_round(&classes, bytes);
            PROMISE(block != 0 || bytes > classes.largest, "%llu", (unsigned long long)bytes);
            PROMISE(block == 0 || block >= bytes, "%llu", (unsigned long long)bytes);
            uint64_t most = bytes > classes.smallest ? 2 * bytes : classes.smallest;
            most = most > SIZE_CLASS_GRANULE ? most : SIZE_CLASS_GRANULE;
            PROMISE(block <= most, "%llu of %llu", (unsigned long long)block,
                    (unsigned long long)bytes);
            PROMISE(block == 0 || block > classes.largest ||
                        size_class_round(&classes, block) == block,
                    "%llu", (unsigned long long)block);
        }
    }
}

static void promise_settings(const struct settings *settings)
{
    static const uint64_t devices[] = {1, UINT64_C(80) << 30, UINT64_C(1) << 50};

    write_and_read_again(settings);
    say_in_words(settings);
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        for (int kind = 0; kind < MEMORY_KINDS; kind++)
            promise_buckets(settings_of_kind(settings, (enum memory_kind)kind).buckets, devices[i]);
}

/* The error is cut off where it does not fit, but not inside an escape, and nothing is written
 * behind it. */
static void promise_cut_off(const char *error, size_t room)
{
    static struct settings unused;
    char cut[ERROR_BYTES];

    memset(cut, 'x', sizeof(cut));
    PROMISE(cudapool_config_read(input.path, &unused, cut, room) != 0, "%s", error);
    size_t length = strnlen(cut, room);
    PROMISE(room == 0 || (strlen(error) < room ? length == strlen(error)
                                               : length < room && length + PRINTABLE_BYTES >= room),
            "%zu bytes of %s", room, error);
    PROMISE(room == 0 || strncmp(cut, error, length) == 0, "%zu bytes of %s", room, error);
    PROMISE(cut[room] == 'x', "%zu bytes of %s", room, error);
}

/* Every error there is, and then the same verdict as with one. */
static void promise_complaint(const char *line, void *context)
{
    promise_error(line, context);
}

/* The input as the value of CUDAPOOL_CONFIG, and as an argument of --set. */
static void read_text(const uint8_t *data, size_t bytes)
{
    static struct settings settings, untouched;
    char error[ERROR_BYTES], *text = malloc(bytes + 2);
    const char *const assignments[] = {text + 1};

    PROMISE(text != NULL, "no memory");
    text[0] = '{';
    memcpy(text + 1, data, bytes);
    text[bytes + 1] = '\0';
    settings_defaults(&untouched);
    settings = untouched;
    if (config_read(text[1] == '{' ? text + 1 : text, &settings, error, sizeof(error)) != 0) {
        promise_error(error, "CUDAPOOL_CONFIG");
        PROMISE(is_untouched(&settings, &untouched, sizeof(settings)), "%s", error);
    }
    settings = untouched;
    if (config_set(assignments, 1, &settings, promise_complaint, "--set") == 0) {
        write_and_read_again(&settings);
    } else {
        PROMISE(is_untouched(&settings, &untouched, sizeof(settings)), "%s", error);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct settings settings, untouched;
    char error[ERROR_BYTES];

    read_text(data, bytes);
    memory_file_set(&input, data, bytes);
    memset(&untouched, 0x5a, sizeof(untouched));
    settings = untouched;
    if (config_read_file(input.path, &settings, error, sizeof(error)) == 0) {
        promise_settings(&settings);
        return 0;
    }
    PROMISE(config_read_patiently(input.path, &settings, promise_complaint, input.path) != 0, "%s",
            error);
    promise_error(error, input.path);
    PROMISE(is_untouched(&settings, &untouched, sizeof(settings)), "%s", error);
    promise_cut_off(error, bytes % 128);
    return 0;
}
