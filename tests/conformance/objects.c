/*
 * User objects that tell when they were destroyed, and what else the rows about graphs share.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "graphs.h"

static void note_destroyed(void *argument)
{
    struct object *object = argument;
    object->destroyer = pthread_self();
    __atomic_add_fetch(&object->destroyed, 1, __ATOMIC_SEQ_CST);
}

struct object *new_object(void)
{
    enum { ALL_ROWS = 1024 };
    static struct object objects[ALL_ROWS];
    static unsigned int used;
    struct object *object;
    if (used == ALL_ROWS)
        abort();
    object = &objects[used++];
    SUCCEEDS(cuUserObjectCreate(&object->handle, object, note_destroyed, 1,
                                CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

void give_object(CUgraph graph, struct object *object)
{
    SUCCEEDS(cuGraphRetainUserObject(graph, object->handle, 1, CU_GRAPH_USER_OBJECT_MOVE));
}

struct object *object_kept_by(CUgraph graph)
{
    struct object *object = new_object();
    give_object(graph, object);
    return object;
}

bool is_gone(const struct object *object)
{
    int destroyed = __atomic_load_n(&object->destroyed, __ATOMIC_SEQ_CST);
    if (destroyed > 1)
        fail("a destructor ran %d times", destroyed);
    return destroyed > 0;
}

bool goes(const struct object *object)
{
    double end = now_ms() + 2000;
    while (!is_gone(object) && now_ms() < end)
        sleep_ms(0.5);
    return is_gone(object);
}

bool stays(const struct object *object)
{
    sleep_ms(15);
    return !is_gone(object);
}

bool goes_beside_work(const struct object *object, CUstream stream)
{
    bool went = false;
    for (;;) {
        bool gone = is_gone(object);
        CUresult result = cuStreamQuery(stream);
        if (result != CUDA_ERROR_NOT_READY) {
            SUCCEEDS(result);
            return went;
        }
        went = went || gone;
        sleep_ms(0.5);
    }
}

CUgraph graph_being_captured(CUstream stream)
{
    CUstreamCaptureStatus status = 0;
    CUgraph graph = NULL;
    SUCCEEDS(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph != NULL);
    return graph;
}

CUgraph end_capture(void)
{
    CUgraph graph = NULL;
    SUCCEEDS(cuStreamEndCapture(gpu.a, &graph));
    return graph;
}

CUgraph capture_with_object(double ms, struct object **object)
{
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    *object = object_kept_by(graph_being_captured(gpu.a));
    spin(gpu.a, ms);
    return end_capture();
}

CUgraph clone_of(CUgraph graph)
{
    CUgraph copy = NULL;
    SUCCEEDS(cuGraphClone(&copy, graph));
    return copy;
}

CUresult update(CUgraphExec exec, CUgraph graph)
{
    CUgraphExecUpdateResultInfo info = {0};
    return cuGraphExecUpdate_v2(exec, graph, &info);
}

void destroy_graph(CUgraph graph)
{
    SUCCEEDS(cuGraphDestroy(graph));
}

void destroy_exec(CUgraphExec exec)
{
    SUCCEEDS(cuGraphExecDestroy(exec));
}

struct errand {
    void (*function)(void *);
    void *argument;
};

static void *run_errand(void *argument)
{
    const struct errand *errand = argument;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    errand->function(errand->argument);
    return NULL;
}

void in_another_thread(void (*function)(void *), void *argument)
{
    struct errand errand = {function, argument};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_errand, &errand) == 0)
        pthread_join(thread, NULL);
    else
        fail("no thread");
}

CUstream new_stream(void)
{
    CUstream stream = NULL;
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}
