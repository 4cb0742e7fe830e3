/*
 * What interposition_patched.c asks of libinterposition_patch.so, which says what it does.
 */
#ifndef TESTS_E2E_LIBINTERPOSITION_PATCH_H
#define TESTS_E2E_LIBINTERPOSITION_PATCH_H

#include <stdbool.h>

#include "../driver_api.h"

/* The longest jump: to any address. */
#if defined(__x86_64__)
#define PATCHABLE_BYTES 12
#elif defined(__aarch64__)
#define PATCHABLE_BYTES 16
#endif

/* By a handle of the library itself, which leads to the driver that it is linked with; or in the
 * objects after it, as libraries did that came before that. */
enum patch_lookup { PATCH_OWN, PATCH_NEXT };

struct patched {
    unsigned allocations, frees; /* calls that the replacements saw */
    unsigned unknown;            /* frees of what the driver does not know */
    size_t last_freed_bytes;
    unsigned places, places_in_preload; /* that were written to, of relocations */
    void *allocate, *release;           /* what was patched, or found */
};

/* False where it cannot be done. */
bool patch_code(enum patch_lookup lookup);
bool patch_code_for_calls(enum patch_lookup lookup);
bool patch_relocations(enum patch_lookup lookup);

/* How many bytes of the function's beginning could be moved elsewhere; no more are looked at than
 * are needed. */
size_t patch_known_bytes(const void *function);

const struct patched *patch_seen(void);

#endif
