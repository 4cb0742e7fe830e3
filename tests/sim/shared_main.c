/*
 * Says what the processes that share simulated devices (SIMCUDA_SHARED=FILE) hold of them.
 *
 * usage: shared FILE      a line for each device that was ever used:
 *                             device ORDINAL total BYTES held BYTES peak BYTES
 *                         and one for each process that holds memory of it:
 *                             device ORDINAL pid PID held BYTES
 *                         peak: the most that living processes ever held of it together
 *        shared -w FILE   waits until no process holds anything, for 10 seconds at most
 *
 * Exits 2 where FILE is not such a file, and 1 where somebody still holds memory after the wait.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shared.h"

static void show(unsigned int device)
{
    struct shared_bytes bytes = shared_look(device);
    uint64_t held;
    pid_t pid;
    if (bytes.peak == 0)
        return;
    printf("device %u total %" PRIu64 " held %" PRIu64 " peak %" PRIu64 "\n", device, bytes.total,
           bytes.held, bytes.peak);
    for (unsigned int i = 0; i < SHARED_SLOTS; i++)
        if (shared_slot(i, device, &pid, &held) && held > 0)
            printf("device %u pid %d held %" PRIu64 "\n", device, (int)pid, held);
}

static uint64_t held_of_all(void)
{
    uint64_t held = 0;
    for (unsigned int i = 0; i < SHARED_DEVICES; i++)
        held += shared_look(i).held;
    return held;
}

static int wait_for_all(void)
{
    const struct timespec pause = {0, 1000000};
    for (int i = 0; i < 10000; i++) {
        if (held_of_all() == 0)
            return 0;
        nanosleep(&pause, NULL);
    }
    return 1;
}

int main(int argc, char **argv)
{
    bool waits = argc == 3 && strcmp(argv[1], "-w") == 0;
    if (argc != 2 + waits) {
        fprintf(stderr, "usage: shared [-w] FILE\n");
        return 2;
    }
    if (!shared_visit(argv[argc - 1]))
        return 2;
    if (waits)
        return wait_for_all();
    for (unsigned int i = 0; i < SHARED_DEVICES; i++)
        show(i);
    return 0;
}
