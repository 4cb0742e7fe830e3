#include "device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/lines.h"
#include "core/base/numbers.h"
#include "core/base/sandbox.h"
#include "core/board/board.h"

/* By default, hot_bytes is 1 / HOT_SHARE_OF_CACHE of the GPU's cache. The program frees that many
 * bytes up to the next fence, and allocates as many meanwhile. The rest of the cache is for memory
 * that the program holds and reads. */
#define HOT_SHARE_OF_CACHE 8u

static struct device *find_device(struct registry *registry, CUdevice ordinal)
{
    lock_must_be_held(&registry->lock);
    struct device *device = registry_devices(registry);
    while (device && device->ordinal != ordinal)
        device = device->next;
    return device;
}

static void read_uuid(const struct driver *driver, struct device *device)
{
    if (driver->cuDeviceGetUuid_v2)
        driver->cuDeviceGetUuid_v2(&device->uuid, device->ordinal);
    else if (driver->cuDeviceGetUuid)
        driver->cuDeviceGetUuid(&device->uuid, device->ordinal);
}

/* A growth budget takes several fences, so that it is used up and freed in small steps. */
static uint64_t fence_bytes(uint64_t growth_budget)
{
    uint64_t most = UINT64_C(16) << 20;
    return growth_budget / 8 < most ? growth_budget / 8 : most;
}

/* The growth budget, or half of the hard limit if that is less. Near the limit, blocks without a
 * fence can neither be waited for nor released. */
static uint64_t budget_inside_limits(const struct device *device)
{
    uint64_t least = device_limit(device, BOARD_LIMIT_OF_PROCESS);
    return least / 2 < device->growth_budget ? least / 2 : device->growth_budget;
}

static void set_fence_bytes(struct device *device)
{
    uint64_t bytes = device_is_short(device) ? 0 : fence_bytes(budget_inside_limits(device));
    atomic_store_explicit(&device->fence_bytes, bytes, memory_order_relaxed);
}

void device_set_short(struct device *device, bool is_short)
{
    atomic_store_explicit(&device->is_short, is_short, memory_order_relaxed);
    set_fence_bytes(device);
}

static void set_limits(struct device *device, const struct device_limits *limits)
{
    uint64_t least = smaller_of(limits->device_bytes, limits->group_bytes);
    atomic_store_explicit(&device->limits[BOARD_LIMIT_OF_GROUP], limits->group_bytes,
                          memory_order_relaxed);
    atomic_store_explicit(&device->limits[BOARD_LIMIT_OF_PROCESS], least, memory_order_relaxed);
    set_fence_bytes(device);
}

/* 0 where the driver does not say. */
static uint32_t cuda_version(const struct driver *driver)
{
    int version = 0;
    if (!driver->cuDriverGetVersion || driver->cuDriverGetVersion(&version) != CUDA_SUCCESS)
        return 0;
    return version > 0 ? (uint32_t)version : 0;
}

/* A zeroed record with room for each kind's data. */
static struct device *allocate_device(const struct kind *const *kinds)
{
    size_t bytes = whole_lines(sizeof(struct device));
    for (const struct kind *const *kind = kinds; *kind; kind++)
        bytes += whole_lines((*kind)->device_bytes);
    struct device *device = allocate_in_whole_lines(bytes);
    if (!device)
        return NULL;
    char *memory = (char *)device + whole_lines(sizeof *device);
    for (const struct kind *const *kind = kinds; *kind; kind++) {
        device->of_kind[(*kind)->number] = (*kind)->device_bytes ? memory : NULL;
        memory += whole_lines((*kind)->device_bytes);
    }
    return device;
}

/* By default a part of the GPU's cache; 0 where the driver does not say how large the cache is. */
static uint64_t hot_bytes(const struct driver *driver, const struct byte_size *wanted,
                          const struct device *device)
{
    int cache = 0;
    if (!wanted->unlimited)
        return byte_size_resolve(wanted, device->total_bytes);
    if (!driver->cuDeviceGetAttribute ||
        driver->cuDeviceGetAttribute(&cache, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device->ordinal) !=
            CUDA_SUCCESS)
        return 0;
    return cache > 0 ? (uint64_t)cache / HOT_SHARE_OF_CACHE : 0;
}

static struct device *describe_device(struct pool *pool, CUdevice ordinal)
{
    const struct driver *driver = pool->driver;
    struct device *device = allocate_device(pool->kinds);
    size_t total = 0;
    if (!device)
        return NULL;
    device->ordinal = ordinal;
    if (driver->cuDeviceTotalMem_v2(&total, ordinal) != CUDA_SUCCESS) {
        free_apart(device);
        return NULL;
    }
    driver->cuDeviceGetName(device->name, (int)sizeof device->name, ordinal);
    read_uuid(driver, device);
    const struct device_settings *settings = &pool->settings.device;
    device->total_bytes = total;
    device->cached_cap = byte_size_resolve(&settings->caps.cached, total);
    device->reserve_floor = byte_size_resolve(&settings->reserve_floor, total);
    device->growth_budget = byte_size_resolve(&settings->growth_budget, total);
    device->hot_bytes = hot_bytes(driver, &settings->hot_bytes, device);
    struct device_limits limits;
    limits_of_device(&pool->limits, &pool->settings, ordinal, total, &limits);
    set_limits(device, &limits);
    device->told_bytes = limits_told_total(&limits, pool->settings.limits.tell_total, total);
    atomic_init(&device->could_hold, total);
    return device;
}

/* Notes the board in the figures once joining has completed. A device that is to be on the board
 * has waited for that. A later device may be the first such one. */
static void note_board(struct pool *pool)
{
    struct housekeeper_counters *counters = pool->housekeeper_counters;
    if (counters && counter_get(&counters->board) == BOARD_NOT_TRIED &&
        atomic_load_explicit(&pool->joining, memory_order_acquire) == JOINING_OVER)
        figures_note_board(counters, pool->alone_because);
}

/* Shows the device's limits in the figures, and sets where other processes and unpooled memory are
 * counted. False where memory is short. */
static bool show_surroundings(struct pool *pool, struct device *device)
{
    lock_must_be_held(&pool->registry.lock);
    struct device_limits limits;
    limits_of_device(&pool->limits, &pool->settings, device->ordinal, device->total_bytes, &limits);
    if (!pool->housekeeper_counters)
        pool->housekeeper_counters = figures_housekeeper(&pool->figures);
    note_board(pool);
    device->neighbours = figures_neighbours(&pool->figures, device->ordinal);
    device->unpooled = figures_unpooled(&pool->figures, device->ordinal);
    device->limits_told = figures_limits(&pool->figures, device->ordinal);
    if (device->limits_told)
        figures_change_limits(device->limits_told, &limits);
    return pool->housekeeper_counters && device->neighbours && device->unpooled &&
           device->limits_told;
}

/* False where memory is short. */
static bool list_device(struct pool *pool, struct device *device)
{
    lock_must_be_held(&pool->registry.lock);
    struct registry *registry = &pool->registry;
    struct figures_device record = {.ordinal = device->ordinal, .total_bytes = device->total_bytes};
    memcpy(record.name, device->name, sizeof record.name);
    memcpy(record.uuid, device->uuid.bytes, sizeof record.uuid);
    bool made = figures_device(&pool->figures, &record) && show_surroundings(pool, device);
    for (const struct kind *const *kind = pool->kinds; *kind && made; kind++)
        made = !(*kind)->made_device || (*kind)->made_device(pool, device);
    if (!made)
        return false;
    device->next = registry_devices(registry);
    atomic_store_explicit(&registry->devices, device, memory_order_release);
    return true;
}

/* ---- the board ---- */

static void join_board(struct pool *pool)
{
    const char *why = NULL;
    struct board *board = NULL;
    if (sandbox_was_entered())
        why = "the process has restricted its system calls";
    else
        board = board_join(pool->limits.group, &why);
    atomic_store_explicit(&pool->board, board, memory_order_release);
    pool->alone_because = board ? NULL : why ? why : "no board";
}

/* Joins the board once in a process; other threads wait until that has completed. */
static void join_once(struct pool *pool)
{
    uint32_t not_yet = JOINING_NOT_YET;
    int cancellation = cancellation_off();
    if (atomic_compare_exchange_strong(&pool->joining, &not_yet, JOINING_NOW)) {
        join_board(pool);
        atomic_store_explicit(&pool->joining, JOINING_OVER, memory_order_release);
    }
    uint64_t started = monotonic_now();
    while (atomic_load_explicit(&pool->joining, memory_order_acquire) != JOINING_OVER)
        patient_nap(started);
    cancellation_restore(cancellation);
}

/* A device without a UUID gets no place, since other processes could not identify it. */
static void find_place_on_board(struct pool *pool, struct device *device)
{
    static const CUuuid unknown;
    device->board_place = -1;
    if (!pool->settings.neighbours.enabled ||
        memcmp(&device->uuid, &unknown, sizeof unknown) == 0 ||
        atomic_load_explicit(&pool->forgotten, memory_order_relaxed))
        return;
    join_once(pool);
    struct board *board = atomic_load_explicit(&pool->board, memory_order_acquire);
    if (board)
        device->board_place =
            board_device(board, (const unsigned char *)(const void *)device->uuid.bytes);
    if (device->board_place >= 0)
        device->board = board;
}

/* ---- limits that a tool changes ---- */

/* Nanoseconds since the process started; 0 where it has no figures. */
static uint64_t process_age(const struct figures *figures)
{
    const struct figures_header *header = figures_header(figures);
    return header ? rest_of(monotonic_now(), header->process.started) : 0;
}

/* Puts what a tool has set in the place of what the process began with. */
static void replace_limit(const struct figures *figures, uint64_t set, uint64_t *bytes,
                          char from[LIMIT_NAME_BYTES])
{
    uint64_t milliseconds = process_age(figures) / 1000000;
    if (set == BOARD_LIMIT_AT_START)
        return;
    *bytes = set;
    snprintf(from, LIMIT_NAME_BYTES, "cudapool limit, after %" PRIu64 ".%03u s",
             milliseconds / 1000, (unsigned)(milliseconds % 1000));
}

static void change_limits(struct pool *pool, struct device *device)
{
    lock_must_be_held(&pool->registry.lock);
    struct device_limits limits;
    uint64_t set[BOARD_LIMITS];
    if (!board_read_limits(device->board, set))
        return;
    limits_of_device(&pool->limits, &pool->settings, device->ordinal, device->total_bytes, &limits);
    replace_limit(&pool->figures, set[BOARD_LIMIT_OF_PROCESS], &limits.device_bytes,
                  limits.device_from);
    replace_limit(&pool->figures, set[BOARD_LIMIT_OF_GROUP], &limits.group_bytes,
                  limits.group_from);
    set_limits(device, &limits);
    figures_change_limits(device->limits_told, &limits);
}

void device_change_limits(struct pool *pool, struct device *device)
{
    const struct board_start *start = (const void *)device->board;
    struct registry *registry = &pool->registry;
    lock_take(&registry->lock, LOCK_REGISTRY);
    uint64_t changes = atomic_load_explicit(start->limit_changes, memory_order_acquire);
    uint64_t before =
        atomic_exchange_explicit(&device->limit_changes, changes, memory_order_relaxed);
    /* Another thread may have taken them over meanwhile. */
    if (before != changes)
        change_limits(pool, device);
    lock_give(&registry->lock);
}

struct device *context_device(struct pool *pool, CUdevice ordinal)
{
    struct registry *registry = &pool->registry;
    lock_take(&registry->lock, LOCK_REGISTRY);
    struct device *device = find_device(registry, ordinal);
    lock_give(&registry->lock);
    if (device)
        return device;
    struct device *described = describe_device(pool, ordinal);
    if (!described)
        return NULL;
    figures_note_cuda(&pool->figures, cuda_version(pool->driver));
    figures_start(&pool->figures);
    find_place_on_board(pool, described);
    lock_take(&registry->lock, LOCK_REGISTRY);
    device = find_device(registry, ordinal);
    if (!device && list_device(pool, described))
        device = described;
    lock_give(&registry->lock);
    if (device != described)
        free_apart(described);
    return device;
}
