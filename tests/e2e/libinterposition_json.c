/*
 * The program's own JSON library, as json-c is: it has names in common with jansson.
 */
#include <stddef.h>

void *json_object_get(void *object);
int json_object_size(const void *object);
void *json_object(void);
void *json_object_iter_next(void *object, void *iterator);
unsigned long json_calls_seen(void);

static unsigned long calls;

void *json_object_get(void *object)
{
    calls++;
    return object;
}

int json_object_size(const void *object)
{
    (void)object;
    calls++;
    return -1;
}

void *json_object(void)
{
    calls++;
    return &calls;
}

void *json_object_iter_next(void *object, void *iterator)
{
    (void)object;
    (void)iterator;
    calls++;
    return NULL;
}

unsigned long json_calls_seen(void)
{
    return calls;
}
