/*
 * Which mutation is on: read from the environment once, without libc, since the first to ask may be
 * dlsym in a process whose libc is not ready yet.
 */
#include "mutation.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* The mutation that is on, MUTATIONS for none, or UNREAD. Relaxed: whoever races reads the same. */
#define UNREAD (-1)
static atomic_int chosen = UNREAD;

static const char *const names[MUTATIONS] = {
#define MUTATION(name) #name,
#include "mutation_names.def"
#undef MUTATION
};

static bool is_same(const char *one, const char *other)
{
    while (*one && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

/* The variable's value, or NULL. */
static const char *value_of(const char *variable, const char *name)
{
    while (*name && *variable == *name) {
        variable++;
        name++;
    }
    return !*name && *variable == '=' ? variable + 1 : NULL;
}

static int choose(void)
{
    for (char **variable = environ; variable && *variable; variable++) {
        const char *value = value_of(*variable, "CUDAPOOL_MUTATION");
        for (int i = 0; value && i < MUTATIONS; i++)
            if (is_same(value, names[i]))
                return i;
    }
    return MUTATIONS;
}

bool is_mutated(enum mutation mutation)
{
    int now = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (now == UNREAD) {
        if (!environ)
            return false;
        now = choose();
        atomic_store_explicit(&chosen, now, memory_order_relaxed);
    }
    return now == (int)mutation;
}
