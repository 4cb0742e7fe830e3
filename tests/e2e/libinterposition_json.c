/*
 * The program's own JSON library, as json-c is: it has names in common with jansson.
 */
void *json_object_get(void *object);
int json_object_size(const void *object);
void *json_object(void);
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

unsigned long json_calls_seen(void)
{
    return calls;
}
