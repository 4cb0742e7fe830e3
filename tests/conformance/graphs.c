/*
 * Rows about what graphs keep: when user objects are destroyed that graphs, copies of graphs and
 * executable graphs refer to. Memory that captures allocate will live exactly as long.
 *
 * NVIDIA's programming guide ("CUDA User Objects") says what clones, executables, child graphs and
 * updates keep, and that nothing goes while a launch is pending. Where it leaves open what captured
 * memory will rely on, rows expect what an H200 answers. What is left is a fact. No row calls the
 * driver inside a destructor, which is forbidden.
 */
#include "graphs.h"

/* --- graphs and their copies -------------------------------------------------------------------*/

void captured_graphs_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object);
    CHECK(stays(object));
    destroy_graph(graph);
    CHECK(goes(object));
}

/* What it was given while it was captured can be taken from it by the handle that the capture's end
 * gives, before anybody makes an executable of it. */
void captured_graphs_let_objects_go(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object);
    SUCCEEDS(cuGraphReleaseUserObject(graph, object->handle, 1));
    CHECK(is_gone(object));
    CUgraphExec exec = instantiate(graph);
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    destroy_exec(exec);
    destroy_graph(graph);
}

/* Without CU_GRAPH_USER_OBJECT_MOVE the graph has a reference beside the program's. */
void retained_references_are_apart_from_the_programs(void)
{
    struct object *object = new_object();
    CUgraph graph;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuGraphRetainUserObject(graph_being_captured(gpu.a), object->handle, 1, 0));
    graph = end_capture();
    destroy_graph(graph);
    CHECK(stays(object));
    SUCCEEDS(cuUserObjectRelease(object->handle, 1));
    CHECK(goes(object));
}

void clones_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object), copy = clone_of(graph);
    destroy_graph(graph);
    CHECK(stays(object));
    destroy_graph(copy);
    CHECK(goes(object));
}

void executables_of_clones_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object), copy = clone_of(graph);
    CUgraphExec exec = instantiate(copy);
    destroy_graph(graph);
    destroy_graph(copy);
    launch_and_wait(exec);
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

/* Graph and executable are destroyed at once after the launch. */
void pending_launches_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(40, &object);
    CUgraphExec exec = instantiate(graph);
    double start;
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    start = now_ms();
    destroy_graph(graph);
    destroy_exec(exec);
    note("destroying both beside a launch of 40 ms took %.1f ms", now_ms() - start);
    CHECK(!goes_beside_work(object, gpu.a));
    CHECK(goes(object));
}

struct retaining {
    CUgraph graph;
    struct object *object;
    CUresult result;
};

static void retain_elsewhere(void *argument)
{
    struct retaining *retaining = argument;
    retaining->result = cuGraphRetainUserObject(retaining->graph, retaining->object->handle, 1, 0);
}

void objects_retained_by_other_threads(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        struct retaining retaining = {NULL, new_object(), CUDA_SUCCESS};
        CUgraph graph;
        begin(mode);
        retaining.graph = graph_being_captured(gpu.a);
        in_another_thread(retain_elsewhere, &retaining);
        SUCCEEDS(retaining.result);
        graph = end_capture();
        SUCCEEDS(cuUserObjectRelease(retaining.object->handle, 1));
        CHECK(stays(retaining.object));
        destroy_graph(graph);
        CHECK(goes(retaining.object));
    }
}

/* A capture has one graph, which every stream in it tells; the object is given through the fork. */
void forked_streams_tell_the_same_graph(void)
{
    CUevent fork = new_event(), join = new_event();
    struct object *object;
    CUstreamCaptureStatus status = 0;
    CUgraph told, graph = NULL;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuEventRecord(fork, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(gpu.b, fork, 0));
    told = graph_being_captured(gpu.b);
    CHECK(told == graph_being_captured(gpu.a));
    SUCCEEDS(cuStreamGetCaptureInfo_v3(gpu.b, &status, NULL, &graph, NULL, NULL, NULL));
    CHECK(told == graph);
    object = object_kept_by(told);
    spin(gpu.b, 0);
    SUCCEEDS(cuEventRecord(join, gpu.b));
    SUCCEEDS(cuStreamWaitEvent(gpu.a, join, 0));
    graph = end_capture();
    CHECK(graph == told);
    CHECK(stays(object));
    destroy_graph(graph);
    CHECK(goes(object));
    SUCCEEDS(cuEventDestroy_v2(fork));
    SUCCEEDS(cuEventDestroy_v2(join));
}

static void tell_destroyer(const struct object *object, bool at_once, const char *after)
{
    CHECK(goes(object));
    note("after %s: it had run when the call was back: %s", after, at_once ? "yes" : "no");
    if (is_gone(object))
        note("after %s: it ran in the %s thread", after,
             pthread_equal(object->destroyer, pthread_self()) ? "calling" : "driver's");
}

/* An H200 runs the first two in the calling thread, before the call is back, so whoever makes such
 * a call must hold no lock that the destructor takes. It runs the last one in a thread of its own.
 */
void destructors_threads(void)
{
    struct object *released = new_object(), *kept = NULL, *launched = NULL;
    CUgraph graph = capture_with_object(0, &kept);
    CUgraphExec exec;
    SUCCEEDS(cuUserObjectRelease(released->handle, 1));
    tell_destroyer(released, is_gone(released), "cuUserObjectRelease");
    destroy_graph(graph);
    tell_destroyer(kept, is_gone(kept), "cuGraphDestroy");
    graph = capture_with_object(0, &launched);
    exec = instantiate(graph);
    destroy_graph(graph);
    launch_and_wait(exec);
    destroy_exec(exec);
    tell_destroyer(launched, is_gone(launched), "cuGraphExecDestroy");
}

/* --- updates -----------------------------------------------------------------------------------*/

/* The executable then keeps what the new graph has, and the old graph's no longer. */
void updates_replace_objects(void)
{
    struct object *old = NULL, *new = NULL;
    CUgraph old_graph = capture_with_object(0, &old), new_graph = capture_with_object(0, &new);
    CUgraphExec exec = instantiate(old_graph);
    launch_and_wait(exec);
    SUCCEEDS(update(exec, new_graph));
    CHECK(stays(old));
    destroy_graph(old_graph);
    CHECK(goes(old));
    destroy_graph(new_graph);
    CHECK(stays(new));
    launch_and_wait(exec);
    CHECK(stays(new));
    destroy_exec(exec);
    CHECK(goes(new));
}

/* The launch still uses what the old graph had. */
void updates_beside_launches_keep_objects(void)
{
    struct object *old = NULL, *new = NULL;
    CUgraph old_graph = capture_with_object(40, &old), new_graph = capture_with_object(0, &new);
    CUgraphExec exec = instantiate(old_graph);
    double start;
    destroy_graph(old_graph);
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    start = now_ms();
    SUCCEEDS(update(exec, new_graph));
    note("cuGraphExecUpdate beside a launch of 40 ms took %.1f ms", now_ms() - start);
    destroy_graph(new_graph);
    CHECK(!goes_beside_work(old, gpu.a));
    CHECK(goes(old));
    CHECK(stays(new));
    destroy_exec(exec);
    CHECK(goes(new));
}

/* Two updates beside one launch: what only the first one brought was never launched. */
void objects_that_were_never_launched(void)
{
    struct object *launched = NULL, *skipped = NULL, *last = NULL;
    CUgraph graph = capture_with_object(40, &launched), between = capture_with_object(0, &skipped);
    CUgraph last_graph = capture_with_object(0, &last);
    CUgraphExec exec = instantiate(graph);
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    SUCCEEDS(update(exec, between));
    SUCCEEDS(update(exec, last_graph));
    destroy_graph(graph);
    destroy_graph(between);
    destroy_graph(last_graph);
    note("they go while an earlier launch is pending: %s",
         goes_beside_work(skipped, gpu.a) ? "yes" : "no");
    CHECK(goes(launched) && goes(skipped));
    launch_and_wait(exec);
    CHECK(stays(last));
    destroy_exec(exec);
    CHECK(goes(last));
}

/* What the graph is given after it was instantiated, an executable has only after an update. */
void objects_given_after_instantiating(void)
{
    struct object *first = NULL, *later;
    CUgraph graph = capture_with_object(0, &first);
    CUgraphExec before = instantiate(graph), updated = instantiate(graph);
    later = object_kept_by(graph);
    SUCCEEDS(update(updated, graph));
    destroy_graph(graph);
    CHECK(stays(later));
    destroy_exec(updated);
    CHECK(goes(later));
    CHECK(stays(first));
    destroy_exec(before);
    CHECK(goes(first));
}

/* The new graph has a kernel more. The executable stays as it was, and may be launched. */
void failed_updates_and_objects(void)
{
    struct object *old = NULL, *new = NULL;
    CUgraph old_graph = capture_with_object(0, &old), longer;
    CUgraphExec exec = instantiate(old_graph);
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    new = object_kept_by(graph_being_captured(gpu.a));
    spin(gpu.a, 0);
    spin(gpu.a, 0);
    longer = end_capture();
    EXPECT(update(exec, longer), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    destroy_graph(old_graph);
    destroy_graph(longer);
    CHECK(goes(new));
    launch_and_wait(exec);
    CHECK(stays(old));
    destroy_exec(exec);
    CHECK(goes(old));
}

void updates_by_the_own_graph_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object);
    CUgraphExec exec = instantiate(graph);
    SUCCEEDS(update(exec, graph));
    SUCCEEDS(update(exec, graph));
    destroy_graph(graph);
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

/* --- child graphs ------------------------------------------------------------------------------*/

void child_graphs_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph child = capture_with_object(0, &object), parent = new_graph();
    CUgraphExec exec;
    add_child(parent, child);
    destroy_graph(child);
    CHECK(stays(object));
    exec = instantiate(parent);
    destroy_graph(parent);
    launch_and_wait(exec);
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

void changed_child_graphs_replace_objects(void)
{
    struct object *old = NULL, *new = NULL;
    CUgraph child = capture_with_object(0, &old), other = capture_with_object(0, &new);
    CUgraph parent = new_graph();
    CUgraphNode node = add_child(parent, child);
    CUgraphExec exec = instantiate(parent);
    SUCCEEDS(cuGraphExecChildGraphNodeSetParams(exec, node, other));
    destroy_graph(child);
    destroy_graph(other);
    CHECK(stays(old));
    destroy_graph(parent);
    CHECK(goes(old));
    CHECK(stays(new));
    launch_and_wait(exec);
    destroy_exec(exec);
    CHECK(goes(new));
}

/* An update by a parent whose child graph has another object. */
void updated_child_graphs_and_objects(void)
{
    struct object *old = NULL, *new = NULL;
    CUgraph child = capture_with_object(0, &old), other = capture_with_object(0, &new);
    CUgraph parent = new_graph(), other_parent = new_graph();
    CUgraphExec exec;
    add_child(parent, child);
    add_child(other_parent, other);
    destroy_graph(child);
    destroy_graph(other);
    exec = instantiate(parent);
    SUCCEEDS(update(exec, other_parent));
    destroy_graph(parent);
    destroy_graph(other_parent);
    CHECK(goes(old));
    launch_and_wait(exec);
    CHECK(stays(new));
    destroy_exec(exec);
    CHECK(goes(new));
}

/* So no graph uses what another has but by a child graph's node. */
void captured_launches_and_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object), captured = NULL;
    CUgraphExec exec = instantiate(graph);
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(cuGraphLaunch(exec, gpu.a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(cuStreamEndCapture(gpu.a, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    destroy_graph(graph);
    launch_and_wait(exec);
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

/* The child graph itself, not a copy, becomes the parent's, and can no more be
 * instantiated on its own. Wants driver 12.9. */
void moved_child_graphs_keep_objects(void)
{
    struct object *object = NULL;
    CUgraph child = capture_with_object(0, &object), parent = new_graph();
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUgraphNode node = NULL;
    CUgraphExec exec, alone = NULL;
    int version = 0;
    parameters.graph.graph = child;
    parameters.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    SUCCEEDS(cuDriverGetVersion(&version));
    if (version < 12090) {
        destroy_graph(child);
        destroy_graph(parent);
        CHECK(goes(object));
        return;
    }
    SUCCEEDS(cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &parameters));
    CHECK(stays(object));
    FAILS(cuGraphInstantiateWithFlags(&alone, child, 0));
    exec = instantiate(parent);
    destroy_graph(parent);
    launch_and_wait(exec);
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

/* The simulated driver has no conditional nodes: it answers CUDA_ERROR_NOT_SUPPORTED, where an H200
 * adds the node, and the row ends there. An object is given to the body of an if node whose
 * condition is 0. */
void conditional_bodies_and_objects(void)
{
    CUgraph graph = new_graph();
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CUgraphNode node = NULL, inside = NULL;
    CUgraphExec exec;
    struct object *object = new_object();
    CUresult result =
        cuGraphConditionalHandleCreate(&parameters.conditional.handle, graph, gpu.context, 0, 1);
    parameters.conditional.type = CU_GRAPH_COND_TYPE_IF;
    parameters.conditional.size = 1;
    parameters.conditional.ctx = gpu.context;
    if (result == CUDA_SUCCESS)
        result = cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &parameters);
    fact(result, "adding a conditional node");
    if (result != CUDA_SUCCESS || parameters.conditional.phGraph_out == NULL) {
        destroy_graph(graph);
        SUCCEEDS(cuUserObjectRelease(object->handle, 1));
        return;
    }
    SUCCEEDS(cuGraphAddEmptyNode(&inside, parameters.conditional.phGraph_out[0], NULL, 0));
    give_object(parameters.conditional.phGraph_out[0], object);
    exec = instantiate(graph);
    CHECK(stays(object));
    destroy_graph(graph);
    launch_and_wait(exec);
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

/* --- uploads -----------------------------------------------------------------------------------*/

void uploads_need_no_graph(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object);
    CUgraphExec exec = instantiate(graph);
    destroy_graph(graph);
    SUCCEEDS(cuGraphUpload(exec, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    CHECK(stays(object));
    launch_and_wait(exec);
    SUCCEEDS(cuGraphUpload(exec, gpu.b));
    SUCCEEDS(cuGraphLaunch(exec, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    CHECK(stays(object));
    destroy_exec(exec);
    CHECK(goes(object));
}

/* An upload is no launch: whether the destructor waits for what the stream has before it. */
void pending_uploads_and_objects(void)
{
    struct object *object = NULL;
    CUgraph graph = capture_with_object(0, &object);
    CUgraphExec exec = instantiate(graph);
    destroy_graph(graph);
    spin(gpu.b, 40);
    SUCCEEDS(cuGraphUpload(exec, gpu.b));
    destroy_exec(exec);
    fact(!goes_beside_work(object, gpu.b), "a pending upload keeps objects");
    CHECK(goes(object));
}
