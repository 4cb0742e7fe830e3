/*
 * Handles: numbers that stand for objects. A handle is never an address, so one that is stale or
 * invented is recognised, not followed; and the value freed last is given out first, as with the
 * driver, so that a program that mixes up an old object with a new one is caught. Under sim.lock.
 */
#include <pthread.h>
#include <stdlib.h>

#include "sim.h"

struct table {
    void **objects; /* NULL where free */
    unsigned int *free;
    unsigned int count, free_count, room;
    bool is_kept; /* no value is given out twice */
};

static struct table tables[KINDS];

static uintptr_t handle_base(enum kind kind)
{
    return ((uintptr_t)0x5c0 + kind) << 32;
}

static bool grow(struct table *table)
{
    unsigned int room = table->room == 0 ? 64 : 2 * table->room;
    void **objects = realloc(table->objects, room * sizeof *objects);
    unsigned int *released;
    if (objects == NULL)
        return false;
    table->objects = objects;
    released = realloc(table->free, room * sizeof *released);
    if (released == NULL)
        return false;
    table->free = released;
    table->room = room;
    return true;
}

void *handle_new(enum kind kind, void *object)
{
    struct table *table = &tables[kind];
    unsigned int index;
    if (table->free_count > 0) {
        index = table->free[--table->free_count];
    } else {
        if (table->count == table->room && !grow(table))
            return NULL;
        index = table->count++;
    }
    table->objects[index] = object;
    return (void *)(handle_base(kind) + ((uintptr_t)index + 1) * 32);
}

static bool index_of(enum kind kind, const void *handle, unsigned int *index)
{
    uintptr_t offset = (uintptr_t)handle - handle_base(kind);
    if ((uintptr_t)handle < handle_base(kind) || offset % 32 != 0 || offset == 0 ||
        offset / 32 > tables[kind].count)
        return false;
    *index = (unsigned int)(offset / 32 - 1);
    return true;
}

void *handle_object(enum kind kind, const void *handle)
{
    unsigned int index;
    return index_of(kind, handle, &index) ? tables[kind].objects[index] : NULL;
}

void handle_free(enum kind kind, void *handle)
{
    unsigned int index;
    if (!index_of(kind, handle, &index) || tables[kind].objects[index] == NULL)
        return;
    tables[kind].objects[index] = NULL;
    if (!tables[kind].is_kept)
        tables[kind].free[tables[kind].free_count++] = index;
}

void simcuda_keep_contexts(void)
{
    pthread_mutex_lock(&sim.lock);
    tables[KIND_CONTEXT].is_kept = true;
    pthread_mutex_unlock(&sim.lock);
}
