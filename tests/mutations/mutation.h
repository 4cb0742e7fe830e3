/*
 * Mutations: rules of the pool that a build of its own can break, one at a time.
 *
 * The sources of the pool know nothing of them. apply.py makes a copy of the sources in which
 * MUTATED(name) turns a rule off, and puts this header on top of each file that it changes.
 * MUTATED(name) says whether the environment variable CUDAPOOL_MUTATION names that mutation.
 */
#ifndef CUDAPOOL_TESTS_MUTATION_H
#define CUDAPOOL_TESTS_MUTATION_H

#include <stdbool.h>

enum mutation {
#define MUTATION(name) MUTATION_##name,
#include "mutation_names.def" /* of the copy */
#undef MUTATION
    MUTATIONS
};

/* Any thread, at any time; calls nothing. */
__attribute__((visibility("hidden"))) bool is_mutated(enum mutation mutation);

#define MUTATED(name) is_mutated(MUTATION_##name)

#endif
