/*
 * Rows about physical memory and addresses apart: virtual_memory.c.
 */
#ifndef TESTS_CONFORMANCE_VIRTUAL_MEMORY_H
#define TESTS_CONFORMANCE_VIRTUAL_MEMORY_H

#include "conformance.h"

void maps_on_a_full_device(void);

#endif
