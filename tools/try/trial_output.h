/*
 * Stores the outputs of a program's runs for `cudapool try`, and compares them. All outputs are in
 * one unnamed file, so that any number of runs needs one descriptor.
 *
 * Some lines change from run to run, for example a line that shows a time. If a line differs among
 * runs of one kind, such as runs without the pool, comparisons ignore its numbers. They also ignore
 * its spaces, which align numbers in columns.
 */
#ifndef CUDAPOOL_TOOLS_TRIAL_OUTPUT_H
#define CUDAPOOL_TOOLS_TRIAL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Empty if zeroed. */
struct outputs {
    FILE *file; /* NULL: no output yet */
    size_t bytes;
};

/* Where the output of one run lies in the file. */
struct output_span {
    size_t at, bytes;
};

/* Appends the contents of a file, read from its start. Returns 0. On failure, prints an error
 * message and returns the exit status. */
int outputs_append(struct outputs *outputs, FILE *from, struct output_span *kept);
void outputs_free(struct outputs *outputs);

/* The first line where the outputs of two runs differ, with the text of both. Index 0 is the
 * reference, index 1 the other run. Each text is cut to OUTPUT_LINE_BYTES, and not yet escaped. */
#define OUTPUT_LINE_BYTES 160
struct output_difference {
    size_t line; /* counted from 1 */
    bool is_there[2];
    char text[2][OUTPUT_LINE_BYTES];
};

/* The output that others are compared with, and which of its lines change from run to run. */
struct output_reference {
    const char *all; /* all outputs, mapped */
    size_t mapped_bytes;
    struct output_span output;
    bool *varies; /* by line */
};

/* Makes a run's output the reference. Maps the outputs appended so far; output_differs compares
 * only these. Returns 0. On failure, prints an error message and returns the exit status. In both
 * cases the caller must call output_reference_free. */
int output_reference_make(const struct outputs *outputs, const struct output_span *output,
                          struct output_reference *reference);
void output_reference_free(struct output_reference *reference);

/* Returns whether a run's output differs from the reference, and stores where in difference. alike:
 * the run and the reference are of one kind. Then the comparison ignores the numbers of all lines.
 * If nothing else differs, it marks the lines with other numbers in varies. */
bool output_differs(struct output_reference *reference, const struct output_span *output,
                    bool alike, struct output_difference *difference);

#endif
