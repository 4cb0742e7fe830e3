/*
 * Does the race detector of the simulated driver report what it should, and nothing else?
 *
 * Each case hands a piece of memory from one allocation of the program to the next by telling so
 * (no allocator takes part), with a use before and a use after, and something between the two that
 * orders them or does not. Run with SIMCUDA_RACES on. Arguments: "threads" for the cases in which
 * the program tells how its threads synchronise; a name for that case alone, with its report.
 */
#define RACES_PLAIN_NAMES
#include <sys/mman.h>

#include "../gpu/gpu.h"

enum { WORDS = 1024, BYTES = 4 * WORDS };

enum verdict { SILENT, HAZARD, PROGRAM_ERROR, LOST_PROGRESS };
static const char *const verdicts[] = {"nothing", "a hazard", "an error of the program",
                                       "lost progress"};

/* What every case finds: two contexts, the first current in all threads; streams that no work is
 * in; a piece of memory that the program's allocation 1 has; other memory that it told nothing of.
 */
static CUcontext context, other_context;
static struct kernels kernels, other_kernels;
static CUstream one, two, three, blocking, blocking_too, elsewhere;
static CUevent event, event_too, event_elsewhere;
static CUdeviceptr piece, aside, counter;
static unsigned int *pinned, pageable[WORDS];
static unsigned int *flag; /* pinned as well */

/* --- telling -----------------------------------------------------------------------------------*/

static unsigned long long owner;

static void new_owner_of(CUdeviceptr address, size_t bytes)
{
    simcuda_program_allocated(address, bytes, ++owner);
}

/* The piece is another allocation's from now on. */
static void hand_over(void)
{
    simcuda_program_freed(piece);
    new_owner_of(piece, BYTES);
}

/* --- uses --------------------------------------------------------------------------------------*/

static void write_on(CUstream stream)
{
    fill(&kernels, stream, piece, WORDS, 1);
}

static void read_on(CUstream stream)
{
    verify(&kernels, stream, piece, WORDS, 1, counter);
}

static void write_elsewhere(void)
{
    CHECK(cuCtxSetCurrent(other_context));
    fill(&other_kernels, elsewhere, piece, WORDS, 1);
    CHECK(cuCtxSetCurrent(context));
}

static void write_early(CUstream stream)
{
    unsigned int words = WORDS, value = 1;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &attribute,
                             .numAttrs = 1};
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CHECK(cuLaunchKernelEx(&config, kernels.fill, (void *[]){&piece, &words, &value}, NULL));
}

static void busy(CUstream stream)
{
    spin(&kernels, stream, 3000000);
}

/* Work that is not held up is over after this, and nobody was told. */
static void let_it_end(void)
{
    CUdevice device;
    usleep(2000);
    simcuda_advance(10000000);
    CHECK(cuCtxGetDevice(&device));
}

static void wait_for(CUstream stream, CUevent recorded)
{
    CHECK(cuStreamWaitEvent(stream, recorded, 0));
}

static void record_on(CUevent recorded, CUstream stream)
{
    CHECK(cuEventRecord(recorded, stream));
}

static void fence(void)
{
    CHECK(cuCtxRecordEvent(NULL, event));
}

static void barrier(void)
{
    CHECK(cuCtxWaitEvent(NULL, event));
}

/* Asks until the event has happened. */
static void ask_until_done(CUevent recorded)
{
    CUresult result;
    while ((result = cuEventQuery(recorded)) == CUDA_ERROR_NOT_READY)
        let_it_end();
    CHECK(result);
}

static void in_another_thread(void (*body)(unsigned int))
{
    struct worker worker;
    start_worker(&worker, body, 0);
    join_worker(&worker);
}

static void begin_capture(void)
{
    CHECK(cuStreamBeginCapture_v2(three, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUgraphExec end_capture(void)
{
    CUgraph graph;
    CUgraphExec executable;
    CHECK(cuStreamEndCapture(three, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return executable;
}

static CUgraphExec graph_that_writes(void)
{
    begin_capture();
    write_on(three);
    return end_capture();
}

static void launch_and_forget(CUgraphExec executable, CUstream stream)
{
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuGraphExecDestroy(executable));
}

/* --- cases -------------------------------------------------------------------------------------*/

struct test {
    const char *name;
    enum verdict verdict;
    void (*body)(void);
};

/* The first word is what must come out; the block is the case. */
#define CASES(X)                                                                                   \
    /* streams */                                                                                  \
    X(HAZARD, two_streams, write_on(one), hand_over(), write_on(two))                              \
    X(HAZARD, write_then_read, write_on(one), hand_over(), read_on(two))                           \
    X(HAZARD, read_then_write, read_on(one), hand_over(), write_on(two))                           \
    X(SILENT, read_then_read, read_on(one), hand_over(), read_on(two))                             \
    X(SILENT, one_stream, write_on(one), hand_over(), write_on(one))                               \
    X(SILENT, one_owner, write_on(one), write_on(two))                                             \
    X(HAZARD, finished_but_not_observed, write_on(one), let_it_end(), hand_over(), write_on(two))  \
    X(HAZARD, third_owner, write_on(one), hand_over(), hand_over(), write_on(two))                 \
    X(HAZARD, second_stream_of_the_owner, write_on(one), hand_over(), write_on(one),               \
      write_on(two))                                                                               \
    X(HAZARD, read_after_write, write_on(one), read_on(one), hand_over(), read_on(two))            \
    X(HAZARD, part_written_again, write_on(one), fill_bytes(one, 0, 8), hand_over(),               \
      fill_bytes(two, 100, 8))                                                                     \
    X(HAZARD, two_streams_of_the_owner, write_on(one), write_on(two),                              \
      CHECK(cuStreamSynchronize(two)), hand_over(), write_on(three))                               \
    X(HAZARD, legacy_then_non_blocking, write_on(NULL), hand_over(), write_on(one))                \
    X(HAZARD, non_blocking_then_legacy, write_on(one), hand_over(), write_on(NULL))                \
    X(SILENT, legacy_then_blocking, write_on(NULL), hand_over(), write_on(blocking))               \
    X(SILENT, blocking_then_legacy, write_on(blocking), hand_over(), write_on(NULL))               \
    X(HAZARD, blocking_then_blocking, write_on(blocking), hand_over(), write_on(blocking_too))     \
    X(SILENT, blocking_legacy_blocking, write_on(blocking), hand_over(), busy(NULL),               \
      write_on(blocking_too))                                                                      \
    X(HAZARD, non_blocking_legacy_blocking, write_on(one), hand_over(), busy(NULL),                \
      write_on(blocking))                                                                          \
    X(SILENT, legacy_then_per_thread, write_on(NULL), hand_over(), write_on(CU_STREAM_PER_THREAD)) \
    X(SILENT, per_thread_then_legacy, write_on(CU_STREAM_PER_THREAD), hand_over(),                 \
      write_on(CU_STREAM_LEGACY))                                                                  \
    X(HAZARD, per_thread_then_non_blocking, write_on(CU_STREAM_PER_THREAD), hand_over(),           \
      write_on(one))                                                                               \
    X(HAZARD, per_thread_streams_of_two_threads, write_on(CU_STREAM_PER_THREAD), hand_over(),      \
      in_another_thread(write_per_thread))                                                         \
    X(SILENT, one_stream_from_two_threads, write_on(one), hand_over(),                             \
      in_another_thread(write_on_one))                                                             \
    X(HAZARD, freed_and_used_by_another_thread, write_on(one),                                     \
      in_another_thread(hand_over_in_thread), write_on(two))                                       \
    X(HAZARD, other_contexts_stream, write_on(one), hand_over(), write_elsewhere())                \
    X(SILENT, destroyed_blocking_stream_then_legacy, use_and_destroy_stream(0), hand_over(),       \
      write_on(NULL))                                                                              \
    X(HAZARD, destroyed_non_blocking_stream_then_legacy,                                           \
      use_and_destroy_stream(CU_STREAM_NON_BLOCKING), hand_over(), write_on(NULL))                 \
    X(HAZARD, destroyed_stream_then_new_one, use_and_destroy_stream(0), hand_over(),               \
      use_and_destroy_stream(0))                                                                   \
    /* bytes */                                                                                    \
    X(SILENT, other_bytes, fill_bytes(one, 0, 100), hand_over(), fill_bytes(two, 100, 100))        \
    X(HAZARD, one_byte_in_common, fill_bytes(one, 0, 101), hand_over(), fill_bytes(two, 100, 100)) \
    X(SILENT, other_columns, copy_columns(one, 0), hand_over(), copy_columns(two, 16))             \
    X(HAZARD, same_columns, copy_columns(one, 0), hand_over(), copy_columns(two, 15))              \
    X(SILENT, bytes_between_columns, copy_columns(one, 0), hand_over(), fill_bytes(two, 16, 16))   \
    X(HAZARD, part_of_a_column, copy_columns(one, 0), hand_over(), fill_bytes(two, 16, 17))        \
    X(HAZARD, smaller_owner, write_on(one), hand_over_part(), fill_bytes(two, 1024, 8))            \
    X(SILENT, smaller_owner_ordered, write_on(one), hand_over_part(), fill_bytes(one, 1024, 8))    \
    X(HAZARD, rest_after_smaller_owner, write_on(one), hand_over_part(), hand_over_rest(),         \
      fill_bytes(two, 2048, 8))                                                                    \
    /* kinds of work */                                                                            \
    X(HAZARD, fills, fill_bytes(one, 0, 8), hand_over(), fill_bytes(two, 0, 8))                    \
    X(HAZARD, fill_of_legacy, write_on(one), hand_over(), CHECK(cuMemsetD32_v2(piece, 1, WORDS)))  \
    X(HAZARD, copy_from_pinned, copy_in(one), hand_over(), write_on(two))                          \
    X(HAZARD, copy_to_pinned, copy_out(one), hand_over(), write_on(two))                           \
    X(SILENT, copy_to_pinned_then_read, copy_out(one), hand_over(), read_on(two))                  \
    X(HAZARD, copy_within_device, write_on(one), hand_over(),                                      \
      CHECK(cuMemcpyDtoDAsync_v2(piece, aside, BYTES, two)))                                       \
    X(HAZARD, copy_within_device_reads, write_on(one), hand_over(),                                \
      CHECK(cuMemcpyDtoDAsync_v2(aside, piece, BYTES, two)))                                       \
    X(HAZARD, peer_copy, write_on(one), hand_over(), copy_to_peer(two))                            \
    X(HAZARD, peer_copy_first, copy_to_peer(one), hand_over(), write_on(two))                      \
    X(SILENT, peer_copy_ordered, write_on(one), hand_over(), copy_to_peer(one))                    \
    X(HAZARD, copy_from_pageable, write_on(one), hand_over(),                                      \
      CHECK(cuMemcpyHtoDAsync_v2(piece, pageable, BYTES, two)))                                    \
    X(HAZARD, pageable_copy_in_is_not_over, CHECK(cuMemcpyHtoD_v2(piece, pageable, BYTES)),        \
      hand_over(), write_on(one))                                                                  \
    X(SILENT, pinned_copy_in_is_over, CHECK(cuMemcpyHtoD_v2(piece, pinned, BYTES)), hand_over(),   \
      write_on(one))                                                                               \
    X(SILENT, copy_out_is_over, CHECK(cuMemcpyDtoH_v2(pageable, piece, BYTES)), hand_over(),       \
      write_on(one))                                                                               \
    X(SILENT, async_copy_to_pageable_is_over,                                                      \
      CHECK(cuMemcpyDtoHAsync_v2(pageable, piece, BYTES, one)), hand_over(), write_on(two))        \
    X(SILENT, copy_in_ends_earlier_blocking_work, write_on(blocking),                              \
      CHECK(cuMemcpyHtoD_v2(aside, pageable, BYTES)), hand_over(), write_on(one))                  \
    X(HAZARD, copy_ends_no_non_blocking_work, write_on(two),                                       \
      CHECK(cuMemcpyDtoH_v2(pageable, aside, BYTES)), hand_over(), write_on(one))                  \
    /* events */                                                                                   \
    X(SILENT, event_after_use, write_on(one), hand_over(), record_on(event, one),                  \
      wait_for(two, event), write_on(two))                                                         \
    X(HAZARD, event_before_use, record_on(event, one), write_on(one), hand_over(),                 \
      wait_for(two, event), write_on(two))                                                         \
    X(HAZARD, event_never_recorded, write_on(one), hand_over(), wait_for(two, fresh_event()),      \
      write_on(two))                                                                               \
    X(HAZARD, event_on_another_stream, write_on(one), record_on(event, three), hand_over(),        \
      wait_for(two, event), write_on(two))                                                         \
    X(HAZARD, event_recorded_again_elsewhere, write_on(one), record_on(event, one),                \
      record_on(event, three), hand_over(), wait_for(two, event), write_on(two))                   \
    X(SILENT, event_recorded_again_after_wait, write_on(one), record_on(event, one), hand_over(),  \
      wait_for(two, event), record_on(event, three), write_on(two))                                \
    X(SILENT, event_recorded_again_later, record_on(event, one), write_on(one),                    \
      record_on(event, one), hand_over(), wait_for(two, event), write_on(two))                     \
    X(HAZARD, wait_after_second_use, write_on(one), record_on(event, one), hand_over(),            \
      write_on(two), wait_for(two, event))                                                         \
    X(HAZARD, wait_in_another_stream, write_on(one), record_on(event, one), hand_over(),           \
      wait_for(three, event), write_on(two))                                                       \
    X(SILENT, wait_through_a_third_stream, write_on(one), record_on(event, one), hand_over(),      \
      wait_for(three, event), record_on(event_too, three), wait_for(two, event_too),               \
      write_on(two))                                                                               \
    X(HAZARD, third_stream_recorded_before_its_wait, write_on(one), record_on(event, one),         \
      record_on(event_too, three), hand_over(), wait_for(three, event), wait_for(two, event_too),  \
      write_on(two))                                                                               \
    X(SILENT, wait_for_what_has_ended, write_on(one), record_on(event, one), let_it_end(),         \
      hand_over(), wait_for(two, event), write_on(two))                                            \
    X(SILENT, event_waited_for_by_legacy, write_on(one), record_on(event, one), hand_over(),       \
      wait_for(NULL, event), write_on(blocking))                                                   \
    X(SILENT, event_of_destroyed_stream, use_record_and_destroy_stream(), hand_over(),             \
      wait_for(two, event), write_on(two))                                                         \
    X(SILENT, event_across_contexts, write_on(one), record_on(event, one), hand_over(),            \
      wait_for(elsewhere, event), write_elsewhere())                                               \
    /* fences and barriers */                                                                      \
    X(SILENT, fence_and_barrier, write_on(one), hand_over(), fence(), barrier(), write_on(two))    \
    X(HAZARD, fence_before_use, fence(), write_on(one), hand_over(), barrier(), write_on(two))     \
    X(HAZARD, fence_without_barrier, write_on(one), hand_over(), fence(), write_on(two))           \
    X(HAZARD, barrier_after_second_use, write_on(one), hand_over(), fence(), write_on(two),        \
      barrier())                                                                                   \
    X(SILENT, barrier_for_what_has_ended, write_on(one), hand_over(), fence(), let_it_end(),       \
      barrier(), write_on(two))                                                                    \
    X(SILENT, barrier_before_new_stream, write_on(one), hand_over(), fence(), barrier(),           \
      use_and_destroy_stream(CU_STREAM_NON_BLOCKING))                                              \
    X(SILENT, fence_over_destroyed_stream, use_and_destroy_stream(CU_STREAM_NON_BLOCKING),         \
      hand_over(), fence(), barrier(), write_on(two))                                              \
    X(SILENT, barrier_orders_legacy_and_copies, write_on(one), hand_over(), fence(), barrier(),    \
      CHECK(cuMemcpyHtoDAsync_v2(piece, pageable, BYTES, NULL)))                                   \
    X(SILENT, fence_waited_for_by_one_stream, write_on(one), hand_over(), fence(),                 \
      wait_for(two, event), write_on(two))                                                         \
    X(HAZARD, fence_waited_for_by_another_stream, write_on(one), hand_over(), fence(),             \
      wait_for(three, event), write_on(two))                                                       \
    X(HAZARD, fence_over_another_context, write_on(one), hand_over(), fence_elsewhere(),           \
      CHECK(cuCtxWaitEvent(NULL, event_elsewhere)), write_on(two))                                 \
    X(HAZARD, barrier_over_another_context, write_on(one), hand_over(), fence(),                   \
      CHECK(cuCtxWaitEvent(other_context, event)), write_on(two))                                  \
    X(SILENT, barrier_across_contexts, write_on(one), hand_over(), fence(),                        \
      CHECK(cuCtxWaitEvent(other_context, event)), write_elsewhere())                              \
    X(SILENT, two_barriers, write_on(one), hand_over(), fence(), barrier(), fence(), barrier(),    \
      write_on(two))                                                                               \
    X(SILENT, barrier_for_older_fence_on_top, CHECK(cuCtxRecordEvent(NULL, event_too)),            \
      write_on(one), hand_over(), fence(), barrier(), CHECK(cuCtxWaitEvent(NULL, event_too)),      \
      write_on(two))                                                                               \
    X(SILENT, second_fence_covers_the_first, write_on(one), hand_over(), fence(),                  \
      CHECK(cuCtxRecordEvent(NULL, event_too)), CHECK(cuCtxWaitEvent(NULL, event_too)),            \
      write_on(two))                                                                               \
    /* observations */                                                                             \
    X(SILENT, context_synchronised, write_on(one), CHECK(cuCtxSynchronize()), hand_over(),         \
      write_on(two))                                                                               \
    X(HAZARD, other_context_synchronised, write_on(one), synchronise_elsewhere(), hand_over(),     \
      write_on(two))                                                                               \
    X(SILENT, stream_synchronised, write_on(one), CHECK(cuStreamSynchronize(one)), hand_over(),    \
      write_on(two))                                                                               \
    X(HAZARD, other_stream_synchronised, write_on(one), CHECK(cuStreamSynchronize(three)),         \
      hand_over(), write_on(two))                                                                  \
    X(HAZARD, used_after_synchronise, CHECK(cuCtxSynchronize()), write_on(one), hand_over(),       \
      write_on(two))                                                                               \
    X(SILENT, legacy_synchronised_covers_blocking, write_on(blocking),                             \
      CHECK(cuStreamSynchronize(NULL)), hand_over(), write_on(two))                                \
    X(HAZARD, legacy_synchronised_covers_no_others, write_on(one),                                 \
      CHECK(cuStreamSynchronize(NULL)), hand_over(), write_on(two))                                \
    X(SILENT, event_synchronised, write_on(one), record_on(event, one),                            \
      CHECK(cuEventSynchronize(event)), hand_over(), write_on(two))                                \
    X(SILENT, event_asked, write_on(one), record_on(event, one), ask_until_done(event),            \
      hand_over(), write_on(two))                                                                  \
    X(HAZARD, earlier_event_asked, record_on(event, one), write_on(one), ask_until_done(event),    \
      hand_over(), write_on(two))                                                                  \
    X(SILENT, fence_asked, write_on(one), fence(), ask_until_done(event), hand_over(),             \
      write_on(two))                                                                               \
    X(SILENT, asked_in_another_thread, write_on(one), record_on(event, one),                       \
      in_another_thread(ask_in_thread), hand_over(), write_on(two))                                \
    X(HAZARD, asked_and_not_ready, busy(one), write_on(one), record_on(event, one),                \
      must_not_be_ready(), hand_over(), write_on(two))                                             \
    X(SILENT, stream_asked, write_on(one), ask_stream_until_done(one), hand_over(), write_on(two)) \
    X(SILENT, elapsed_time, record_on(event, one), write_on(one), record_on(event_too, one),       \
      ask_elapsed_until_done(), hand_over(), write_on(two))                                        \
    X(SILENT, freed_by_the_driver, free_and_allocate_again())                                      \
    /* graphs and captures */                                                                      \
    X(HAZARD, graph_first, launch_and_forget(graph_that_writes(), one), hand_over(),               \
      write_on(two))                                                                               \
    X(HAZARD, graph_second, write_on(two), launch_second(one))                                     \
    X(SILENT, graph_on_the_same_stream, write_on(one), launch_second(one))                         \
    X(SILENT, graph_then_stream, launch_and_forget(graph_that_writes(), one), hand_over(),         \
      write_on(one))                                                                               \
    X(SILENT, graph_behind_a_barrier, write_on(two), fence(), barrier(), launch_second(one))       \
    X(SILENT, same_graph_on_two_streams, same_graph_twice())                                       \
    X(HAZARD, copies_of_a_graph_on_two_streams, two_graphs())                                      \
    X(SILENT, captured_but_not_launched, write_on(one), hand_over(),                               \
      CHECK(cuGraphExecDestroy(graph_that_writes())))                                              \
    X(SILENT, event_recorded_in_a_graph, launch_and_forget(graph_that_records(true), one),         \
      hand_over(), wait_for(two, event), write_on(two))                                            \
    X(HAZARD, event_recorded_beside_the_use, launch_and_forget(graph_that_records(false), one),    \
      hand_over(), wait_for(two, event), write_on(two))                                            \
    X(SILENT, event_waited_for_in_a_graph, write_on(one), record_on(event, one), hand_over(),      \
      launch_and_forget(graph_that_waits(true), two))                                              \
    X(HAZARD, event_waited_for_beside_the_use, write_on(one), record_on(event, one), hand_over(),  \
      launch_and_forget(graph_that_waits(false), two))                                             \
    X(SILENT, branches_joined, launch_and_forget(graph_of_two_branches(), one), hand_over(),       \
      write_on(one))                                                                               \
    /* programmatic stream serialization */                                                        \
    X(HAZARD, early_launch, write_on(one), hand_over(), write_early(one))                          \
    X(HAZARD, early_launch_behind_an_event, write_on(one), hand_over(), record_on(event, one),     \
      wait_for(one, event), write_early(one))                                                      \
    X(HAZARD, early_launch_behind_stream_memory, write_on(one), hand_over(),                       \
      allocate_and_free_on(one), write_early(one))                                                 \
    X(SILENT, early_launch_behind_a_barrier, write_on(one), hand_over(), fence(), barrier(),       \
      write_early(one))                                                                            \
    X(SILENT, early_launch_behind_other_streams_event, write_on(two), record_on(event, two),       \
      hand_over(), busy(one), wait_for(one, event), write_early(one))                              \
    X(SILENT, early_launch_behind_two_kernels, write_on(one), hand_over(), busy(one),              \
      write_early(one))                                                                            \
    X(SILENT, early_launch_behind_a_copy, copy_in(one), hand_over(), write_early(one))             \
    X(SILENT, launch_behind_an_early_one, write_on(one), spin_early(one), hand_over(),             \
      write_on(one))                                                                               \
    X(HAZARD, early_launches_in_a_row, write_on(one), spin_early(one), hand_over(),                \
      write_early(one))                                                                            \
    X(SILENT, early_launch_first_in_its_stream, write_early(one), hand_over(), write_on(one))      \
    /* the host */                                                                                 \
    X(HAZARD, host_writes_what_is_copied, pinned_owner(), copy_aside_in(one), hand_pinned_over(),  \
      simcuda_host_writes(pinned, BYTES))                                                          \
    X(SILENT, host_reads_what_is_copied, pinned_owner(), copy_aside_in(one), hand_pinned_over(),   \
      simcuda_host_reads(pinned, BYTES))                                                           \
    X(HAZARD, host_reads_what_is_written, pinned_owner(), copy_aside_out(one), hand_pinned_over(), \
      simcuda_host_reads(pinned, BYTES))                                                           \
    X(SILENT, host_writes_after_synchronise, pinned_owner(), copy_aside_in(one),                   \
      CHECK(cuStreamSynchronize(one)), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))     \
    X(HAZARD, host_does_not_wait_at_barriers, pinned_owner(), copy_aside_in(one),                  \
      hand_pinned_over(), fence(), barrier(), simcuda_host_writes(pinned, BYTES))                  \
    X(SILENT, host_before_device, pinned_owner(), simcuda_host_writes(pinned, BYTES),              \
      hand_pinned_over(), copy_aside_out(one))                                                     \
    X(SILENT, host_function_after_copy, pinned_owner(), copy_aside_in(one), hand_pinned_over(),    \
      CHECK(cuLaunchHostFunc(one, write_pinned, NULL)))                                            \
    X(HAZARD, host_function_on_another_stream, pinned_owner(), copy_aside_in(one),                 \
      hand_pinned_over(), CHECK(cuLaunchHostFunc(two, write_pinned, NULL)))                        \
    X(SILENT, host_function_before_copy, pinned_owner(), run_on_host(one, write_pinned),           \
      hand_pinned_over(), copy_aside_out(one))                                                     \
    X(HAZARD, host_function_still_to_run, pinned_owner(), busy(one),                               \
      CHECK(cuLaunchHostFunc(one, write_pinned, NULL)), hand_pinned_over())                        \
    X(SILENT, host_function_releases, write_on(one), run_on_host(one, release_event),              \
      CHECK(cuStreamSynchronize(two)), simcuda_acquire(&event), hand_over(), write_on(two))        \
    X(HAZARD, host_function_does_not_release, write_on(one),                                       \
      CHECK(cuLaunchHostFunc(one, do_nothing, NULL)), let_it_end(), hand_over(), write_on(two))    \
    /* pinned memory, which kernels reach at the host's address */                                 \
    X(HAZARD, host_writes_what_a_kernel_fills, pinned_owner(), fill_pinned(one),                   \
      hand_pinned_over(), simcuda_host_writes(pinned, BYTES))                                      \
    X(HAZARD, host_writes_what_the_legacy_stream_fills, pinned_owner(), fill_pinned(NULL),         \
      hand_pinned_over(), simcuda_host_writes(pinned, BYTES))                                      \
    X(HAZARD, host_writes_what_the_threads_stream_fills, pinned_owner(),                           \
      fill_pinned(CU_STREAM_PER_THREAD), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))   \
    X(HAZARD, host_reads_what_a_blocking_stream_fills, pinned_owner(), fill_pinned(blocking),      \
      hand_pinned_over(), simcuda_host_reads(pinned, BYTES))                                       \
    X(HAZARD, host_writes_what_has_ended, pinned_owner(), fill_pinned(one), let_it_end(),          \
      hand_pinned_over(), simcuda_host_writes(pinned, BYTES))                                      \
    X(SILENT, host_writes_after_a_query, pinned_owner(), fill_pinned(one), record_on(event, one),  \
      ask_until_done(event), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))               \
    X(SILENT, host_writes_elsewhere_in_the_block, pinned_owner(),                                  \
      CHECK(cuMemsetD8Async((uintptr_t)pinned, 1, 512, one)), hand_pinned_over(),                  \
      simcuda_host_writes(pinned + 128, 512))                                                      \
    X(HAZARD, pinned_block_on_two_streams, pinned_owner(), fill_pinned(one), hand_pinned_over(),   \
      fill_pinned(two))                                                                            \
    X(SILENT, pinned_block_on_one_stream, pinned_owner(), fill_pinned(one), hand_pinned_over(),    \
      fill_pinned(one))                                                                            \
    X(HAZARD, pinned_block_on_one_stream_then_the_host, pinned_owner(), fill_pinned(one),          \
      hand_pinned_over(), fill_pinned(one), simcuda_host_writes(pinned, BYTES))                    \
    X(HAZARD, copy_then_kernel_of_pinned_block, pinned_owner(), copy_aside_in(one),                \
      hand_pinned_over(), fill_pinned(two))                                                        \
    X(HAZARD, graph_then_host, pinned_owner(), launch_and_forget(graph_that_fills_pinned(), one),  \
      hand_pinned_over(), simcuda_host_writes(pinned, BYTES))                                      \
    X(HAZARD, other_context_is_synchronised_for_pinned, pinned_owner(), fill_pinned(one),          \
      synchronise_elsewhere(), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))             \
    X(PROGRAM_ERROR, pinned_block_copied_by_another_context_at_free, pinned_owner(),               \
      copy_pinned_elsewhere(), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))             \
    X(PROGRAM_ERROR, pinned_block_filled_by_another_context_at_free, pinned_owner(),               \
      fill_pinned_elsewhere(), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))             \
    X(SILENT, pinned_block_copied_by_another_context_before, pinned_owner(),                       \
      copy_pinned_elsewhere(), synchronise_elsewhere(), hand_pinned_over(),                        \
      simcuda_host_writes(pinned, BYTES))                                                          \
    X(HAZARD, pinned_block_of_the_other_context, pinned_owner_elsewhere(),                         \
      fill_pinned_elsewhere(), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))             \
    X(PROGRAM_ERROR, pinned_block_of_the_other_context_filled_here, pinned_owner_elsewhere(),      \
      fill_pinned(one), hand_pinned_over(), simcuda_host_writes(pinned, BYTES))                    \
    X(PROGRAM_ERROR, host_writes_freed_pinned_block, pinned_owner(),                               \
      simcuda_program_freed((uintptr_t)pinned), simcuda_host_writes(pinned, BYTES))                \
    X(HAZARD, part_of_a_pinned_block_given_out_twice, pinned_owner(),                              \
      new_owner_of((uintptr_t)pinned + 512, 512), simcuda_program_freed((uintptr_t)pinned + 512))  \
    X(SILENT, address_of_pinned_block_mapped_again, map_where_pinned_was())                        \
    X(SILENT, host_function_for_which_a_free_waits, pinned_owner(), busy(one),                     \
      CHECK(cuLaunchHostFunc(one, write_pinned, NULL)), simcuda_program_freed((uintptr_t)pinned),  \
      CHECK(cuCtxSynchronize()), pinned_owner(), simcuda_host_writes(pinned, BYTES))               \
    X(PROGRAM_ERROR, host_function_after_the_free, pinned_owner(),                                 \
      simcuda_program_freed((uintptr_t)pinned), run_on_host(one, write_pinned))                    \
    X(PROGRAM_ERROR, other_contexts_host_function_at_free, pinned_owner_elsewhere(), busy(one),    \
      CHECK(cuLaunchHostFunc(one, write_pinned, NULL)), simcuda_program_freed((uintptr_t)pinned),  \
      CHECK(cuCtxSynchronize()))                                                                   \
    X(SILENT, pinned_block_freed_by_the_driver, free_and_allocate_pinned_again())                  \
    /* what frees and allocations mean */                                                          \
    X(PROGRAM_ERROR, use_after_free, simcuda_program_freed(piece), write_on(one))                  \
    X(PROGRAM_ERROR, use_beside_smaller_owner, hand_over_part(), write_on(one))                    \
    X(SILENT, free_that_failed, simcuda_program_freed(piece), simcuda_program_free_failed(piece),  \
      write_on(one))                                                                               \
    X(HAZARD, given_out_twice, new_owner_of(piece + 512, 8))                                       \
    X(PROGRAM_ERROR, other_contexts_kernel_at_free, write_elsewhere(), hand_over(), write_on(one)) \
    X(HAZARD, other_contexts_copy_at_free, copy_elsewhere(), hand_over(), write_on(one))           \
    X(SILENT, other_contexts_copy_before_a_real_free, freed_after_a_copy_elsewhere())              \
    X(SILENT, stream_ordered_on_one_stream, stream_ordered(one, one, one, one))                    \
    X(PROGRAM_ERROR, stream_ordered_used_elsewhere, stream_ordered(one, two, one, one))            \
    X(PROGRAM_ERROR, stream_ordered_used_too_early, stream_ordered(one, one, one, two))            \
    X(SILENT, stream_ordered_reused_after_the_free, stream_ordered_later(one, two))                \
    X(SILENT, plain_memory_freed_in_stream_order, freed_in_stream_order())                         \
    X(HAZARD, stream_ordered_told_to_another_stream, told_to_another_stream(false))                \
    X(SILENT, stream_ordered_behind_an_event, told_to_another_stream(true))                        \
    X(SILENT, memory_of_a_graph, graph_with_memory())                                              \
    X(SILENT, context_gone, memory_of_a_context_gone())                                            \
    /* lost progress */                                                                            \
    X(SILENT, fence_in_free_barrier_in_allocation, busy(one), in_free(fence),                      \
      in_allocation(barrier))                                                                      \
    X(LOST_PROGRESS, fence_in_allocation, busy(one), in_allocation(fence), in_allocation(barrier)) \
    X(SILENT, work_after_the_fence, busy(one), in_free(fence), busy(two), in_allocation(barrier))  \
    X(SILENT, own_barrier, busy(one), fence(), barrier())                                          \
    X(LOST_PROGRESS, allocation_synchronises, busy(one), in_allocation(synchronise))               \
    X(SILENT, free_synchronises, busy(one), in_free(synchronise))                                  \
    X(SILENT, allocation_waits_for_freed, busy(one), in_free(fence),                               \
      in_allocation(wait_for_event))                                                               \
    X(LOST_PROGRESS, allocation_waits_for_newer, busy(one), in_free(fence), busy(one), fence(),    \
      in_allocation(wait_for_event))                                                               \
    X(SILENT, allocation_waits_for_synchronised, busy(one), record_on(event, one),                 \
      CHECK(cuStreamSynchronize(one)), in_allocation(wait_for_event))                              \
    X(SILENT, allocation_waits_for_observed, busy(one), record_on(event, one),                     \
      ask_until_done(event), in_allocation(wait_for_event))                                        \
    X(SILENT, host_free_synchronises, pinned_owner(), busy(one), in_host_free(synchronise))        \
    X(LOST_PROGRESS, host_free_waits_for_other_context, pinned_owner(), busy_elsewhere(),          \
      fence_elsewhere(), in_host_free(wait_elsewhere))                                             \
    X(SILENT, allocation_waits_for_freed_pinned, pinned_owner(), busy(one), in_host_free(fence),   \
      in_allocation(wait_for_event))                                                               \
    X(LOST_PROGRESS, free_waits_for_other_context, busy_elsewhere(), fence_elsewhere(),            \
      in_free(wait_elsewhere))                                                                     \
    X(LOST_PROGRESS, stream_synchronise_waits_for_more, busy(one), busy(two),                      \
      in_stream_synchronise(synchronise))                                                          \
    X(SILENT, stream_synchronise_waits, busy(one), busy(two),                                      \
      in_stream_synchronise(synchronise_one))                                                      \
    X(LOST_PROGRESS, allocation_asks_again_and_again, record_behind_flag(),                        \
      in_allocation(ask_often), set_the_flag())                                                    \
    X(SILENT, allocation_asks, record_behind_flag(), in_allocation(ask_twice), set_the_flag())     \
    X(SILENT, stream_allocation_waits_for_freed, busy(one), in_stream_free(),                      \
      record_on(event, one), in_stream_allocation(make_two_wait))                                  \
    X(LOST_PROGRESS, stream_allocation_waits_for_newer, in_stream_free(), busy(one),               \
      record_on(event, one), in_stream_allocation(make_two_wait))                                  \
    X(LOST_PROGRESS, plain_allocation_waits_for_freed_in_order, busy(one), in_stream_free(),       \
      record_on(event, one), in_allocation(make_two_wait))

/* --- what the cases are made of ----------------------------------------------------------------*/

static void write_per_thread(unsigned int index)
{
    CHECK(cuCtxSetCurrent(context));
    write_on(CU_STREAM_PER_THREAD);
    CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    (void)index;
}

static void write_on_one(unsigned int index)
{
    CHECK(cuCtxSetCurrent(context));
    write_on(one);
    (void)index;
}

static void hand_over_in_thread(unsigned int index)
{
    CHECK(cuCtxSetCurrent(context));
    hand_over();
    (void)index;
}

static void ask_in_thread(unsigned int index)
{
    CHECK(cuCtxSetCurrent(context));
    ask_until_done(event);
    (void)index;
}

static void use_and_destroy_stream(unsigned int flags)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, flags));
    write_on(stream);
    CHECK(cuStreamDestroy_v2(stream));
}

static void use_record_and_destroy_stream(void)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    write_on(stream);
    record_on(event, stream);
    CHECK(cuStreamDestroy_v2(stream));
}

static CUevent fresh_event(void)
{
    static CUevent fresh;
    if (fresh == NULL)
        CHECK(cuEventCreate(&fresh, 0));
    return fresh;
}

static void fill_bytes(CUstream stream, size_t offset, size_t bytes)
{
    CHECK(cuMemsetD8Async(piece + offset, 1, bytes, stream));
}

/* 16 columns of every row of 32 bytes. */
static void copy_columns(CUstream stream, size_t column)
{
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = aside,
                          .srcPitch = 32,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = piece,
                          .dstXInBytes = column,
                          .dstPitch = 32,
                          .WidthInBytes = 16,
                          .Height = 64};
    CHECK(cuMemcpy2DAsync_v2(&copy, stream));
}

static void hand_over_part(void)
{
    simcuda_program_freed(piece);
    new_owner_of(piece, BYTES / 2);
}

static void hand_over_rest(void)
{
    new_owner_of(piece + BYTES / 2, BYTES / 2);
}

static void copy_in(CUstream stream)
{
    CHECK(cuMemcpyHtoDAsync_v2(piece, pinned, BYTES, stream));
}

static void copy_out(CUstream stream)
{
    CHECK(cuMemcpyDtoHAsync_v2(pinned, piece, BYTES, stream));
}

static void copy_to_peer(CUstream stream)
{
    CHECK(cuMemcpyPeerAsync(aside, other_context, piece, context, BYTES, stream));
}

static void copy_elsewhere(void)
{
    CHECK(cuMemcpyDtoDAsync_v2(aside, piece, BYTES, elsewhere));
}

/* The driver's own free has seen that the copy is over, whether or not it had to wait. */
static void freed_after_a_copy_elsewhere(void)
{
    CUdeviceptr before, after;
    CHECK(cuMemAlloc_v2(&before, BYTES));
    simcuda_program_allocated(before, BYTES, ++owner);
    CHECK(cuMemcpyDtoDAsync_v2(aside, before, BYTES, elsewhere));
    let_it_end();
    simcuda_program_freed(before);
    CHECK(cuMemFree_v2(before));
    CHECK(cuMemAlloc_v2(&after, BYTES));
    simcuda_program_allocated(after, BYTES, ++owner);
    if (after != before)
        FAIL("the driver did not give the same memory out again");
    fill(&kernels, one, after, WORDS, 1);
    CHECK(cuCtxSynchronize());
    simcuda_program_freed(after);
    CHECK(cuMemFree_v2(after));
}

static void fence_elsewhere(void)
{
    CHECK(cuCtxRecordEvent(other_context, event_elsewhere));
}

static void busy_elsewhere(void)
{
    CHECK(cuCtxSetCurrent(other_context));
    spin(&other_kernels, elsewhere, 3000000);
    CHECK(cuCtxSetCurrent(context));
}

static void synchronise_elsewhere(void)
{
    CHECK(cuCtxSetCurrent(other_context));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context));
}

static void must_not_be_ready(void)
{
    if (cuEventQuery(event) != CUDA_ERROR_NOT_READY)
        FAIL("3 ms of work were over at once");
}

static void ask_stream_until_done(CUstream stream)
{
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        let_it_end();
}

static void ask_elapsed_until_done(void)
{
    float milliseconds;
    while (cuEventElapsedTime(&milliseconds, event, event_too) == CUDA_ERROR_NOT_READY)
        let_it_end();
}

/* The driver's own free waits, so that nothing need be ordered any more. */
static void free_and_allocate_again(void)
{
    CUdeviceptr before, after;
    CHECK(cuMemAlloc_v2(&before, 3 * MIB));
    new_owner_of(before, 3 * MIB);
    fill(&kernels, one, before, WORDS, 1);
    fill(&kernels, blocking, before, WORDS, 1);
    simcuda_program_freed(before);
    CHECK(cuMemFree_v2(before));
    CHECK(cuMemAlloc_v2(&after, 3 * MIB));
    new_owner_of(after, 3 * MIB);
    if (after != before)
        FAIL("the driver did not give the same memory out again");
    fill(&kernels, two, after, WORDS, 1);
    simcuda_program_freed(after);
    CHECK(cuMemFree_v2(after));
}

/* Captures a use of the next owner's, and launches it. */
static void launch_second(CUstream stream)
{
    hand_over();
    launch_and_forget(graph_that_writes(), stream);
}

static void same_graph_twice(void)
{
    CUgraphExec executable = graph_that_writes();
    CHECK(cuGraphLaunch(executable, one));
    hand_over();
    launch_and_forget(executable, two);
}

static void two_graphs(void)
{
    launch_and_forget(graph_that_writes(), one);
    hand_over();
    launch_and_forget(graph_that_writes(), two);
}

/* A branch beside what the capturing stream does; joined later. */
static void branch(CUstream stream)
{
    record_on(event_too, three);
    wait_for(stream, event_too);
}

static void join_branch(CUstream stream)
{
    record_on(event_too, stream);
    wait_for(three, event_too);
}

static CUgraphExec graph_that_records(bool after_the_use)
{
    CUstream stream = after_the_use ? three : two;
    begin_capture();
    branch(two);
    write_on(three);
    CHECK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    join_branch(two);
    return end_capture();
}

static CUgraphExec graph_that_waits(bool before_the_use)
{
    begin_capture();
    branch(one);
    CHECK(cuStreamWaitEvent(before_the_use ? three : one, event, CU_EVENT_WAIT_EXTERNAL));
    write_on(three);
    join_branch(one);
    return end_capture();
}

static CUgraphExec graph_of_two_branches(void)
{
    begin_capture();
    branch(two);
    fill(&kernels, three, piece, WORDS / 2, 1);
    fill(&kernels, two, piece + BYTES / 2, WORDS / 2, 1);
    join_branch(two);
    return end_capture();
}

static void allocate_and_free_on(CUstream stream)
{
    CUdeviceptr address;
    CHECK(cuMemAllocAsync(&address, 512, stream));
    CHECK(cuMemFreeAsync(address, stream));
}

static void spin_early(CUstream stream)
{
    CUdeviceptr whole = piece;
    piece = aside;
    write_early(stream);
    piece = whole;
}

static void pinned_owner(void)
{
    new_owner_of((uintptr_t)pinned, BYTES);
}

static void hand_pinned_over(void)
{
    simcuda_program_freed((uintptr_t)pinned);
    pinned_owner();
}

static void copy_aside_in(CUstream stream)
{
    CHECK(cuMemcpyHtoDAsync_v2(aside, pinned, BYTES, stream));
}

static void copy_aside_out(CUstream stream)
{
    CHECK(cuMemcpyDtoHAsync_v2(pinned, aside, BYTES, stream));
}

static void pinned_owner_elsewhere(void)
{
    CHECK(cuCtxSetCurrent(other_context));
    pinned_owner();
    CHECK(cuCtxSetCurrent(context));
}

static void fill_pinned(CUstream stream)
{
    fill(&kernels, stream, (uintptr_t)pinned, WORDS, 1);
}

static void fill_pinned_elsewhere(void)
{
    CHECK(cuCtxSetCurrent(other_context));
    fill(&other_kernels, elsewhere, (uintptr_t)pinned, WORDS, 1);
    CHECK(cuCtxSetCurrent(context));
}

static void copy_pinned_elsewhere(void)
{
    CHECK(cuMemcpyHtoDAsync_v2(aside, pinned, BYTES, elsewhere));
}

static CUgraphExec graph_that_fills_pinned(void)
{
    begin_capture();
    fill_pinned(three);
    return end_capture();
}

/* The driver's own free waits, so that the host may write at once what it gets again. */
static void free_and_allocate_pinned_again(void)
{
    void *before, *after;
    CHECK(cuMemHostAlloc(&before, BYTES, 0));
    new_owner_of((uintptr_t)before, BYTES);
    fill(&kernels, one, (uintptr_t)before, WORDS, 1);
    simcuda_program_freed((uintptr_t)before);
    CHECK(cuMemFreeHost(before));
    CHECK(cuMemHostAlloc(&after, BYTES, 0));
    new_owner_of((uintptr_t)after, BYTES);
    if (after != before)
        FAIL("the driver did not give the same memory out again");
    simcuda_host_writes(after, BYTES);
    simcuda_program_freed((uintptr_t)after);
    CHECK(cuMemFreeHost(after));
}

/* Its addresses are the process's again: a thread's stack may lie there. */
static void map_where_pinned_was(void)
{
    void *block, *mapped;
    CHECK(cuMemHostAlloc(&block, 4 * MIB, 0));
    new_owner_of((uintptr_t)block, 4 * MIB);
    simcuda_program_freed((uintptr_t)block);
    CHECK(cuMemFreeHost(block));
    mapped = mmap(block, 4 * MIB, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != block)
        FAIL("the memory has not been given back");
    CHECK(cuMemcpyHtoDAsync_v2(aside, mapped, BYTES, one));
    CHECK(cuStreamSynchronize(one));
    munmap(mapped, 4 * MIB);
}

static atomic_bool has_run; /* sequentially consistent: set by the host function when it is done */

static void write_pinned(void *unused)
{
    simcuda_host_writes(pinned, BYTES);
    atomic_store(&has_run, true);
    (void)unused;
}

static void release_event(void *unused)
{
    simcuda_release(&event);
    atomic_store(&has_run, true);
    (void)unused;
}

/* Runs the host function in the stream's order, and returns when it has run, which no call that the
 * race detector knows of says. */
static void run_on_host(CUstream stream, CUhostFn function)
{
    atomic_store(&has_run, false);
    CHECK(cuLaunchHostFunc(stream, function, NULL));
    while (!atomic_load(&has_run))
        let_it_end();
}

static void do_nothing(void *unused)
{
    (void)unused;
}

/* Allocates on one stream, uses on another, frees on a third, which gets the memory again and uses
 * it on a fourth. */
static void stream_ordered(CUstream allocate, CUstream use, CUstream free, CUstream use_again)
{
    CUdeviceptr before, after;
    CHECK(cuMemAllocAsync(&before, 1 * MIB, allocate));
    simcuda_program_allocated_async(before, 1 * MIB, ++owner, allocate);
    if (use != allocate) {
        record_on(event, allocate);
        wait_for(use, event);
    }
    fill(&kernels, use, before, WORDS, 1);
    simcuda_program_freed_async(before, free);
    CHECK(cuMemFreeAsync(before, free));
    CHECK(cuMemAllocAsync(&after, 1 * MIB, free));
    simcuda_program_allocated_async(after, 1 * MIB, ++owner, free);
    if (after != before)
        FAIL("the driver did not give the same memory out again");
    fill(&kernels, use_again, after, WORDS, 1);
    CHECK(cuCtxSynchronize());
    simcuda_program_freed_async(after, free);
    CHECK(cuMemFreeAsync(after, free));
}

/* The driver gives it to another stream once the first one has got to the free. */
static void stream_ordered_later(CUstream first, CUstream second)
{
    CUdeviceptr before, after;
    CHECK(cuMemAllocAsync(&before, 1 * MIB, first));
    simcuda_program_allocated_async(before, 1 * MIB, ++owner, first);
    fill(&kernels, first, before, WORDS, 1);
    simcuda_program_freed_async(before, first);
    CHECK(cuMemFreeAsync(before, first));
    let_it_end();
    CHECK(cuMemAllocAsync(&after, 1 * MIB, second));
    simcuda_program_allocated_async(after, 1 * MIB, ++owner, second);
    if (after != before)
        FAIL("the driver did not give the same memory out again");
    fill(&kernels, second, after, WORDS, 1);
    simcuda_program_freed_async(after, second);
    CHECK(cuMemFreeAsync(after, second));
}

static void freed_in_stream_order(void)
{
    CUdeviceptr before, after;
    CHECK(cuMemAlloc_v2(&before, 3 * MIB));
    new_owner_of(before, 3 * MIB);
    fill(&kernels, one, before, WORDS, 1);
    simcuda_program_freed_async(before, one);
    CHECK(cuMemFreeAsync(before, one));
    let_it_end();
    CHECK(cuMemAlloc_v2(&after, 3 * MIB));
    new_owner_of(after, 3 * MIB);
    if (after != before)
        FAIL("the driver did not give the same memory out again");
    fill(&kernels, two, after, WORDS, 1);
    simcuda_program_freed(after);
    CHECK(cuMemFree_v2(after));
}

/* As a pool of stream-ordered memory would: the piece goes from one stream to another. */
static void told_to_another_stream(bool behind_event)
{
    simcuda_program_freed(piece);
    simcuda_program_allocated_async(piece, BYTES, ++owner, one);
    write_on(one);
    record_on(event, one);
    simcuda_program_freed_async(piece, one);
    if (behind_event)
        wait_for(two, event);
    simcuda_program_allocated_async(piece, BYTES, ++owner, two);
    write_on(two);
}

static void graph_with_memory(void)
{
    CUdeviceptr address;
    CUgraphExec executable;
    begin_capture();
    CHECK(cuMemAllocAsync(&address, BYTES, three));
    simcuda_program_allocated_async(address, BYTES, ++owner, three);
    fill(&kernels, three, address, WORDS, 1);
    simcuda_program_freed_async(address, three);
    CHECK(cuMemFreeAsync(address, three));
    executable = end_capture();
    CHECK(cuGraphLaunch(executable, one));
    launch_and_forget(executable, two);
}

static void memory_of_a_context_gone(void)
{
    CUcontext passing;
    CUdeviceptr before;
    CHECK(cuCtxCreate_v2(&passing, 0, 0));
    CHECK(cuMemAlloc_v2(&before, 3 * MIB));
    new_owner_of(before, 3 * MIB);
    CHECK(cuMemsetD8Async(before, 1, 3 * MIB, NULL));
    CHECK(cuCtxDestroy_v2(passing));
    CHECK(cuCtxSetCurrent(context));
    free_and_allocate_again();
}

/* Calls of the program, in which something is done that only the driver's caller knows. */
static void in_call(enum simcuda_waits waits, uint64_t argument, void (*body)(void))
{
    simcuda_program_call_begin(waits, argument);
    body();
    simcuda_program_call_end();
}

static void in_free(void (*body)(void))
{
    in_call(SIMCUDA_WAITS_FOR_OWNER, piece, body);
}

static void in_host_free(void (*body)(void))
{
    in_call(SIMCUDA_WAITS_FOR_OWNER, (uintptr_t)pinned, body);
}

static void in_allocation(void (*body)(void))
{
    in_call(SIMCUDA_WAITS_FOR_NOTHING, 0, body);
}

static void in_stream_synchronise(void (*body)(void))
{
    in_call(SIMCUDA_WAITS_FOR_STREAM, (uintptr_t)one, body);
}

static void nothing(void)
{
}

static void in_stream_free(void)
{
    in_call(SIMCUDA_STREAM_FREE, (uintptr_t)one, nothing);
}

static void in_stream_allocation(void (*body)(void))
{
    in_call(SIMCUDA_STREAM_ALLOCATION, 0, body);
}

static void synchronise(void)
{
    CHECK(cuCtxSynchronize());
}

static void synchronise_one(void)
{
    CHECK(cuStreamSynchronize(one));
}

static void wait_for_event(void)
{
    CHECK(cuEventSynchronize(event));
}

static void wait_elsewhere(void)
{
    CHECK(cuEventSynchronize(event_elsewhere));
}

static void make_two_wait(void)
{
    wait_for(two, event);
}

static void record_behind_flag(void)
{
    *flag = 0;
    wait_flag(&kernels, one, (uintptr_t)flag);
    record_on(event, one);
}

static void set_the_flag(void)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static void ask(unsigned int times)
{
    while (times-- > 0)
        must_not_be_ready();
}

static void ask_often(void)
{
    ask(100);
}

static void ask_twice(void)
{
    ask(2);
}

#define EACH_1(a) a;
#define EACH_2(a, ...)                                                                             \
    a;                                                                                             \
    EACH_1(__VA_ARGS__)
#define EACH_3(a, ...)                                                                             \
    a;                                                                                             \
    EACH_2(__VA_ARGS__)
#define EACH_4(a, ...)                                                                             \
    a;                                                                                             \
    EACH_3(__VA_ARGS__)
#define EACH_5(a, ...)                                                                             \
    a;                                                                                             \
    EACH_4(__VA_ARGS__)
#define EACH_6(a, ...)                                                                             \
    a;                                                                                             \
    EACH_5(__VA_ARGS__)
#define EACH_7(a, ...)                                                                             \
    a;                                                                                             \
    EACH_6(__VA_ARGS__)
#define EACH_8(a, ...)                                                                             \
    a;                                                                                             \
    EACH_7(__VA_ARGS__)
#define PICK(a, b, c, d, e, f, g, h, name, ...) name
#define EACH(...)                                                                                  \
    PICK(__VA_ARGS__, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, )(__VA_ARGS__)

#define DEFINE(verdict, name, ...)                                                                 \
    static void case_##name(void)                                                                  \
    {                                                                                              \
        EACH(__VA_ARGS__)                                                                          \
    }
CASES(DEFINE)

static const struct test tests[] = {
#define ENTRY(verdict, name, ...) {#name, verdict, case_##name},
    CASES(ENTRY)
#undef ENTRY
};
enum { TESTS = sizeof tests / sizeof *tests };

/* --- threads that tell -------------------------------------------------------------------------*/

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void tell_lock(void)
{
    pthread_mutex_lock(&mutex);
    simcuda_acquire(&mutex);
}

static void tell_unlock(void)
{
    simcuda_release(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void write_and_tell(unsigned int index)
{
    tell_lock();
    simcuda_host_writes(pinned, BYTES);
    tell_unlock();
    (void)index;
}

static void write_without_telling(unsigned int index)
{
    simcuda_host_writes(pinned, BYTES);
    (void)index;
}

static void write_and_free(unsigned int index)
{
    simcuda_host_writes(pinned, BYTES);
    simcuda_program_freed((uintptr_t)pinned);
    (void)index;
}

static void case_thread_tells(void)
{
    pinned_owner();
    in_another_thread(write_and_tell);
    tell_lock();
    tell_unlock();
    hand_pinned_over();
    copy_aside_out(one);
}

static void case_thread_does_not_tell(void)
{
    pinned_owner();
    in_another_thread(write_without_telling);
    hand_pinned_over();
    copy_aside_out(one);
}

static void case_thread_tells_of_another_lock(void)
{
    pinned_owner();
    in_another_thread(write_and_tell);
    simcuda_acquire(&pinned);
    hand_pinned_over();
    copy_aside_out(one);
}

/* Whoever gets memory that another thread has freed comes after that free. */
static void case_freed_in_the_thread_that_wrote(void)
{
    pinned_owner();
    in_another_thread(write_and_free);
    pinned_owner();
    copy_aside_out(one);
}

/* A host function is a thread of its own, that what follows it in its stream comes after. */
static void case_host_function_then_its_stream(void)
{
    pinned_owner();
    CHECK(cuLaunchHostFunc(one, write_pinned, NULL));
    CHECK(cuStreamSynchronize(three));
    while (cuStreamQuery(one) == CUDA_ERROR_NOT_READY)
        let_it_end();
    hand_pinned_over();
    copy_aside_out(one);
}

static void case_host_function_then_another_stream(void)
{
    pinned_owner();
    CHECK(cuLaunchHostFunc(one, write_pinned, NULL));
    let_it_end();
    hand_pinned_over();
    copy_aside_out(two);
}

/* The program's free has waited for it; whoever gives the memory out again has to know, too. */
static void freed_beside_a_host_function(CUstream then)
{
    pinned_owner();
    busy(one);
    atomic_store(&has_run, false);
    CHECK(cuLaunchHostFunc(one, write_pinned, NULL));
    simcuda_program_freed((uintptr_t)pinned);
    while (!atomic_load(&has_run))
        let_it_end();
    pinned_owner();
    copy_aside_out(then);
}

static void case_freed_beside_a_host_function_then_its_stream(void)
{
    freed_beside_a_host_function(one);
}

static void case_freed_beside_a_host_function_then_another_stream(void)
{
    freed_beside_a_host_function(two);
}

static const struct test thread_tests[] = {
    {"freed_beside_a_host_function_then_its_stream", SILENT,
     case_freed_beside_a_host_function_then_its_stream},
    {"freed_beside_a_host_function_then_another_stream", HAZARD,
     case_freed_beside_a_host_function_then_another_stream},
    {"host_function_then_its_stream", SILENT, case_host_function_then_its_stream},
    {"host_function_then_another_stream", HAZARD, case_host_function_then_another_stream},
    {"thread_tells", SILENT, case_thread_tells},
    {"thread_does_not_tell", PROGRAM_ERROR, case_thread_does_not_tell},
    {"thread_tells_of_another_lock", PROGRAM_ERROR, case_thread_tells_of_another_lock},
    {"freed_in_the_thread_that_wrote", SILENT, case_freed_in_the_thread_that_wrote},
};
enum { THREAD_TESTS = sizeof thread_tests / sizeof *thread_tests };

/* --- running them ------------------------------------------------------------------------------*/

static void synchronise_all(void)
{
    synchronise_elsewhere();
    CHECK(cuCtxSynchronize());
}

static void prepare(void)
{
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&other_context, 0, 0));
    load_kernels(&other_kernels);
    CHECK(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event_elsewhere, 0));
    context = open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&three, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&blocking, 0));
    CHECK(cuStreamCreate(&blocking_too, 0));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventCreate(&event_too, 0));
    CHECK(cuMemAlloc_v2(&piece, BYTES));
    CHECK(cuMemAlloc_v2(&aside, BYTES));
    CHECK(cuMemHostAlloc((void **)&pinned, (TESTS + 1) * BYTES, 0));
    CHECK(cuMemHostAlloc((void **)&flag, sizeof *flag, 0));
    counter = new_counter();
    synchronise_all();
}

static uint64_t count_of(const struct simcuda_findings *findings, enum verdict verdict)
{
    return verdict == HAZARD          ? findings->hazards
           : verdict == PROGRAM_ERROR ? findings->program_errors
           : verdict == LOST_PROGRESS ? findings->lost_progress
                                      : 0;
}

/* What must be found is, and nothing else. */
static bool is_right(const struct simcuda_findings *before, const struct simcuda_findings *after,
                     enum verdict verdict)
{
    for (enum verdict each = HAZARD; each <= LOST_PROGRESS; each++)
        if ((count_of(after, each) > count_of(before, each)) != (each == verdict))
            return false;
    return true;
}

static bool passes(const struct test *test, bool verbose)
{
    struct simcuda_findings before, after;
    char report[2048];
    bool right;
    new_owner_of(piece, BYTES);
    simcuda_findings(&before);
    test->body();
    synchronise_all();
    simcuda_findings(&after);
    simcuda_program_freed(piece);
    simcuda_program_freed(piece + 512);
    simcuda_program_freed(piece + BYTES / 2);
    simcuda_program_freed((uintptr_t)pinned);
    pinned += WORDS; /* what the host did is on record until everybody knows of it */
    right = is_right(&before, &after, test->verdict);
    if (right)
        printf("ok %s\n", test->name);
    else
        printf("FAIL %s: not found, or not only: %s\n", test->name, verdicts[test->verdict]);
    simcuda_last_report(report, sizeof report);
    if (verbose || !right)
        printf("%s", report);
    return right;
}

int main(int argc, char **argv)
{
    bool threads = asked_for(argc, argv, "threads");
    const struct test *all = threads ? thread_tests : tests;
    int count = threads ? THREAD_TESTS : TESTS, failures = 0;
    const char *only = argc > 1 && !threads ? argv[1] : NULL;
    prepare();
    if (threads)
        simcuda_threads_tell();
    for (int i = 0; i < count; i++)
        if (only == NULL || strcmp(only, all[i].name) == 0)
            failures += !passes(&all[i], only != NULL);
    return failures == 0 ? 0 : 1;
}
