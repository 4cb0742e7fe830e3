/*
 * Another process that follows orders, for rows of other files: processes.c.
 */
#ifndef TESTS_CONFORMANCE_PROCESSES_H
#define TESTS_CONFORMANCE_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>

/* What the helper answers: a process of its own, with the pool where this one has it, started when
 * there is none. -1 where it ends instead. False if there can be none; why has been said. */
bool ask_helper(const char *order, size_t number, double *answer);
/* Ends it, if there is one. */
void end_helper(void);

#endif
