/*
 * Memory that ends with its context: arrays, managed memory, and what was opened there.
 *
 * The key of an array and of external memory is its handle, that of other memory its address. Keys
 * of different kinds may be equal.
 *
 * Each pair of functions stands around the program's driver call (unpooled.h).
 */
#ifndef CUDAPOOL_CORE_OWNED_H
#define CUDAPOOL_CORE_OWNED_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "unpooled.h"

struct context;
struct owned;
struct pool;

enum owned_kind {
    OWNED_ARRAY,
    OWNED_MIPMAPPED_ARRAY,
    OWNED_MANAGED,
    OWNED_IPC,     /* cuIpcOpenMemHandle */
    OWNED_EXTERNAL /* cuImportExternalMemory */
};

/* What a call is about to take. */
struct owned_coming {
    enum owned_kind kind;
    struct context *context; /* in which it is taken */
    uint64_t generation;     /* of that context */
    struct unpooled taken;
};

/* Array creation in the current context; levels 0: cuArrayCreate or cuArray3DCreate. False: see
 * unpooled_take. */
bool owned_array_begins(struct pool *pool, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels,
                        struct owned_coming *coming);

/* After such a call. key: what the driver has given. */
void owned_began(struct pool *pool, struct owned_coming *coming, bool done, uint64_t key);

/* cuMemAllocManaged in the current context. A limit counts all of it, wherever its pages are. The
 * driver never fails the call for lack of room: managed.h makes some, counted or not. address: 0
 * where the call has failed. */
bool owned_managed_begins(struct pool *pool, size_t bytes, struct owned_coming *coming);
void owned_managed_began(struct pool *pool, struct owned_coming *coming, size_t bytes,
                         CUdeviceptr address);

/* A call that frees what the key stands for. NULL: it is not counted. */
struct owned *owned_end_begins(struct pool *pool, enum owned_kind kind, uint64_t key);
void owned_ended(struct pool *pool, struct owned *owned, bool done);

/* The driver has opened memory of others in the current context. bytes 0: it is asked about the
 * address. The driver opens IPC memory again at the same address: so it stays open until it is
 * closed as often. */
void owned_opened(struct pool *pool, enum owned_kind kind, uint64_t key, uint64_t bytes);

/* As owned_ended, after a call that closes such memory once. */
void owned_closed(struct pool *pool, struct owned *owned, bool done);

extern const struct kind unpooled_memory;

#endif
