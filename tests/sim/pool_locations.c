/*
 * Memory pools by what their memory is: each location has a default and a current pool for each
 * type of allocation. Those of a device's own memory are the device's (pools.c).
 */
#include <stdlib.h>

#include "sim.h"

/* The machine has one NUMA node. */
#define NODES 1

/* CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, which no other part needs. */
#define HOST_NUMA_CURRENT 4

struct place {
    CUmemLocation location;
    CUmemAllocationType type;
    struct pool *standard, *current;
    struct place *next;
};

static struct place *places;

bool location_has_id(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

CUresult location_check(const CUmemLocation *location, CUmemAllocationType type)
{
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_of(location->id) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id >= 0 && location->id < NODES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_NONE:
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

void location_forget(const struct pool *pool)
{
    for (struct place *place = places; place != NULL; place = place->next)
        if (place->current == pool)
            place->current = place->standard;
}

static struct place *add_place(const CUmemLocation *location, CUmemAllocationType type)
{
    struct place *place = calloc(1, sizeof *place);
    struct pool *standard = place != NULL ? pool_new(location, type, true) : NULL;
    if (standard == NULL) {
        free(place);
        return NULL;
    }
    *place = (struct place){*location, type, standard, standard, places};
    places = place;
    return place;
}

static struct place *place_of(const CUmemLocation *location, CUmemAllocationType type)
{
    struct place *place = places;
    while (place != NULL && !pool_is_at(place->standard, location, type))
        place = place->next;
    return place != NULL ? place : add_place(location, type);
}

static bool is_devices_own(const CUmemLocation *location, CUmemAllocationType type)
{
    return type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUresult get(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type,
                    bool standard)
{
    const struct place *place;
    CUresult result;
    if (pool == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((int)location->type == HOST_NUMA_CURRENT)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = location_check(location, type);
    if (result != CUDA_SUCCESS)
        return result;
    if (is_devices_own(location, type)) {
        const struct device *device = device_of(location->id);
        *pool = pool_handle(standard ? device->default_pool : device->current_pool);
        return CUDA_SUCCESS;
    }
    place = place_of(location, type);
    if (place == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pool = pool_handle(standard ? place->standard : place->current);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemGetDefaultMemPool, 0,
            (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
            (pool, location, type))
{
    return get(pool, location, type, true);
}

DRIVER_CALL(cuMemGetMemPool, 0,
            (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
            (pool, location, type))
{
    return get(pool, location, type, false);
}

DRIVER_CALL(cuMemSetMemPool, 0,
            (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool handle),
            (location, type, handle))
{
    struct pool *pool = handle_object(KIND_POOL, handle);
    struct place *place;
    CUresult result;
    if (location == NULL || pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = location_check(location, type);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pool_is_at(pool, location, type))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_devices_own(location, type)) {
        device_of(location->id)->current_pool = pool;
        return CUDA_SUCCESS;
    }
    place = place_of(location, type);
    if (place == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    place->current = pool;
    return CUDA_SUCCESS;
}
