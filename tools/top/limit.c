/*
 * cudapool limit: changes how much device memory running processes may take.
 */
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/readable.h"
#include "core/figures/figures_report.h"
#include "core/settings/limits.h"
#include "core/settings/quantity_json.h"
#include "tools/command/command_line.h"
#include "tools/command/tool.h"
#include "top_watch.h"
#include "trimming.h"

struct order {
    struct view view;
    const char *group; /* NULL: the process is meant */
    long long pid;
    bool is_here;   /* a process of this pid namespace has the number */
    uint64_t bytes; /* BOARD_LIMIT_AT_START: as the process began */
};

/* --- the words ---------------------------------------------------------------------------------
 */

static int read_size(const char *text, uint64_t *bytes)
{
    if (strcmp(text, "settings") == 0) {
        *bytes = BOARD_LIMIT_AT_START;
        return 0;
    }
    if (bytes_from_text(text, bytes) && *bytes >= LIMIT_LEAST && *bytes != BOARD_LIMIT_AT_START)
        return 0;
    return complain("limit: size: found \"%s\", allowed is a size such as 20GiB, 1MiB at least, or "
                    "the word settings",
                    text);
}

static int read_group(const char *name)
{
    if (*name != '\0' && strlen(name) < BOARD_GROUP_BYTES)
        return 0;
    return complain("limit: --group: found \"%s\", allowed is a name of 1 to %u bytes", name,
                    BOARD_GROUP_BYTES - 1);
}

static const struct option known_options[] = {{"group", required_argument, NULL, 'g'}, {0}};

static int read_order(int argc, char **argv, struct order *order)
{
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, ":", known_options, NULL)) != -1) {
        if (option != 'g')
            return refuse_option("limit", known_options, option, argv[optind - 1],
                                 "allowed is --group NAME");
        order->group = optarg;
        status = read_group(optarg);
    }
    if (status != 0)
        return status;
    int words = order->group == NULL ? 2 : 1;
    if (argc - optind != words)
        return complain("limit: found %d words, allowed are PID SIZE, or --group NAME SIZE",
                        argc - optind);
    if (order->group == NULL)
        status = read_number("limit", "process", argv[optind], 1, INT32_MAX, &order->pid);
    return status == 0 ? read_size(argv[argc - 1], &order->bytes) : status;
}

/* --- the processes ------------------------------------------------------------------------------
 */

/* The board is the user's. So root becomes the user whose process it is. */
static int become_its_user(long long pid)
{
    char path[40];
    struct stat found;

    snprintf(path, sizeof(path), "/proc/%lld", pid);
    if (geteuid() != 0 || stat(path, &found) != 0 || found.st_uid == 0)
        return 0;
    if (setgroups(0, NULL) == 0 && setresgid(found.st_gid, found.st_gid, found.st_gid) == 0 &&
        setresuid(found.st_uid, found.st_uid, found.st_uid) == 0)
        return 0;
    complain("limit: process %lld is another user's: %s", pid, strerror(errno));
    return EXIT_FAILURE;
}

static bool is_meant(const struct order *order, const struct watched *watched)
{
    if (order->group == NULL)
        return watched->identity.pid == order->pid &&
               (!order->is_here ||
                watched->identity.pid_namespace == order->view.own_pid_namespace);
    return watched->on_board && strcmp(watched->shared.group, order->group) == 0;
}

/* Returns the most that the process has of one device: of the pool, and beside it. */
static uint64_t most_held(const struct report *report)
{
    uint64_t most = 0;

    for (size_t i = 0; i < report->device_count; i++) {
        const struct report_device *device = &report->devices[i];
        uint64_t held = report_unpooled_live(&device->unpooled);
        for (size_t j = 0; j < device->kind_count; j++) {
            const struct report_counters *totals = &device->kinds[j].totals;
            if (report_kind_is_of_device(&device->kinds[j]))
                held += totals->live_bytes + totals->cached_bytes + totals->pending_bytes;
        }
        most = larger_of(most, held);
    }
    return most;
}

static void print_line(const struct order *order, const struct watched *watched)
{
    char name[64], limit[READABLE_BYTES], held[READABLE_BYTES];
    uint64_t most = most_held(watched->report);

    trimming_name(watched->report->process.command, name, sizeof(name));
    printf("%lld %s: ", (long long)watched->identity.pid, name);
    if (order->bytes == BOARD_LIMIT_AT_START) {
        puts("what its settings say");
        return;
    }
    readable_bytes(order->bytes, limit);
    readable_bytes(most, held);
    printf("%s of a device%s", limit, order->group == NULL ? "" : " for its group");
    if (order->group == NULL && most > order->bytes)
        printf("; it holds %s", held);
    putchar('\n');
}

/* Returns 0, or the exit status after a complaint that nobody can be told. */
static int look(struct order *order)
{
    int status = view_look(&order->view);

    if (status != 0 || order->view.board != NULL)
        return status;
    complain("limit: nobody can be told: %s", order->view.no_board);
    return EXIT_FAILURE;
}

static int tell_all(struct order *order)
{
    unsigned told = 0;

    for (size_t i = 0; i < order->view.count; i++) {
        const struct process_identity *identity = &order->view.watched[i].identity;
        order->is_here |=
            identity->pid == order->pid && identity->pid_namespace == order->view.own_pid_namespace;
    }
    for (size_t i = 0; i < order->view.count; i++) {
        const struct watched *watched = &order->view.watched[i];
        if (!is_meant(order, watched))
            continue;
        if (!watched->on_board) {
            complain("limit: process %lld cannot be told: %s", (long long)watched->identity.pid,
                     trimming_why_alone(watched->report));
            return EXIT_FAILURE;
        }
        if (board_set_limit(order->view.board, &watched->shared,
                            order->group == NULL ? BOARD_LIMIT_OF_PROCESS : BOARD_LIMIT_OF_GROUP,
                            order->bytes) == 0)
            continue;
        print_line(order, watched);
        told++;
    }
    if (told > 0)
        return finish_output(0);
    return order->group == NULL
               ? complain("limit: no process %lld of yours is on the pool", order->pid)
               : complain("limit: no process of yours in group \"%s\" is on the pool",
                          order->group);
}

static int limit(int argc, char **argv)
{
    struct order order = {0};
    int status = read_order(argc, argv, &order);

    if (status == 0 && order.group == NULL)
        status = become_its_user(order.pid);
    if (status == 0)
        status = look(&order);
    if (status == 0)
        status = tell_all(&order);
    view_free(&order.view);
    return status;
}

const struct command limit_command = {
    .name = "limit",
    .summary = "change how much running processes may take",
    .help =
        "usage: cudapool limit PID SIZE\n"
        "       cudapool limit --group NAME SIZE\n"
        "\n"
        "Changes the limit of a running process, or of all processes of a group together: how "
        "much\n"
        "of each device it may take. The limit holds for new requests. What is held stays: where\n"
        "that is more, requests are out of memory until enough was freed.\n"
        "\n"
        "  SIZE               such as 20GiB, 1MiB at least; or the word settings, for what the\n"
        "                     process began with\n"
        "  --group NAME       the processes with this limits.group\n"
        "\n"
        "A process that joins the group later has its limit while another one of it is there. A\n"
        "program has the limit of its parent, if that has one from this command. What "
        "cuMemCreate,\n"
        "arrays and managed memory took before counts if the process had a limit or writes a\n"
        "report.\n"
        "Root may limit every user's process by its PID, and a group as the user who runs it.\n"
        "\n"
        "Exit status: 0; 1 where a process cannot be told, or the output cannot be written; 2 for\n"
        "bad input, a process that is not on the pool among it.\n",
    .run = limit,
};
