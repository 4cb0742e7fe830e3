/*
 * Random programs: what one consists of, and how a seed makes one.
 *
 * A program is a list of steps. A step names slots (of contexts, streams, events, buffers ...), not
 * handles, and means whatever is legal with what the slots hold when it is reached, so every part
 * of a program is a program: that is what makes shrinking simple.
 */
#ifndef TESTS_RANDOM_PROGRAM_H
#define TESTS_RANDOM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum step_kind {
#define STEP(name, weight) STEP_##name,
#include "steps.def"
#undef STEP
    STEP_KINDS
};

struct step {
    uint8_t kind, thread, a, b, c, d;
    uint32_t x, y;
};

enum { THREADS = 4, DEVICES = 3 };

/* What all programs of one process have in common; a seed's. */
struct profile {
    unsigned int devices, threads;
    unsigned int steps;     /* of one program */
    uint64_t device_bytes;  /* each device's memory */
    uint64_t largest;       /* bytes that one buffer may have */
    bool several_contexts;  /* else only device 0's primary one, and its green ones */
    bool captures, flags;   /* programs capture; have kernels that wait for a flag */
    bool allocates;         /* captures may allocate (captures.allocate), which they may not without
                             * the pool: there is no comparison with the plain run */
    bool splits;            /* the pool cuts blocks out of larger ones: none is exported */
    bool locks;             /* take locks that work needs in order to end */
    bool free_synchronizes; /* programs lean on cuMemFree's wait */
    bool limited;           /* a hard limit: there is no comparison with the plain run */
    bool races;             /* the simulator's race detector looks on */
    bool judged_waits;      /* and judges whether the pool waits for more than the driver would */
    bool free;              /* its threads run freely; else they take turns */
    /* Memory is nearly full and runs out: whole pages, nothing rounded, so that it does so alike.
     * Stream-ordered memory comes in sizes that have chunks of the driver's pools to themselves. */
    bool full, full_of_streams;
    unsigned int rounding; /* a block takes up to 1 + 1/rounding times what was asked for */
    uint32_t smallest;     /* and at least so much */
    char settings[2048];   /* of the pool: JSON */
};

struct random {
    uint64_t state;
};
uint32_t random_next(struct random *random);
/* A number from 0 to count - 1. */
uint32_t random_below(struct random *random, uint32_t count);

/* How the programs of a run are: threads run freely; captures may allocate in every program. */
enum way { FREELY = 1, ALLOCATING = 2 };

void make_profile(struct profile *profile, uint64_t seed, unsigned int ways);

/* Fills steps[0..profile->steps - 1] with the nth program of the seed. */
void make_program(const struct profile *profile, uint64_t seed, uint64_t nth, struct step *steps);

extern const char *const step_names[STEP_KINDS];

#endif
