#include "figures.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Room for some twenty thousand buckets. Memory that is not used is not taken. */
#define ARENA_BYTES (UINT64_C(4) << 20)

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + FIGURES_ALIGNMENT - 1) / FIGURES_ALIGNMENT * FIGURES_ALIGNMENT;
}

void figures_init(struct figures *figures)
{
    pthread_mutex_init(&figures->lock, NULL);
}

static void begin(struct figures *figures, void *memory, uint64_t room)
{
    struct figures_header *header = memory;
    memcpy(header->magic, FIGURES_MAGIC, sizeof header->magic);
    header->version = FIGURES_VERSION;
    header->byte_order = FIGURES_BYTE_ORDER;
    header->first = aligned(sizeof *header);
    atomic_store_explicit(&header->used, header->first, memory_order_release);
    figures->header = header;
    figures->room = room;
}

void figures_start(struct figures *figures)
{
    pthread_mutex_lock(&figures->lock);
    if (!figures->started) {
        void *memory = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory != MAP_FAILED)
            begin(figures, memory, ARENA_BYTES);
        figures->started = true;
    }
    pthread_mutex_unlock(&figures->lock);
}

/* Figures lock held. NULL where there is no room. */
static void *add_to_arena(struct figures *figures, const void *record, uint64_t bytes)
{
    struct figures_header *header = figures->header;
    if (!header)
        return NULL;
    uint64_t used = counter_get(&header->used);
    if (bytes > figures->room - used) {
        counter_add(&header->lost, 1);
        return NULL;
    }
    void *place = (char *)header + used;
    memcpy(place, record, ((const struct figures_record *)record)->bytes);
    ((struct figures_record *)place)->bytes = (uint32_t)bytes;
    /* Pairs with the acquire load of a reader. */
    atomic_store_explicit(&header->used, used + bytes, memory_order_release);
    return place;
}

static void *add(struct figures *figures, enum figures_type type, void *record, size_t bytes)
{
    struct figures_record *head = record;
    head->type = type;
    head->bytes = (uint32_t)bytes;
    pthread_mutex_lock(&figures->lock);
    void *place = add_to_arena(figures, record, aligned(bytes));
    pthread_mutex_unlock(&figures->lock);
    if (place)
        return place;
    place = malloc(bytes);
    return place ? memcpy(place, record, bytes) : NULL;
}

void figures_device(struct figures *figures, const struct figures_device *device)
{
    struct figures_device record = *device;
    struct figures_record *head = &record.record;
    head->type = FIGURES_DEVICE;
    head->bytes = sizeof record;
    pthread_mutex_lock(&figures->lock);
    add_to_arena(figures, &record, aligned(sizeof record));
    pthread_mutex_unlock(&figures->lock);
}

struct kind_counters *figures_kind(struct figures *figures, enum memory_kind kind, int device)
{
    struct figures_kind record = {.device = device, .kind = kind};
    struct figures_kind *added = add(figures, FIGURES_KIND, &record, sizeof record);
    return added ? &added->counters : NULL;
}

struct heap_counters *figures_heap(struct figures *figures, uint64_t heap, int device)
{
    struct figures_heap record = {.device = device, .heap = heap};
    struct figures_heap *added = add(figures, FIGURES_HEAP, &record, sizeof record);
    return added ? &added->counters : NULL;
}

struct bucket_counters *figures_bucket(struct figures *figures, enum memory_kind kind,
                                       uint64_t owner, int device, uint64_t bytes)
{
    struct figures_bucket record = {.device = device, .kind = kind, .owner = owner, .bytes = bytes};
    struct figures_bucket *added = add(figures, FIGURES_BUCKET, &record, sizeof record);
    return added ? &added->counters : NULL;
}
