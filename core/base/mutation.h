/*
 * Mutations: rules of the pool that a test build can break, one at a time.
 *
 * MUTATED(name) stands where a rule is kept and turns it off. It is the constant false, unless the
 * pool is built for tests/mutations (make mutations): then it says whether the environment variable
 * CUDAPOOL_MUTATION names that mutation. tests/mutations/mutations.def lists them all, with what
 * must catch each.
 */
#ifndef CUDAPOOL_CORE_MUTATION_H
#define CUDAPOOL_CORE_MUTATION_H

#include <stdbool.h>

#ifdef CUDAPOOL_MUTATIONS

enum mutation {
#define MUTATION(name, ...) MUTATION_##name,
#include "tests/mutations/mutations.def"
#undef MUTATION
    MUTATIONS
};

/* Any thread, at any time; calls nothing. (tests/mutations/mutation.c) */
__attribute__((visibility("hidden"))) bool is_mutated(enum mutation mutation);

#define MUTATED(name) is_mutated(MUTATION_##name)

#else

#define MUTATED(name) false

#endif

#endif
