/*
 * Rows about executables that are to have no user object of their graph's, since the driver
 * launches those that have one more slowly: the object is off the graph while they are made. And
 * what tells then that their launches are over.
 */
#include "graphs.h"

/* The program takes the object off the graph, with a reference of its own instead ... */
static void take_off(CUgraph graph, const struct object *object)
{
    SUCCEEDS(cuUserObjectRetain(object->handle, 1));
    SUCCEEDS(cuGraphReleaseUserObject(graph, object->handle, 1));
}

/* ... and gives it back, and that reference up. */
static void give_back(CUgraph graph, const struct object *object)
{
    SUCCEEDS(cuGraphRetainUserObject(graph, object->handle, 1, 0));
    SUCCEEDS(cuUserObjectRelease(object->handle, 1));
}

/* What was off the graph when an executable was made of it, the executable does not keep. The graph
 * keeps it as before, and its clones do. */
void objects_off_their_graph_for_a_while(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object), copy;
    CUgraphExec exec;
    take_off(graph, object);
    CHECK(stays(object));
    exec = instantiate(graph);
    give_back(graph, object);
    CHECK(stays(object));
    copy = clone_of(graph);
    destroy_graph(graph);
    CHECK(stays(object));
    destroy_graph(copy);
    CHECK(goes(object));
    launch_and_wait(exec);
    destroy_exec(exec);
}

/* ... nor does one that is updated by it, which keeps what it had before no more. */
void objects_off_their_graph_for_an_update(void)
{
    struct object *old = NULL, *new = NULL;
    CUgraph old_graph = capture_with_object(0, &old), new_graph = capture_with_object(0, &new);
    CUgraphExec exec = instantiate(old_graph);
    destroy_graph(old_graph);
    CHECK(stays(old));
    take_off(new_graph, new);
    SUCCEEDS(update(exec, new_graph));
    give_back(new_graph, new);
    CHECK(goes(old));
    CHECK(stays(new));
    destroy_graph(new_graph);
    CHECK(goes(new));
    launch_and_wait(exec);
    destroy_exec(exec);
}

static void off_and_on_again(void *argument)
{
    struct object *object = argument;
    CUgraph graph = new_graph();
    SUCCEEDS(cuGraphRetainUserObject(graph, object->handle, 1, 0));
    take_off(graph, object);
    give_back(graph, object);
    destroy_graph(graph);
}

/* No capture minds, in any mode, whichever thread does it. */
void objects_off_their_graph_beside_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        struct object *object = new_object();
        begin(mode);
        off_and_on_again(object);
        in_another_thread(off_and_on_again, object);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        destroy_graph(end_capture());
        CHECK(stays(object));
        SUCCEEDS(cuUserObjectRelease(object->handle, 1));
        CHECK(goes(object));
    }
}

/* An H100 answers 0. So the answer does not tell whether the graph had the object, and whoever asks
 * must know. Whether a reference is gone by that is told apart: of two others, both are there. */
void objects_that_the_graph_does_not_have(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object), other = new_graph();
    SUCCEEDS(cuUserObjectRetain(object->handle, 2));
    fact(cuGraphReleaseUserObject(other, object->handle, 1),
         "cuGraphReleaseUserObject of an object that the graph does not have");
    destroy_graph(other);
    CHECK(stays(object));
    SUCCEEDS(cuUserObjectRelease(object->handle, 1));
    destroy_graph(graph);
    fact(!goes(object), "after that, one reference of two is left");
}

/* Whoever destroys a graph or an executable need have none. */
void objects_need_no_context(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object);
    SUCCEEDS(cuCtxSetCurrent(NULL));
    take_off(graph, object);
    give_back(graph, object);
    SUCCEEDS(cuUserObjectRetain(object->handle, 1));
    destroy_graph(graph);
    CHECK(stays(object));
    SUCCEEDS(cuUserObjectRelease(object->handle, 1));
    CHECK(goes(object));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
}

/* A fence over the context's work of after that comes after the launches. */
static void comes_after_launches(CUgraphExec exec, CUgraph other)
{
    CUevent fence = new_event();
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    if (other != NULL)
        SUCCEEDS(update(exec, other));
    else
        destroy_exec(exec);
    SUCCEEDS(cuCtxRecordEvent(gpu.context, fence));
    EXPECT(cuEventQuery(fence), CUDA_ERROR_NOT_READY);
    SUCCEEDS(cuEventSynchronize(fence));
    SUCCEEDS(cuStreamQuery(gpu.a));
    SUCCEEDS(cuEventDestroy_v2(fence));
}

void fences_cover_what_destroyed_executables_do(void)
{
    CUgraph graph = kernel_graph(40);
    CUgraphExec exec = instantiate(graph);
    destroy_graph(graph);
    comes_after_launches(exec, NULL);
}

void fences_cover_what_updated_executables_did(void)
{
    CUgraph graph = kernel_graph(40), other = kernel_graph(0);
    CUgraphExec exec = instantiate(graph);
    destroy_graph(graph);
    comes_after_launches(exec, other);
    destroy_graph(other);
    destroy_exec(exec);
}
