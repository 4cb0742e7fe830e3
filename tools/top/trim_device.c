/*
 * Finds the device that is meant (trim_device.h).
 */
#include "trim_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/figures/figures_report.h"
#include "tools/command/complaint.h"

/* Most digits of a device's number. */
#define NUMBER_MOST 4

/* Length of "GPU-" and "MIG-". The driver gives only the rest of a UUID. */
#define PREFIX_BYTES 4

static bool is_number(const char *text)
{
    size_t digits = strspn(text, "0123456789");

    return digits > 0 && digits <= NUMBER_MOST && text[digits] == '\0';
}

static bool is_uuid(const char *text)
{
    if (strncmp(text, "GPU-", PREFIX_BYTES) != 0 && strncmp(text, "MIG-", PREFIX_BYTES) != 0)
        return false;
    size_t digits = strspn(text + PREFIX_BYTES, "0123456789abcdefABCDEF-");
    return digits > 0 && digits < REPORT_UUID_BYTES - PREFIX_BYTES &&
           text[PREFIX_BYTES + digits] == '\0';
}

int trim_device_check(const char *text)
{
    if (is_number(text) || is_uuid(text))
        return 0;
    return complain("trim: --device: found \"%s\", allowed is a number, or the beginning of a UUID "
                    "such as GPU-5fd4f087",
                    text);
}

/* --- the devices of all processes ---------------------------------------------------------------
 */

/* The first two devices that match the text. A second one shows that the text is ambiguous. */
struct search {
    const char *text;
    char uuids[2][REPORT_UUID_BYTES];
    unsigned count; /* count <= 2 */
};

static void take(struct search *search, const char *uuid)
{
    for (unsigned i = 0; i < search->count; i++)
        if (strcmp(search->uuids[i], uuid) == 0)
            return;
    if (search->count < 2)
        snprintf(search->uuids[search->count++], REPORT_UUID_BYTES, "%s", uuid);
}

/* Whether the driver has told the device's UUID. All zeroes stand for every device (board_trim). */
static bool is_told(const char *uuid)
{
    return strpbrk(uuid, "123456789abcdef") != NULL;
}

/* Returns whether the text is the beginning of the UUID. The letters before the first dash do not
 * count, since the pool writes "GPU-" for MIG instances too. */
static bool begins_as(const char *uuid, const char *text)
{
    return is_uuid(text) && is_told(uuid) &&
           strncasecmp(uuid + PREFIX_BYTES, text + PREFIX_BYTES, strlen(text + PREFIX_BYTES)) == 0;
}

/* Searches the figures, which say the number of each device in the process. */
static void search_figures(struct search *search, const struct report *report)
{
    for (size_t i = 0; i < report->device_count; i++) {
        const struct report_device *device = &report->devices[i];
        bool is_meant = is_number(search->text) ? strtol(search->text, NULL, 10) == device->ordinal
                                                : begins_as(device->uuid, search->text);
        if (is_meant && is_told(device->uuid))
            take(search, device->uuid);
    }
}

/* Searches the board, which has only the UUID of each device. So a number matches nothing here. */
static void search_board(struct search *search, const struct board_process *process)
{
    char uuid[REPORT_UUID_BYTES];

    for (unsigned i = 0; i < process->device_count; i++) {
        report_write_uuid(process->devices[i].uuid, uuid, sizeof(uuid));
        if (begins_as(uuid, search->text))
            take(search, uuid);
    }
}

/* Reads the bytes of a UUID that report_write_uuid has written. The result for any other text is
 * unspecified. */
static void read_bytes(const char *uuid, unsigned char bytes[16])
{
    static const char digits[] = "0123456789abcdef";
    unsigned filled = 0;

    memset(bytes, 0, 16);
    for (const char *c = uuid + PREFIX_BYTES; *c != '\0' && filled < 32; c++) {
        const char *digit = strchr(digits, *c);
        if (digit == NULL)
            continue;
        unsigned value = (unsigned)(digit - digits);
        bytes[filled / 2] = (unsigned char)(bytes[filled / 2] | value << (filled % 2 == 0 ? 4 : 0));
        filled++;
    }
}

int trim_device_find(const char *text, const struct view *view, struct trim_device *device)
{
    struct search search = {.text = text};

    for (size_t i = 0; i < view->count; i++) {
        search_figures(&search, view->watched[i].report);
        if (view->watched[i].on_board)
            search_board(&search, &view->watched[i].shared);
    }
    if (search.count == 0)
        return complain("trim: --device: found \"%s\", and no process has memory there", text);
    if (search.count > 1)
        return complain("trim: --device: \"%s\" is not the same device for all processes: found %s "
                        "and %s; allowed is the beginning of one of them",
                        text, search.uuids[0], search.uuids[1]);
    device->is_one = true;
    snprintf(device->text, sizeof(device->text), "%s", search.uuids[0]);
    read_bytes(device->text, device->uuid);
    return 0;
}

const unsigned char *trim_device_uuid(const struct trim_device *device)
{
    return device->is_one ? device->uuid : NULL;
}

bool trim_device_is_of(const struct trim_device *device, const struct watched *watched)
{
    if (!device->is_one)
        return true;
    for (unsigned i = 0; watched->on_board && i < watched->shared.device_count; i++)
        if (memcmp(watched->shared.devices[i].uuid, device->uuid, sizeof(device->uuid)) == 0)
            return true;
    for (size_t i = 0; i < watched->report->device_count; i++)
        if (strcmp(watched->report->devices[i].uuid, device->text) == 0)
            return true;
    return false;
}
