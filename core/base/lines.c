#include "lines.h"

#include <stdint.h>
#include <stdlib.h>

/* Stores the pointer that calloc returned right before the memory. */
void *allocate_apart(size_t alignment, size_t bytes)
{
    size_t whole;
    if (__builtin_add_overflow(bytes, 3 * alignment - 1, &whole))
        return NULL;
    char *base = calloc(1, whole / alignment * alignment);
    if (!base)
        return NULL;
    void **memory = (void **)(void *)(base + 2 * alignment - (uintptr_t)base % alignment);
    memory[-1] = base;
    return memory;
}

void free_apart(void *memory)
{
    if (memory)
        free(((void **)memory)[-1]);
}
