/*
 * Rows about the bytes that a memory pool says are used: pool_figures.c.
 */
#ifndef TESTS_CONFORMANCE_POOL_FIGURES_H
#define TESTS_CONFORMANCE_POOL_FIGURES_H

#include "conformance.h"

void used_bytes_are_what_was_asked_for(void);
void used_bytes_after_plain_frees(void);
void used_bytes_after_plain_frees_of_the_default_pool(void);

#endif
