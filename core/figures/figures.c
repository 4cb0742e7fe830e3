/*
 * The arena of counters, its records, and samples of them over time (figures.h).
 *
 * One section adds records, with the figures lock held. Another iterates over them without a lock.
 * The last one samples devices into their histories, in one thread at a time.
 *
 * Part of the preload object: libc only.
 */
#include "figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/bus_guard.h"
#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "figures_file.h"

/* Sampling may take at most 1/COST_SHARE of the time. With many buckets, samples are therefore
 * rarer. */
#define COST_SHARE 200u

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + FIGURES_ALIGNMENT - 1) / FIGURES_ALIGNMENT * FIGURES_ALIGNMENT;
}

void figures_init(struct figures *figures)
{
    pthread_mutex_init(&figures->lock, NULL);
}

void figures_show(struct figures *figures, const struct settings *settings,
                  figures_complaint *complain)
{
    figures->settings = settings;
    figures->complain = complain;
}

/* ---- adding records, with the figures lock ---- */

/* False where the arena has no room and cannot grow. */
static bool make_room(struct figures *figures, uint64_t bytes)
{
    lock_must_be_held(&figures->lock);
    uint64_t used = counter_get(&figures_header(figures)->used);
    if (bytes <= figures->room - used)
        return true;
    if (figures->file.path[0] == '\0' || !figures_file_grow(&figures->file, used + bytes))
        return false;
    figures->room = figures->file.bytes;
    return true;
}

/* Adds a record to the arena. Its first record->bytes are copied, the others are zero. NULL where
 * there is no room. */
static void *add_to_arena(struct figures *figures, const struct figures_record *record,
                          uint64_t bytes)
{
    lock_must_be_held(&figures->lock);
    struct figures_header *header = figures_header(figures);
    if (!header || figures_are_lost(figures))
        return NULL;
    if (!make_room(figures, aligned(bytes))) {
        counter_add(&header->lost, 1);
        return NULL;
    }
    uint64_t used = counter_get(&header->used);
    struct figures_record *place = (void *)((char *)header + used);
    memcpy(place, record, record->bytes);
    place->bytes = (uint32_t)aligned(bytes);
    /* Pairs with the acquire load in figures_next. */
    atomic_store_explicit(&header->used, used + place->bytes, memory_order_release);
    return place;
}

static void add_settings(struct figures *figures, const struct settings *settings)
{
    struct figures_settings_record *record = calloc(1, sizeof *record);
    if (!record)
        return;
    record->record = (struct figures_record){FIGURES_SETTINGS, sizeof *record};
    record->settings = *settings;
    add_to_arena(figures, &record->record, sizeof *record);
    free(record);
}

static void begin(struct figures *figures, void *memory, uint64_t room)
{
    struct figures_header *header = memory;
    header->version = FIGURES_VERSION;
    header->first = aligned(sizeof *header);
    figures_file_describe_process(&header->process);
    report_find_versions(&header->process.versions);
    header->process.versions.cuda = atomic_load_explicit(&figures->cuda, memory_order_relaxed);
    counter_set(&header->seen, monotonic_now());
    counter_set(&header->used, header->first);
    figures->room = room;
    atomic_store_explicit(&figures->header, header, memory_order_release);
    if (figures->settings)
        add_settings(figures, figures->settings);
    /* Release, and stored last: tools copy the file, and a copy without the magic is incomplete. */
    atomic_store_explicit(&header->magic, FIGURES_MAGIC, memory_order_release);
}

void figures_note_cuda(struct figures *figures, uint32_t version)
{
    atomic_store_explicit(&figures->cuda, version, memory_order_relaxed);
}

static void make_arena(struct figures *figures)
{
    lock_must_be_held(&figures->lock);
    void *memory = NULL;
    if (figures->settings)
        memory = figures_file_make(&figures->file, &figures->settings->figures, figures->complain);
    if (memory) {
        bus_guard(memory, FIGURES_BYTES_MAX, BUS_GUARD_CHILDREN_HAVE_IT);
        begin(figures, memory, figures->file.bytes);
        return;
    }
    memory = mmap(NULL, FIGURES_BYTES_MAX, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED)
        begin(figures, memory, FIGURES_BYTES_MAX);
}

/* Files are opened and grown with the lock held, and these calls may be cancellation points. So
 * cancellation is off: a thread that ended there would never release the lock. */
static int take_lock(struct figures *figures)
{
    int cancellation = cancellation_off();
    lock_take(&figures->lock, LOCK_FIGURES);
    return cancellation;
}

static void give_lock(struct figures *figures, int cancellation)
{
    lock_give(&figures->lock);
    cancellation_restore(cancellation);
}

void figures_start(struct figures *figures)
{
    lock_must_not_be_held(&figures->lock);
    int cancellation = take_lock(figures);
    if (!figures->started)
        make_arena(figures);
    figures->started = true;
    give_lock(figures, cancellation);
}

/* Adds a record outside the arena. Its first record->bytes are copied, the others are zero. NULL
 * where memory is short. */
static void *add_outside(struct figures *figures, const struct figures_record *record,
                         uint64_t bytes)
{
    lock_must_be_held(&figures->lock);
    struct figures_outside *outside = calloc(1, sizeof *outside + bytes);
    if (!outside)
        return NULL;
    memcpy(&outside->record, record, record->bytes);
    outside->next = atomic_load_explicit(&figures->outside, memory_order_relaxed);
    /* Pairs with the acquire load in figures_walk. */
    atomic_store_explicit(&figures->outside, outside, memory_order_release);
    return &outside->record;
}

/* ---- records ---- */

static void *add(struct figures *figures, struct figures_record *record, enum figures_type type,
                 size_t given, size_t bytes)
{
    *record = (struct figures_record){type, (uint32_t)given};
    int cancellation = take_lock(figures);
    void *place = add_to_arena(figures, record, bytes);
    if (!place)
        place = add_outside(figures, record, bytes);
    give_lock(figures, cancellation);
    return place;
}

bool figures_device(struct figures *figures, const struct figures_device *device)
{
    struct figures_device record = *device;
    struct {
        struct figures_record record;
        int64_t device;
    } history = {.device = device->ordinal};
    return add(figures, &record.record, FIGURES_DEVICE, sizeof record, sizeof record) &&
           add(figures, &history.record, FIGURES_HISTORY, sizeof history,
               sizeof(struct figures_history));
}

struct kind_counters *figures_kind(struct figures *figures, enum memory_kind kind, int device)
{
    struct figures_kind record = {.device = device, .kind = kind};
    struct figures_kind *added =
        add(figures, &record.record, FIGURES_KIND, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

struct neighbour_counters *figures_neighbours(struct figures *figures, int device)
{
    struct figures_neighbours record = {.device = device};
    struct figures_neighbours *added =
        add(figures, &record.record, FIGURES_NEIGHBOURS, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

struct unpooled_counters *figures_unpooled(struct figures *figures, int device)
{
    struct figures_unpooled record = {.device = device};
    struct figures_unpooled *added =
        add(figures, &record.record, FIGURES_UNPOOLED, sizeof record, sizeof record);
    return added ? added->counters : NULL;
}

struct housekeeper_counters *figures_housekeeper(struct figures *figures)
{
    struct figures_housekeeper record = {0};
    struct figures_housekeeper *added =
        add(figures, &record.record, FIGURES_HOUSEKEEPER, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

struct graph_counters *figures_graphs(struct figures *figures)
{
    struct figures_graphs record = {0};
    struct figures_graphs *added =
        add(figures, &record.record, FIGURES_GRAPHS, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

struct figures_limits *figures_limits(struct figures *figures, int device)
{
    struct figures_limits record = {.device = device};
    return add(figures, &record.record, FIGURES_LIMITS, sizeof record, sizeof record);
}

void figures_change_limits(struct figures_limits *record, const struct device_limits *limits)
{
    uint64_t changes = counter_get(&record->changes) + 1;
    record->limits[changes % 2] = *limits;
    atomic_store_explicit(&record->changes, changes, memory_order_release);
}

void figures_note_board(struct housekeeper_counters *housekeeper, const char *why)
{
    snprintf(housekeeper->board_why, sizeof housekeeper->board_why, "%s", why ? why : "");
    counter_set(&housekeeper->board, why ? BOARD_REFUSED : BOARD_JOINED);
}

struct heap_counters *figures_heap(struct figures *figures, uint64_t heap, int device)
{
    struct figures_heap record = {.device = device, .heap = heap};
    struct figures_heap *added =
        add(figures, &record.record, FIGURES_HEAP, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

struct bucket_counters *figures_bucket(struct figures *figures, enum memory_kind kind,
                                       uint64_t owner, int device, uint64_t bytes)
{
    struct figures_bucket record = {.device = device, .kind = kind, .owner = owner, .bytes = bytes};
    struct figures_bucket *added =
        add(figures, &record.record, FIGURES_BUCKET, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

struct bin_counters *figures_bin(struct figures *figures, enum memory_kind kind, uint64_t owner,
                                 int device, uint64_t bytes)
{
    struct figures_bin record = {.device = device, .kind = kind, .owner = owner, .bytes = bytes};
    struct figures_bin *added =
        add(figures, &record.record, FIGURES_BIN, sizeof record, sizeof record);
    return added ? &added->counters : NULL;
}

static bool has_room_to_spare(struct figures *figures, uint64_t bytes)
{
    lock_must_be_held(&figures->lock);
    struct figures_header *header = figures_header(figures);
    return header && !figures_are_lost(figures) &&
           counter_get(&header->used) + bytes + FIGURES_BYTES_TO_SPARE <= FIGURES_BYTES_MAX &&
           make_room(figures, bytes);
}

struct bucket_counters *figures_bucket_to_spare(struct figures *figures, enum memory_kind kind,
                                                uint64_t owner, int device, uint64_t bytes)
{
    struct figures_bucket record = {.device = device, .kind = kind, .owner = owner, .bytes = bytes};
    struct figures_bucket *added = NULL;
    record.record = (struct figures_record){FIGURES_BUCKET, sizeof record};
    int cancellation = take_lock(figures);
    if (has_room_to_spare(figures, aligned(sizeof record)))
        added = add_to_arena(figures, &record.record, sizeof record);
    give_lock(figures, cancellation);
    return added ? &added->counters : NULL;
}

bool figures_are_lost(const struct figures *figures)
{
    return bus_guard_has_replaced(figures_header(figures));
}

void figures_check(struct figures *figures)
{
    if (figures_file_is_cut(&figures->file))
        bus_guard_replace(figures_header(figures));
}

void figures_forget(struct figures *figures)
{
    bus_guard_replace(figures_header(figures));
}

void figures_end(struct figures *figures, bool stay)
{
    struct figures_header *header = figures_header(figures);
    if (!header)
        return;
    counter_set(&header->ended, 1);
    if (!stay)
        figures_file_remove(&figures->file);
}

/* ---- reading ---- */

struct figures_walk figures_walk(struct figures *figures)
{
    /* Pairs with the release store in add_outside. */
    return (struct figures_walk){figures_header(figures),
                                 atomic_load_explicit(&figures->outside, memory_order_acquire),
                                 NULL};
}

static struct figures_record *next_outside(struct figures_walk *walk)
{
    struct figures_outside *outside = walk->outside;
    walk->header = NULL;
    if (!outside)
        return NULL;
    walk->outside = outside->next;
    return &outside->record;
}

struct figures_record *figures_next(struct figures_walk *walk)
{
    struct figures_header *header = walk->header;
    if (!header)
        return next_outside(walk);
    /* Pairs with the release store in add_to_arena. */
    uint64_t used = atomic_load_explicit(&header->used, memory_order_acquire);
    uint64_t next = header->first;
    if (walk->record)
        next = (uint64_t)((char *)walk->record - (char *)header) + walk->record->bytes;
    /* After a truncation of the file, the memory is zero, and a record may have length 0. */
    if (next >= used || (walk->record && walk->record->bytes == 0))
        return next_outside(walk);
    walk->record = (void *)((char *)header + next);
    return walk->record;
}

static void add_held_by_bucket(struct history_sample *sum, const struct bucket_counters *c)
{
    uint64_t reserved = counter_get(&c->reserved_bytes);
    uint64_t free = counter_get(&c->free_bytes), clean = counter_get(&c->clean_bytes);
    /* Other threads may be changing the counters, so a negative difference counts as 0. */
    counter_add(&sum->live_bytes, reserved > free ? reserved - free : 0);
    counter_add(&sum->cached_bytes, clean);
    counter_add(&sum->pending_bytes, free > clean ? free - clean : 0);
}

static void add_bucket(struct history_sample *sum, const struct figures_bucket *bucket)
{
    const struct bucket_counters *c = &bucket->counters;
    if (memory_kind_is_of_device((enum memory_kind)bucket->kind))
        add_held_by_bucket(sum, c);
    for (int i = 0; i < HIT_KINDS; i++)
        counter_add(&sum->hits[i], counter_get(&c->hits[i]));
    counter_add(&sum->misses, counter_get(&c->misses));
}

/* A bin's free blocks count as reserved in its bucket, and there as live. Subtracting them may make
 * live_bytes negative meanwhile, modulo 2^64. */
static void add_held_by_bin(struct history_sample *sum, const struct bin_counters *c,
                            uint64_t bytes)
{
    uint64_t free = bin_free_blocks(c), pending = bin_pending_blocks(c, free);
    counter_subtract(&sum->live_bytes, free * bytes);
    counter_add(&sum->cached_bytes, (free - pending) * bytes);
    counter_add(&sum->pending_bytes, pending * bytes);
}

static void add_bin(struct history_sample *sum, const struct figures_bin *bin)
{
    if (memory_kind_is_of_device((enum memory_kind)bin->kind))
        add_held_by_bin(sum, &bin->counters, bin->bytes);
    counter_add(&sum->hits[HIT_CLEAN], counter_get(&bin->counters.hits));
}

static void add_neighbours(struct history_sample *sum, const struct neighbour_counters *c)
{
    counter_add(&sum->given_bytes, counter_get(&c->given_bytes));
    counter_add(&sum->got_bytes, counter_get(&c->got_bytes));
}

void figures_sum(struct figures_walk walk, int64_t device, uint64_t now, struct history_sample *sum)
{
    memset(sum, 0, sizeof *sum);
    counter_set(&sum->at, now);
    struct figures_record *record;
    while ((record = figures_next(&walk)) != NULL) {
        const struct figures_bucket *bucket = (const void *)record;
        if (record->type == FIGURES_BUCKET && bucket->device == device)
            add_bucket(sum, bucket);
        const struct figures_bin *bin = (const void *)record;
        if (record->type == FIGURES_BIN && bin->device == device)
            add_bin(sum, bin);
        const struct figures_neighbours *neighbours = (const void *)record;
        if (record->type == FIGURES_NEIGHBOURS && neighbours->device == device)
            add_neighbours(sum, &neighbours->counters);
        struct figures_kind *kind = (void *)record;
        if (record->type == FIGURES_KIND && kind->device == device &&
            memory_kind_is_of_device((enum memory_kind)kind->kind))
            counter_add(&sum->peak_bytes, counter_get(&kind->counters.recent_peak));
    }
    if ((int64_t)counter_get(&sum->live_bytes) < 0)
        counter_set(&sum->live_bytes, 0);
    counter_raise_to(&sum->peak_bytes, counter_get(&sum->live_bytes) +
                                           counter_get(&sum->cached_bytes) +
                                           counter_get(&sum->pending_bytes));
}

/* ---- sampling ---- */

/* Returns the device's peak since the last sample, and starts that of the next one. A peak that
 * another thread raises meanwhile counts in one of the two. */
static uint64_t take_recent_peak(struct figures_walk walk, int64_t device)
{
    struct figures_record *record;
    uint64_t peak = 0;
    while ((record = figures_next(&walk)) != NULL) {
        struct figures_kind *kind = (void *)record;
        if (record->type != FIGURES_KIND || kind->device != device)
            continue;
        /* Relaxed: it orders nothing. */
        peak += atomic_exchange_explicit(&kind->counters.recent_peak, 0, memory_order_relaxed);
    }
    return peak;
}

/* Samples every device at the time now. Returns when the next sample is due. */
static uint64_t sample_devices(struct figures *figures, uint64_t now)
{
    struct figures_walk walk = figures_walk(figures);
    struct figures_record *record;
    uint64_t due = UINT64_MAX;
    while ((record = figures_next(&walk)) != NULL) {
        if (record->type != FIGURES_HISTORY)
            continue;
        struct figures_history *history = (void *)record;
        struct history_sample sum;
        uint64_t peak = take_recent_peak(figures_walk(figures), history->device);
        figures_sum(figures_walk(figures), history->device, now, &sum);
        counter_raise_to(&sum.peak_bytes, peak);
        history_add(&history->history, &sum);
        uint64_t next = history_next(&history->history, now);
        due = next < due ? next : due;
    }
    return due;
}

static void note_seen(struct figures *figures, uint64_t now)
{
    struct figures_header *header = figures_header(figures);
    if (header)
        counter_set(&header->seen, now);
}

void figures_sample_now(struct figures *figures, uint64_t now)
{
    /* Pairs with the release store below, so that this thread sees the histories as the last one
     * left them. */
    if (atomic_exchange_explicit(&figures->sampling, true, memory_order_acquire))
        return;
    uint64_t began = monotonic_now();
    note_seen(figures, now);
    uint64_t due = sample_devices(figures, now);
    uint64_t least = began + COST_SHARE * (monotonic_now() - began);
    atomic_store_explicit(&figures->sample_due, due > least ? due : least, memory_order_relaxed);
    atomic_store_explicit(&figures->sampling, false, memory_order_release);
}

void figures_sample(struct figures *figures, uint64_t now)
{
    if (now >= atomic_load_explicit(&figures->sample_due, memory_order_relaxed))
        figures_sample_now(figures, now);
    else
        note_seen(figures, now);
}
