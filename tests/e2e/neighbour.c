/*
 * A process on the board that has no pool: it says what it caches, and answers when it is asked, as
 * its arguments say. What the command shows and does is tested on it, without a GPU.
 *
 * usage: neighbour [uuid=HEX] [cached=BYTES] [pending=BYTES] [after=MILLISECONDS] [held=BYTES]
 *                  [group=NAME] [deaf | silent] [asks=BYTES]
 *   uuid     the first bytes of its device's
 *   after    how long after it was asked the GPU is past what is pending
 *   deaf     nobody listens
 *   silent   somebody should, and does not
 *   asks     it is out of memory itself, and asks others for so much
 * Prints "ready PID", and goes on until it is killed.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/board/board.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define DEVICE_BYTES (UINT64_C(1) << 36)

static struct neighbour {
    unsigned char uuid[16];
    uint64_t cached, pending, held, after, asks;
    const char *group;
    bool deaf, silent;
} self;

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void read_uuid(const char *text)
{
    for (size_t i = 0; i < sizeof(self.uuid) && sscanf(text, "%2hhx", &self.uuid[i]) == 1; i++)
        text += 2;
}

static void read_argument(const char *argument)
{
    const char *value = strchr(argument, '=');
    static const struct {
        const char *name;
        uint64_t *number;
    } numbers[] = {{"cached=", &self.cached},
                   {"pending=", &self.pending},
                   {"held=", &self.held},
                   {"after=", &self.after},
                   {"asks=", &self.asks}};

    if (strncmp(argument, "uuid=", 5) == 0)
        read_uuid(value + 1);
    else if (strncmp(argument, "group=", 6) == 0)
        self.group = value + 1;
    else if (strcmp(argument, "deaf") == 0)
        self.deaf = true;
    else if (strcmp(argument, "silent") == 0)
        self.silent = true;
    else
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
            if (strncmp(argument, numbers[i].name, strlen(numbers[i].name)) == 0)
                *numbers[i].number = strtoull(value + 1, NULL, 10);
}

/* Gives what it can at once, and later what was pending then. */
static void answer(struct board *board, int device)
{
    uint64_t past = UINT64_MAX;

    for (;;) {
        board_sleep(board, past);
        struct board_wish wish = board_take(board, device);
        uint64_t given = self.cached < wish.bytes ? self.cached : wish.bytes;
        self.cached -= given;
        if (wish.bytes > 0 && past == UINT64_MAX && self.pending > 0)
            past = now() + self.after * 1000000u;
        if (now() >= past) {
            given += self.pending;
            self.pending = 0;
            past = UINT64_MAX;
        }
        board_publish(board, device, self.cached, self.pending);
        board_give(board, device, given);
        board_answered(board);
    }
}

int main(int argc, char **argv)
{
    const char *why = NULL;

    for (int i = 1; i < argc; i++)
        read_argument(argv[i]);
    struct board *board = board_join(self.group, &why);
    if (board == NULL) {
        fprintf(stderr, "neighbour: %s\n", why);
        return 1;
    }
    int device = board_device(board, self.uuid);
    CHECK(device >= 0);
    CHECK(self.held == 0 || board_group_take(board, device, self.held, DEVICE_BYTES));
    board_publish(board, device, self.cached, self.pending);
    if (!self.deaf)
        board_publish_listening(board, BOARD_LISTENS);
    if (self.asks > 0)
        CHECK(board_ask(board, device, DEVICE_BYTES, self.asks, 0, false, NULL) != NULL);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    while (self.deaf || self.silent)
        pause();
    answer(board, device);
}
