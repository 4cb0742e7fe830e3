/*
 * User objects: the program's own resources, which graphs keep alive. Where a graph or the program
 * lets the last reference go, the destructor has run when the call is back, in the thread that
 * called; where an executable graph does, it runs in the thread of host functions.
 */
#include <stdlib.h>

#include "sim.h"

struct user_object {
    CUuserObject handle;
    void *argument;
    CUhostFn destroy;
    uint64_t references;
    struct user_object *next; /* among those that the thread's call destroys */
};

struct user_reference {
    struct user_object *object;
    unsigned int count;
    unsigned int part; /* of an executable graph */
    struct user_reference *next;
};

static struct user_object *object_of(CUuserObject handle)
{
    return handle_object(KIND_USER_OBJECT, handle);
}

/* True if that was the last reference: the object is the caller's to destroy. */
static bool freed_outside(struct user_object *object, uint64_t count)
{
    object->references -= count < object->references ? count : object->references;
    if (object->references > 0)
        return false;
    handle_free(KIND_USER_OBJECT, object->handle);
    return true;
}

static __thread struct user_object *destroyed_by_call;

static void release(struct user_object *object, uint64_t count)
{
    if (!freed_outside(object, count))
        return;
    object->next = destroyed_by_call;
    destroyed_by_call = object;
}

void user_objects_destroy(void)
{
    struct thread *thread = this_thread();
    bool within_another = thread->in_host_function;
    thread->in_host_function = true;
    while (destroyed_by_call != NULL) {
        struct user_object *object = destroyed_by_call;
        destroyed_by_call = object->next;
        object->destroy(object->argument);
        free(object);
    }
    thread->in_host_function = within_another;
}

static void add_reference(struct graph *graph, unsigned int part, struct user_object *object,
                          unsigned int count)
{
    struct user_reference *reference = graph->user_objects;
    while (reference != NULL && (reference->object != object || reference->part != part))
        reference = reference->next;
    if (reference == NULL) {
        reference = calloc(1, sizeof *reference);
        if (reference == NULL)
            abort();
        reference->object = object;
        reference->part = part;
        reference->next = graph->user_objects;
        graph->user_objects = reference;
    }
    reference->count += count;
}

void user_references_copy(struct graph *target, unsigned int part, const struct graph *source)
{
    for (const struct user_reference *reference = source->user_objects; reference != NULL;
         reference = reference->next) {
        reference->object->references += reference->count;
        add_reference(target, part, reference->object, reference->count);
    }
}

static void free_references(struct work *work, struct op *op)
{
    while (work->references != NULL) {
        struct user_reference *reference = work->references;
        struct user_object *object = reference->object;
        work->references = reference->next;
        if (freed_outside(object, reference->count)) {
            run_on_host_thread(object->destroy, object->argument);
            free(object);
        }
        free(reference);
    }
}

static void release_after_use(struct user_reference *references, const struct graph *exec)
{
    struct work work = {.finish = free_references, .references = references};
    struct op *op;
    if (references == NULL)
        return;
    op = op_new(NULL, &work);
    op_after(op, exec->last_launch);
    op_after(op, exec->last_upload);
    op_submit(op);
    op_drop(op);
}

void user_references_free(struct graph *graph)
{
    struct user_reference *references = graph->user_objects;
    graph->user_objects = NULL;
    if (graph->exec_handle != NULL) {
        release_after_use(references, graph);
        return;
    }
    while (references != NULL) {
        struct user_reference *reference = references;
        references = reference->next;
        release(reference->object, reference->count);
        free(reference);
    }
}

static struct user_reference *take_part(struct graph *exec, unsigned int part)
{
    struct user_reference **link = &exec->user_objects, *taken = NULL;
    while (*link != NULL) {
        struct user_reference *reference = *link;
        if (reference->part != part) {
            link = &reference->next;
            continue;
        }
        *link = reference->next;
        reference->next = taken;
        taken = reference;
    }
    return taken;
}

void user_references_replace(struct graph *exec, unsigned int part, const struct graph *source)
{
    struct user_reference *old = take_part(exec, part);
    user_references_copy(exec, part, source);
    release_after_use(old, exec);
}

void user_references_swap(struct graph *exec, struct graph *other)
{
    struct user_reference *references = exec->user_objects;
    exec->user_objects = other->user_objects;
    other->user_objects = references;
    op_set(&other->last_launch, exec->last_launch);
    op_set(&other->last_upload, exec->last_upload);
}

static uint64_t objects_of(enum kind kind, const void *handle)
{
    uint64_t count = 0;
    pthread_mutex_lock(&sim.lock);
    const struct graph *graph = handle_object(kind, handle);
    for (const struct user_reference *reference = graph != NULL ? graph->user_objects : NULL;
         reference != NULL; reference = reference->next)
        count++;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

uint64_t simcuda_objects_of_graph(const void *graph)
{
    return objects_of(KIND_GRAPH, graph);
}

uint64_t simcuda_objects_of_executable(const void *executable)
{
    return objects_of(KIND_EXEC, executable);
}

DRIVER_CALL(cuUserObjectCreate, 0,
            (CUuserObject * handle, void *argument, CUhostFn destroy, unsigned int references,
             unsigned int flags),
            (handle, argument, destroy, references, flags))
{
    struct user_object *object;
    if (handle == NULL || destroy == NULL || references == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    object = calloc(1, sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->argument = argument;
    object->destroy = destroy;
    object->references = references;
    object->handle = handle_new(KIND_USER_OBJECT, object);
    *handle = object->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuUserObjectRetain, 0, (CUuserObject handle, unsigned int count), (handle, count))
{
    struct user_object *object = object_of(handle);
    if (object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    object->references += count;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuUserObjectRelease, 0, (CUuserObject handle, unsigned int count), (handle, count))
{
    struct user_object *object = object_of(handle);
    if (object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    release(object, count);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphRetainUserObject, 0,
            (CUgraph graph_handle, CUuserObject handle, unsigned int count, unsigned int flags),
            (graph_handle, handle, count, flags))
{
    struct graph *graph = handle_object(KIND_GRAPH, graph_handle);
    struct user_object *object = object_of(handle);
    if (graph == NULL || object == NULL || count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_GRAPH_USER_OBJECT_MOVE)
        object->references += count;
    add_reference(graph, 0, object, count);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphReleaseUserObject, 0,
            (CUgraph graph_handle, CUuserObject handle, unsigned int count),
            (graph_handle, handle, count))
{
    struct graph *graph = handle_object(KIND_GRAPH, graph_handle);
    struct user_object *object = object_of(handle);
    struct user_reference **link;
    if (graph == NULL || object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    link = &graph->user_objects;
    while (*link != NULL && (*link)->object != object)
        link = &(*link)->next;
    if (*link == NULL || (*link)->count < count)
        return CUDA_ERROR_INVALID_VALUE;
    (*link)->count -= count;
    if ((*link)->count == 0) {
        struct user_reference *reference = *link;
        *link = reference->next;
        free(reference);
    }
    release(object, count);
    return CUDA_SUCCESS;
}
