/*
 * The contents of the board's file (board.h): a header, and one slot for each process.
 *
 * All fields are integers of fixed size at natural alignment. They are atomic, since any process
 * may write any of them at any time. A change that moves a field must change BOARD_VERSION, which
 * is part of the file's name: processes of two versions use two boards. An unused field may get a
 * meaning, if 0 in it then says nothing.
 */
#ifndef CUDAPOOL_CORE_BOARD_LAYOUT_H
#define CUDAPOOL_CORE_BOARD_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "board.h"

#define BOARD_MAGIC   UINT64_C(0x6472616f62707563) /* "cupboard", the lowest byte first */
#define BOARD_VERSION 2

typedef _Atomic(uint64_t) board_word;
typedef _Atomic(uint32_t) board_half;

/* A device of which a process that has ended had memory. */
struct board_ended {
    board_word uuid[2];
    board_word at; /* when the end was found: nanoseconds of the monotonic clock; 0: never */
};
#define BOARD_ENDED 64u

struct board_header {
    board_word magic;    /* BOARD_MAGIC, stored once the file has its full length */
    board_half used;     /* 1 + the highest slot ever taken; readers skip the slots after it */
    board_half unused_1; /* aligns the words after it */
    struct board_ended ended[BOARD_ENDED];
    board_word unused[318];
};

/* A device that a process uses. The process accounts for its memory as live (with the program),
 * cached and pending bytes. */
struct board_slot_device {
    board_word uuid[2];
    board_word cached, pending;  /* what others can have: at once; once GPU work has completed */
    board_word held, tentative;  /* of the group's limit, see board_group.c */
    board_word given;            /* to other processes so far */
    board_half raises, reserved; /* how often tentative was raised, modulo 2^32 */
};

enum board_entry_kind { BOARD_RECLAIM = 1, BOARD_TRIM = 2, BOARD_TELL = 3 };

/* The part of a demand that concerns one process. It lies in the slot of the asking process. */
struct board_entry {
    board_half open; /* 1: the entry is valid. The release store pairs with the acquire load of the
                        process that is asked, for the fields below */
    board_half kind;
    board_half slot;    /* of the process that is asked; BOARD_EVERYBODY: of all */
    board_half number;  /* of the demand, as the asking process counts them, modulo 2^32 */
    board_word token;   /* of the process that is asked */
    board_word uuid[2]; /* 0: every device */
    board_word bytes;   /* wanted */
    board_word served;  /* given so far; counted by the process that is asked */
};
#define BOARD_ENTRIES   47u
#define BOARD_EVERYBODY UINT32_MAX

/* The process that holds the lock on byte N of the file owns slot N. */
struct board_slot {
    /* A random number that tells the slot's owner from earlier and later ones; 0: the slot is free.
     * It is stored last when the slot is taken, and first when the slot is cleared. */
    board_word token;
    board_half pid;
    board_half listens;      /* enum board_listens */
    board_half device_count; /* stored after the new device's uuid */
    /* wake counts up, modulo 2^32, whenever another process asks or this process wakes its
     * housekeeper. The housekeeper sleeps on this word. answered is the value of wake up to which
     * all demands were looked at. Processes that have asked sleep on this word. */
    board_half wake, answered;
    board_half visits; /* 1: a tool, which has no memory to give */
    board_word pid_namespace, start_ticks;
    board_word group[BOARD_GROUP_BYTES / 8];        /* text; 0: no group */
    board_word limits[BOARD_LIMITS], limit_changes; /* see board_limit.c */
    board_word unused[5];
    /* Of an ending process: since when, in nanoseconds of the monotonic clock, and how much of each
     * device the driver has once the process has ended. 0: not published. */
    board_word ends_since, at_end[BOARD_DEVICES];
    struct board_slot_device devices[BOARD_DEVICES];
    struct board_entry entries[BOARD_ENTRIES];
    /* The part of each device's pending bytes that was freed in stream order, so that nobody waits
     * for it. 0 in slots of processes that do not publish this. */
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
