/*
 * Physical memory of a device, which cuMemCreate takes and cuMemMap gives addresses.
 *
 * The driver frees it when the program holds no handle to it and nothing of it is mapped:
 *   it is there  <=>  holds + mappings > 0
 * cuMemCreate and each cuMemRetainAllocationHandle are one hold, and a cuMemRelease ends one. All
 * give the same handle, which stays good while the memory is there. A cuMemUnmap ends every mapping
 * inside its range. A context that ends, and a reset of the device, free nothing.
 *
 * Memory that another process made and this one imported has a handle that is not known here, and
 * is not counted. So is a handle that this process imports of its own memory: if it is the last to
 * go, the memory is counted for too short a time.
 *
 * Each pair of functions stands around the program's driver call (unpooled.h). What the first
 * returns is for the second; NULL means that the memory is not counted.
 */
#ifndef CUDAPOOL_CORE_PHYSICAL_H
#define CUDAPOOL_CORE_PHYSICAL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/driver/cuda_abi.h"
#include "unpooled.h"

struct pool;
struct physical;
struct mapping;

/* cuMemCreate on the device with this ordinal. False: see unpooled_take. */
bool physical_create_begins(struct pool *pool, CUdevice ordinal, size_t bytes,
                            struct unpooled *taken);
void physical_created(struct pool *pool, struct unpooled *taken, bool done,
                      CUmemGenericAllocationHandle handle);

/* cuMemRelease */
struct physical *physical_release_begins(struct pool *pool, CUmemGenericAllocationHandle handle);
void physical_released(struct pool *pool, struct physical *physical, bool done);

/* cuMemRetainAllocationHandle of what is mapped at the address */
struct physical *physical_retain_begins(struct pool *pool, CUdeviceptr address);
void physical_retained(struct pool *pool, struct physical *physical, bool done);

/* cuMemMap */
struct physical *physical_map_begins(struct pool *pool, CUmemGenericAllocationHandle handle);
void physical_mapped(struct pool *pool, struct physical *physical, bool done, CUdeviceptr address,
                     size_t bytes);

/* cuMemUnmap */
struct mapping *physical_unmap_begins(struct pool *pool, CUdeviceptr address, size_t bytes);
void physical_unmapped(struct pool *pool, struct mapping *mappings, bool done);

#endif
