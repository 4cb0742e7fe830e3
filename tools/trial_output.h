/*
 * What the runs of a program wrote, for `cudapool try`: kept in one file without a name, so that
 * any number of runs needs one descriptor; and whether runs wrote the same.
 *
 * Lines that tell times and the like change from run to run by themselves: in a line that differs
 * among runs of one kind, numbers don't count.
 */
#ifndef CUDAPOOL_TOOLS_TRIAL_OUTPUT_H
#define CUDAPOOL_TOOLS_TRIAL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A zeroed one is empty. */
struct outputs {
    FILE *file; /* NULL: nothing was kept yet */
    size_t bytes;
};

/* Where the output of one run lies among them. */
struct kept_output {
    size_t at, bytes;
};

/* Copies what a file has from its start. 0, or the exit status after a complaint. */
int outputs_keep(struct outputs *outputs, FILE *from, struct kept_output *kept);
void outputs_free(struct outputs *outputs);

/* Where the outputs of two runs differ first: a line of each, cut to what a terminal shows, and not
 * yet escaped. */
#define OUTPUT_LINE_BYTES 160
struct output_difference {
    size_t line;
    bool is_there[2];
    char text[2][OUTPUT_LINE_BYTES];
};

/* The output that others are compared with, and the lines of it that change by themselves. */
struct output_reference {
    const char *all; /* the outputs, mapped */
    size_t mapped_bytes;
    struct kept_output output;
    bool *varies; /* by line */
};

/* Takes a run's output as the one to compare with. 0, or the exit status after a complaint; in
 * both cases the caller owes an output_reference_free. */
int output_reference_make(const struct outputs *outputs, const struct kept_output *output,
                          struct output_reference *reference);
void output_reference_free(struct output_reference *reference);

/* Whether a run wrote something else. Of a run that should be as the first (alike) numbers count
 * in no line, and where nothing else differs, those lines vary from then on. */
bool output_differs(struct output_reference *reference, const struct kept_output *output,
                    bool alike, struct output_difference *difference);

#endif
