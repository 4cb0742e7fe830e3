/*
 * Memory of graphs' nodes: an address and memory from the moment at which the node is made until
 * neither a graph nor an executable has the node and the program no longer holds the memory.
 *
 * A launch allocates and frees at once, as far as calls can tell: what it allocates and does not
 * free is live when cuGraphLaunch is back, until the program, another graph or, with
 * CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, the next launch frees it. Live memory outlives
 * its graph. The device keeps memory that no graph needs any more, until it is trimmed.
 */
#include <stdlib.h>

#include "sim.h"

struct graph_memory {
    uint64_t address, bytes, allocation_id;
    struct device *device;
    const struct graph *owner; /* that allocates it; NULL once that is destroyed */
    unsigned int nodes;        /* of graphs and executables, that allocate or free it */
    unsigned int instances;    /* executables that allocate it */
    bool freed_by_owner, live;
    struct op *last_use;
    struct graph_memory *next;
};

static struct graph_memory *all;
static struct {
    uint64_t used, reserved;
} highest[MAX_DEVICES];

/* NULL once its context has taken it along. */
static struct allocation *allocation_of(const struct graph_memory *memory)
{
    struct allocation *allocation = allocation_at(memory->address);
    return allocation != NULL && allocation->id == memory->allocation_id ? allocation : NULL;
}

static struct graph_memory *memory_of(const struct allocation *allocation)
{
    struct graph_memory *memory = all;
    while (memory != NULL && memory->allocation_id != allocation->id)
        memory = memory->next;
    return memory;
}

static uint64_t bytes_on(const struct device *device, bool live_only)
{
    uint64_t bytes = 0;
    for (const struct graph_memory *memory = all; memory != NULL; memory = memory->next)
        if (memory->device == device && (memory->live || !live_only) &&
            allocation_of(memory) != NULL)
            bytes += memory->bytes;
    return bytes;
}

static uint64_t reserved_on(const struct device *device)
{
    return bytes_on(device, false) + device->kept;
}

static void note_highest(const struct device *device)
{
    uint64_t used = bytes_on(device, true), reserved = reserved_on(device);
    if (highest[device->ordinal].used < used)
        highest[device->ordinal].used = used;
    if (highest[device->ordinal].reserved < reserved)
        highest[device->ordinal].reserved = reserved;
}

static void forget_if_unused(struct graph_memory *memory)
{
    struct allocation *allocation = allocation_of(memory);
    struct graph_memory **link = &all;
    if (memory->nodes > 0 || (memory->live && allocation != NULL))
        return;
    if (allocation != NULL) {
        allocation_remove(allocation);
        allocation_release_after(allocation, memory->last_use);
        device_keep(memory->device, memory->bytes);
    }
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    op_drop(memory->last_use);
    free(memory);
}

/* --- nodes -------------------------------------------------------------------------------------*/

CUresult graph_memory_allocate(struct call *call, const struct graph *owner, size_t bytes,
                               struct work *work, CUdeviceptr *address)
{
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    device_give_kept(call->context->device, bytes);
    if (allocate_device(call, MEMORY_GRAPH, bytes == 0 ? 1 : bytes, address) != CUDA_SUCCESS) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->address = *address;
    memory->bytes = bytes;
    memory->allocation_id = allocation_at(*address)->id;
    memory->device = call->context->device;
    memory->owner = owner;
    memory->next = all;
    all = memory;
    note_highest(memory->device);
    *work = (struct work){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .memory = memory};
    return CUDA_SUCCESS;
}

CUresult graph_memory_free_node(const struct allocation *allocation, const struct graph *graph,
                                struct work *work)
{
    struct graph_memory *memory = memory_of(allocation);
    if (memory == NULL || memory->freed_by_owner)
        return CUDA_ERROR_INVALID_VALUE;
    memory->freed_by_owner = memory->owner == graph;
    *work = (struct work){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = memory};
    return CUDA_SUCCESS;
}

/* What the work allocates or frees, or NULL. */
static struct graph_memory *memory_in(const struct work *work)
{
    bool has_memory =
        work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || work->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    return has_memory ? work->memory : NULL;
}

static bool allocates(const struct work *work)
{
    return work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

void graph_memory_hold(const struct graph *graph, const struct work *work)
{
    struct graph_memory *memory = memory_in(work);
    if (memory == NULL)
        return;
    memory->nodes++;
    memory->instances += graph->exec_handle != NULL && allocates(work);
}

void graph_memory_drop(const struct graph *graph, const struct work *work)
{
    struct graph_memory *memory = memory_in(work);
    if (memory == NULL)
        return;
    memory->nodes--;
    memory->instances -= graph->exec_handle != NULL && allocates(work);
    if (memory->owner == graph)
        memory->owner = NULL;
    forget_if_unused(memory);
}

bool graph_memory_is_in(const struct graph *graph)
{
    for (const struct node *node = graph->nodes; node != NULL; node = node->next)
        if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            node->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            (node->child != NULL && graph_memory_is_in(node->child)))
            return true;
    return false;
}

bool graph_memory_is_instantiated(const struct graph *graph)
{
    for (const struct node *node = graph->nodes; node != NULL; node = node->next)
        if ((allocates(&node->work) && node->work.memory->instances > 0) ||
            (node->child != NULL && graph_memory_is_instantiated(node->child)))
            return true;
    return false;
}

/* --- launches and frees ------------------------------------------------------------------------*/

bool graph_memory_allows_launch(const struct graph *exec)
{
    for (const struct node *node = exec->nodes; node != NULL; node = node->next)
        if (allocates(&node->work) && node->work.memory->live && !exec->frees_on_launch)
            return false;
    return true;
}

void graph_memory_launched(const struct graph *exec, struct op *launch)
{
    for (const struct node *node = exec->nodes; node != NULL; node = node->next) {
        struct graph_memory *memory = memory_in(&node->work);
        if (memory == NULL)
            continue;
        memory->live = allocates(&node->work);
        op_set(&memory->last_use, launch);
        note_highest(memory->device);
    }
}

bool graph_memory_is_live(const struct allocation *allocation)
{
    const struct graph_memory *memory = memory_of(allocation);
    return memory != NULL && memory->live;
}

void graph_memory_freed(const struct allocation *allocation, struct op *op)
{
    struct graph_memory *memory = memory_of(allocation);
    memory->live = false;
    if (op != NULL)
        op_set(&memory->last_use, op);
    forget_if_unused(memory);
}

/* --- the driver's functions --------------------------------------------------------------------*/

DRIVER_CALL(cuDeviceGraphMemTrim, 0, (CUdevice ordinal), (ordinal))
{
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    device_give_kept(device, device->kept);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetGraphMemAttribute, 0,
            (CUdevice ordinal, CUgraphMem_attribute attribute, void *value),
            (ordinal, attribute, value))
{
    const struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    const cuuint64_t values[] = {
        [CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = bytes_on(device, true),
        [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = highest[device->ordinal].used,
        [CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = reserved_on(device),
        [CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] = highest[device->ordinal].reserved,
    };
    *(cuuint64_t *)value = values[attribute];
    return CUDA_SUCCESS;
}

/* The two highest values start again; nothing else can be set. */
DRIVER_CALL(cuDeviceSetGraphMemAttribute, 0,
            (CUdevice ordinal, CUgraphMem_attribute attribute, void *value),
            (ordinal, attribute, value))
{
    const struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || *(const cuuint64_t *)value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        highest[device->ordinal].used = bytes_on(device, true);
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        highest[device->ordinal].reserved = reserved_on(device);
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
