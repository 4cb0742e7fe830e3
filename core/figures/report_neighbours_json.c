/*
 * Limits and the housekeeper as JSON (report_neighbours_json.h): first writing, then reading.
 */
#include "report_neighbours_json.h"

#include <string.h>

#include "report_json.h"

bool report_has_neighbours(const struct report_neighbours *neighbours)
{
    for (size_t i = 0; i < report_neighbour_counts.length; i++)
        if (report_count_value(&report_neighbour_counts.counts[i], neighbours) != 0)
            return true;
    return false;
}

/* ---- writing ---- */

int report_add_limits_to_json(json_t *object, const struct device_limits *limits)
{
    json_t *made;
    int status = 0;

    if (limits->device_from[0] == '\0' && limits->group_from[0] == '\0')
        return 0;
    made = json_object();
    if (limits->device_from[0] != '\0') {
        status |=
            json_object_set_new(made, "device_bytes", report_count_to_json(limits->device_bytes));
        status |= json_object_set_new(
            made, "device_from",
            json_string_of_any_bytes(limits->device_from, sizeof(limits->device_from)));
    }
    if (limits->group_from[0] != '\0') {
        status |= json_object_set_new(
            made, "group", json_string_of_any_bytes(limits->group, sizeof(limits->group)));
        status |=
            json_object_set_new(made, "group_bytes", report_count_to_json(limits->group_bytes));
        status |= json_object_set_new(
            made, "group_from",
            json_string_of_any_bytes(limits->group_from, sizeof(limits->group_from)));
    }
    return json_object_set_new(object, "limits", json_unless_failed(made, status));
}

static const char *const housekeeper_states[] = {
    [HOUSEKEEPER_NEVER] = "never", [HOUSEKEEPER_RUNS] = "runs",     [HOUSEKEEPER_WENT] = "went",
    [HOUSEKEEPER_OFF] = "off",     [HOUSEKEEPER_CANNOT] = "cannot", [HOUSEKEEPER_STATES] = NULL,
};

static const char *const board_states[] = {
    [BOARD_NOT_TRIED] = "not tried",
    [BOARD_JOINED] = "joined",
    [BOARD_REFUSED] = "refused",
    [BOARD_STATES] = NULL,
};

json_t *report_housekeeper_to_json(const struct report_housekeeper *housekeeper)
{
    json_t *object = json_object();
    int status =
        json_object_set_new(object, "state", json_string(housekeeper_states[housekeeper->state]));

    status |= json_object_set_new(object, "wakeups", report_count_to_json(housekeeper->wakeups));
    status |= json_object_set_new(object, "board", json_string(board_states[housekeeper->board]));
    if (housekeeper->board == BOARD_REFUSED)
        status |= json_object_set_new(
            object, "board_why",
            json_string_of_any_bytes(housekeeper->board_why, sizeof(housekeeper->board_why)));
    return json_unless_failed(object, status);
}

/* ---- reading ---- */

/* Reads a limit and the name of what sets it. Either both keys are there, or neither is. A group's
 * limit also comes with the group's name (report_read_limits). */
static int read_limit(const struct object *limits, const char *bytes_key, const char *from_key,
                      uint64_t *bytes, char from[LIMIT_NAME_BYTES])
{
    if (json_object_get(limits->value, bytes_key) == NULL &&
        json_object_get(limits->value, from_key) == NULL)
        return 0;
    if (object_read_count(limits, bytes_key, bytes) != 0)
        return -1;
    return object_read_text(limits, from_key, from, LIMIT_NAME_BYTES);
}

int report_read_limits(const struct object *object, struct device_limits *limits)
{
    static const char *const known[] = {"device_bytes", "device_from", "group",
                                        "group_bytes",  "group_from",  NULL};
    struct object entered;

    limits->device_bytes = UINT64_MAX;
    limits->group_bytes = UINT64_MAX;
    if (object_leaves_out(object, "limits", true))
        return 0;
    if (object_enter(object, "limits", &entered) != 0 ||
        object_refuse_unknown_keys(&entered, known) != 0 ||
        read_limit(&entered, "device_bytes", "device_from", &limits->device_bytes,
                   limits->device_from) != 0 ||
        read_limit(&entered, "group_bytes", "group_from", &limits->group_bytes,
                   limits->group_from) != 0)
        return -1;
    if (limits->group_from[0] == '\0' && json_object_get(entered.value, "group") == NULL)
        return 0;
    return object_read_text(&entered, "group", limits->group, sizeof(limits->group));
}

/* Reads a word and writes its index in words, which end with NULL. */
static int read_word(const struct object *object, const char *key, const char *const *words,
                     const char *allowed, unsigned *number)
{
    const json_t *value = object_value(object, key);
    const char *word = json_string_value(value);

    if (value == NULL)
        return -1;
    for (*number = 0; word != NULL && words[*number] != NULL; ++*number)
        if (strcmp(words[*number], word) == 0)
            return 0;
    return object_refuse(object, key, value, allowed);
}

int report_read_housekeeper(const struct object *object, struct report_housekeeper *housekeeper)
{
    static const char *const known[] = {"state", "wakeups", "board", "board_why", NULL};
    struct object entered;
    unsigned state = 0, board = 0;

    if (object_leaves_out(object, "housekeeper", true))
        return 0;
    if (object_enter(object, "housekeeper", &entered) != 0 ||
        object_refuse_unknown_keys(&entered, known) != 0 ||
        read_word(&entered, "state", housekeeper_states, "never, runs, went, off or cannot",
                  &state) != 0 ||
        object_read_count(&entered, "wakeups", &housekeeper->wakeups) != 0 ||
        read_word(&entered, "board", board_states, "not tried, joined or refused", &board) != 0)
        return -1;
    housekeeper->state = (enum housekeeper_state)state;
    housekeeper->board = (enum board_state)board;
    if (housekeeper->board != BOARD_REFUSED)
        return 0;
    return object_read_text(&entered, "board_why", housekeeper->board_why,
                            sizeof(housekeeper->board_why));
}
