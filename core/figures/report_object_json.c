/*
 * Reads objects of a report (report_object_json.h). Where a value is missing or wrong, the
 * functions write the error through document_json.h.
 */
#include "report_object_json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_t *object_value(const struct object *object, const char *key)
{
    const json_t *value = json_object_get(object->value, key);

    if (value == NULL)
        document_fail(object->document, object->place, "the key %s is missing", key);
    return value;
}

int object_refuse(const struct object *object, const char *key, const json_t *found,
                  const char *allowed)
{
    char place[PLACE_BYTES];

    place_of_key(place, object->place, key);
    return document_refuse(object->document, place, found, allowed);
}

int object_enter(const struct object *parent, const char *key, struct object *object)
{
    const json_t *value = object_value(parent, key);

    if (value == NULL)
        return -1;
    if (!json_is_object(value)) {
        object_refuse(parent, key, value, "an object");
        return -1;
    }
    object->document = parent->document;
    object->value = value;
    place_of_key(object->place, parent->place, key);
    return 0;
}

int object_enter_item(const struct object *parent, const char *key, const json_t *array,
                      size_t index, struct object *object)
{
    char place[PLACE_BYTES];

    place_of_key(place, parent->place, key);
    place_of_item(object->place, place, index);
    object->document = parent->document;
    object->value = json_array_get(array, index);
    if (json_is_object(object->value))
        return 0;
    return document_refuse(object->document, object->place, object->value, "an object");
}

static bool digits_to_count(const char *text, uint64_t *count)
{
    uint64_t value = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (unsigned)(*text - '0'), &value))
            return false;
    }
    *count = value;
    return true;
}

int report_count_from_json(const json_t *value, uint64_t *count)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *count = (uint64_t)json_integer_value(value);
        return 0;
    }
    return json_is_string(value) && digits_to_count(json_string_value(value), count) ? 0 : -1;
}

int object_read_count(const struct object *object, const char *key, uint64_t *count)
{
    const json_t *value = object_value(object, key);

    if (value == NULL)
        return -1;
    return report_count_from_json(value, count) == 0
               ? 0
               : object_refuse(object, key, value, REPORT_COUNT_ALLOWED);
}

int object_read_text(const struct object *object, const char *key, char *text, size_t bytes)
{
    char allowed[64];
    const json_t *value = object_value(object, key);

    if (value == NULL)
        return -1;
    if (json_is_string(value) && json_string_length(value) < bytes) {
        memcpy(text, json_string_value(value), json_string_length(value) + 1);
        return 0;
    }
    snprintf(allowed, sizeof(allowed), "a string of fewer than %zu bytes", bytes);
    return object_refuse(object, key, value, allowed);
}

int object_read_integer(const struct object *object, const char *key, int64_t least, int64_t most,
                        int64_t *result)
{
    char allowed[80];
    const json_t *value = object_value(object, key);

    if (value == NULL)
        return -1;
    if (json_is_integer(value) && json_integer_value(value) >= least &&
        json_integer_value(value) <= most) {
        *result = json_integer_value(value);
        return 0;
    }
    snprintf(allowed, sizeof(allowed), "an integer from %lld to %lld", (long long)least,
             (long long)most);
    return object_refuse(object, key, value, allowed);
}

int object_refuse_unknown_keys(const struct object *object, const char *const *known)
{
    char place[PLACE_BYTES];
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object->value, key, value)
    {
        const char *const *candidate = known;
        while (*candidate != NULL && strcmp(*candidate, key) != 0)
            candidate++;
        if (*candidate != NULL)
            continue;
        place_of_key(place, object->place, key);
        return document_fail(object->document, place, "unknown key in a report of version %d",
                             REPORT_VERSION);
    }
    return 0;
}

bool object_leaves_out(const struct object *object, const char *key, bool may)
{
    return may && json_object_get(object->value, key) == NULL;
}

const json_t *object_array(const struct object *object, const char *key, size_t element_bytes,
                           void **elements)
{
    const json_t *value = object_value(object, key);

    if (value == NULL)
        return NULL;
    if (!json_is_array(value)) {
        object_refuse(object, key, value, "an array");
        return NULL;
    }
    *elements = calloc(json_array_size(value) + 1, element_bytes);
    if (*elements != NULL)
        return value;
    document_fail(object->document, object->place, "the report does not fit in memory");
    return NULL;
}
