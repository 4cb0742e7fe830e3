/*
 * Asks processes to release what they cache (trimming.h).
 */
#include "trimming.h"

#include <stdio.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/base/process.h"
#include "core/base/readable.h"
#include "core/housekeeper/housekeeper.h"

/* --- asking -------------------------------------------------------------------------------------
 */

static bool continues_a_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

void trimming_name(const char *command, char *name, size_t bytes)
{
    size_t program = strcspn(command, " "), length;

    while (program > 0 && command[program - 1] != '/')
        program--;
    command = command[0] != '\0' ? command + program : "?";
    length = strlen(command);
    if (length >= bytes) {
        length = bytes - 4;
        while (length > 0 && continues_a_character(command[length]))
            length--;
    }
    memcpy(name, command, length);
    memcpy(name + length, command[length] != '\0' ? "..." : "", command[length] != '\0' ? 4 : 1);
    make_printable(name, bytes);
}

/* Returns the bytes that the process caches, as its figures or else the board says. */
static uint64_t kept_by(const struct watched *watched)
{
    struct rates rates = rates_of_process(watched);

    return saturating_sum(rates.cached, rates.pending);
}

/* Returns the outcome for a process that was not asked. */
static enum trim_outcome outcome_unasked(const struct trimming *trimming,
                                         const struct watched *watched)
{
    if (trimming->kept == 0)
        return TRIM_DONE;
    if (!watched->on_board)
        return TRIM_ALONE;
    if (watched->shared.listens)
        return TRIM_REFUSED;
    return trimming->kept > HOUSEKEEPER_BYTES ? TRIM_NO_ANSWERER : TRIM_LITTLE;
}

const char *trimming_why_alone(const struct report *report)
{
    if (!report->settings.neighbours.enabled)
        return "neighbours.enabled is false there";
    if (report->housekeeper.board == BOARD_REFUSED)
        return report->housekeeper.board_why;
    return "it is not on the board of this /dev/shm";
}

struct trimming trimming_begin(const struct view *view, const struct watched *watched,
                               const unsigned char *uuid)
{
    struct trimming trimming = {
        .process = watched->identity,
        .is_elsewhere = watched->identity.pid_namespace != view->own_pid_namespace,
        .kept = kept_by(watched),
    };
    const char *why = watched->on_board ? "it has ended" : trimming_why_alone(watched->report);

    trimming_name(watched->report->process.command, trimming.name, sizeof(trimming.name));
    if (watched->on_board && watched->shared.listens)
        trimming.demand = board_trim(view->board, &watched->shared, uuid, &why);
    trimming.outcome =
        trimming.demand != NULL ? TRIM_UNDER_WAY : outcome_unasked(&trimming, watched);
    snprintf(trimming.why, sizeof(trimming.why), "%s", why == NULL ? "" : why);
    make_printable(trimming.why, sizeof(trimming.why));
    return trimming;
}

/* --- answers ------------------------------------------------------------------------------------
 */

void trimming_look(struct trimming *trimming)
{
    if (trimming->demand == NULL)
        return;
    struct board_progress progress = board_demand_look(trimming->demand);
    trimming->given = progress.given;
    trimming->pending = progress.pending;
    if (progress.silent > 0)
        trimming->outcome = !trimming->is_elsewhere && process_is_stopped(trimming->process.pid)
                                ? TRIM_STOPPED
                                : TRIM_SILENT;
    else
        trimming->outcome = progress.pending > 0 ? TRIM_UNDER_WAY : TRIM_DONE;
}

void trimming_end(struct trimming *trimming)
{
    if (trimming->demand != NULL)
        board_demand_end(trimming->demand);
    trimming->demand = NULL;
}

bool trimming_is_answered(const struct trimming *trimming)
{
    return trimming->outcome <= TRIM_LITTLE;
}

/* --- in words -----------------------------------------------------------------------------------
 */

void trimming_describe_bytes(uint64_t given, uint64_t pending, char *text, size_t bytes)
{
    char back[READABLE_BYTES] = "nothing", later[READABLE_BYTES];

    if (given == 0 && pending == 0) {
        snprintf(text, bytes, "nothing to give back");
        return;
    }
    if (given > 0)
        readable_bytes(given, back);
    readable_bytes(pending, later);
    if (pending > 0)
        snprintf(text, bytes, "%s back, %s still in use by the GPU", back, later);
    else
        snprintf(text, bytes, "%s back", back);
}

/* Returns why the process has released nothing. */
static const char *reason_of(const struct trimming *trimming)
{
    switch (trimming->outcome) {
    case TRIM_LITTLE:
        return "too little to be asked for";
    case TRIM_SILENT:
        return "no answer within 100 ms";
    case TRIM_STOPPED:
        return "no answer, it is stopped";
    case TRIM_REFUSED:
    case TRIM_ALONE:
        return trimming->why;
    case TRIM_NO_ANSWERER:
        return "it has no thread to answer with";
    default:
        return "";
    }
}

void trimming_describe(const struct trimming *trimming, char text[TRIMMING_BYTES])
{
    char done[TRIMMING_BYTES - 80], kept[READABLE_BYTES];

    readable_bytes(trimming->kept, kept);
    if (trimming->outcome <= TRIM_DONE)
        trimming_describe_bytes(trimming->given, trimming->pending, done, sizeof(done));
    else
        snprintf(done, sizeof(done), "keeps %s: %s", kept, reason_of(trimming));
    snprintf(text, TRIMMING_BYTES, "%lld %s: %s", (long long)trimming->process.pid, trimming->name,
             done);
}
