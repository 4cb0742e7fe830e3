/*
 * What stands in the board's file (board.h): a header, and a slot for each process.
 *
 * Integers of fixed size at their natural places, all of them atomic, since any process may write
 * any of them at any time. Whoever moves a word changes BOARD_VERSION, which is in the file's name:
 * processes of two versions are on two boards. A word that was unused may get a meaning, in which 0
 * says nothing.
 */
#ifndef CUDAPOOL_CORE_BOARD_LAYOUT_H
#define CUDAPOOL_CORE_BOARD_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "board.h"

#define BOARD_MAGIC   UINT64_C(0x6472616f62707563) /* "cupboard", the lowest byte first */
#define BOARD_VERSION 1

typedef _Atomic(uint64_t) board_word;
typedef _Atomic(uint32_t) board_half;

/* A device of which a process had memory that has ended. */
struct board_ended {
    board_word uuid[2];
    board_word at; /* when that was found: nanoseconds of the monotonic clock; 0: never */
};
#define BOARD_ENDED 64u

struct board_header {
    board_word magic;    /* BOARD_MAGIC, once the file has its length */
    board_half used;     /* slots that were ever taken; those behind them need not be looked at */
    board_half unused_1; /* so that words lie at their natural places */
    struct board_ended ended[BOARD_ENDED];
    board_word unused[318];
};

/* A device that a process has to do with. Its memory, as the process accounts for it, is what is
 * handed out and what is kept for the next request. */
struct board_slot_device {
    board_word uuid[2];
    board_word cached, pending;  /* what others can have of it: at once, after the GPU is past it */
    board_word held, tentative;  /* of the group's limit (board_group.c) */
    board_word given;            /* to others so far */
    board_half raises, reserved; /* how often tentative was raised, modulo 2^32 */
};

enum board_entry_kind { BOARD_RECLAIM = 1, BOARD_TRIM = 2, BOARD_TELL = 3 };

/* A demand, as far as it concerns one process: in the slot of who asks. */
struct board_entry {
    board_half open; /* 1: it counts. The release store pairs with the acquire load of who is asked,
                        for what stands below */
    board_half kind;
    board_half slot;    /* of who is asked; BOARD_EVERYBODY: of all */
    board_half number;  /* of the demand, of who asks, modulo 2^32 */
    board_word token;   /* of who is asked */
    board_word uuid[2]; /* 0: every device */
    board_word bytes;   /* wanted */
    board_word served;  /* given so far; counted by who is asked */
};
#define BOARD_ENTRIES   48u
#define BOARD_EVERYBODY UINT32_MAX

/* Whether somebody answers demands. Who comes to its end answers nobody any more, but what it has
 * is the driver's as soon as it is over: so that counts as pending until then. */
enum board_listens { BOARD_DEAF, BOARD_LISTENS, BOARD_ENDS };

/* Who has the lock on byte N of the file owns slot N. */
struct board_slot {
    /* A random number, which tells the owner from those before and after; 0: nobody's. Stored last
     * when the slot is taken, first when it is cleared. */
    board_word token;
    board_half pid;
    board_half listens;      /* enum board_listens */
    board_half device_count; /* stored after the device's uuid */
    /* Counts up whenever somebody asks, or the process itself wakes its housekeeper, modulo 2^32;
     * the word on which that sleeps. And up to which count all demands have been looked at: the
     * word on which those sleep who have asked. */
    board_half wake, answered;
    board_half visits; /* 1: a tool, which has no memory to give */
    board_word pid_namespace, start_ticks;
    board_word group[BOARD_GROUP_BYTES / 8]; /* text; 0: none */
    board_word unused[18];
    struct board_slot_device devices[BOARD_DEVICES];
    struct board_entry entries[BOARD_ENTRIES];
    /* Of what is pending on each of the devices: freed in a stream's order, so that nobody waits
     * for it. 0 in slots of processes that do not tell. */
    board_word in_order[BOARD_DEVICES];
};

struct board_map {
    struct board_header header;
    struct board_slot slots[BOARD_SLOTS];
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "a lock in a shared file would be another one in each process");
_Static_assert(sizeof(struct board_header) == 4096, "slots begin with a page");
_Static_assert(sizeof(struct board_slot_device) == 64, "no two devices share a cache line");
_Static_assert(sizeof(struct board_slot) == 4096, "a slot is a page");

#endif
