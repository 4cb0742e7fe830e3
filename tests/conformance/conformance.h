/*
 * What the rows of all files share: the device, how a row says what it expected, work for the GPU.
 */
#ifndef TESTS_CONFORMANCE_H
#define TESTS_CONFORMANCE_H

#include <stdbool.h>
#include <stddef.h>

#include "../driver_api.h"

#define MIB ((size_t)1 << 20)

enum { MODES = 3 };

/* What all rows share; opened once. */
struct gpu {
    bool pool;
    CUdevice device;
    CUdevice neighbour; /* where rows about several contexts open the second one */
    CUcontext context;
    CUmodule module;
    CUfunction spin, fill, verify, spin_then_verify, wait_flag, set_flag;
    CUstream a, b;          /* non-blocking */
    CUdeviceptr mismatches; /* the kernels' counter */
};
extern struct gpu gpu;

/* Opens it, and runs every kernel once. What went wrong, or NULL. */
const char *open_gpu(void);

/* --- rows --------------------------------------------------------------------------------------*/

/* Only the first failure of a row is kept. */
__attribute__((format(printf, 1, 2))) void fail(const char *format, ...);
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
/* What nobody knows beforehand, and a run with the pool must find as one without it did. */
__attribute__((format(printf, 2, 3))) void fact(long long number, const char *format, ...);
/* A fact that a GPU has told, and every driver is held to. */
__attribute__((format(printf, 3, 4))) void known_fact(long long number, long long known,
                                                      const char *format, ...);
bool has_failed(void);
/* How the row has failed; empty while it has not. */
const char *failure_of_row(void);
const char *name_of(CUresult result);

void expect_at(int line, const char *what, CUresult found, CUresult expected);
#define EXPECT(call, expected) expect_at(__LINE__, #call, (call), (expected))
#define SUCCEEDS(call)         EXPECT(call, CUDA_SUCCESS)

/* Fails with whatever error. */
void fails_at(int line, const char *what, CUresult found);
#define FAILS(call) fails_at(__LINE__, #call, (call))

void check_at(int line, const char *what, bool holds);
#define CHECK(condition) check_at(__LINE__, #condition, (condition))

/* A busy machine can keep a thread or the simulated device waiting at any moment. A row whose time
 * is wrong is tried again, with work that takes three times as long each time: what the driver does
 * is then the same share of it, and what the machine does is less. */
void check_time_at(int line, const char *what, bool holds);
#define CHECK_TIME(condition) check_time_at(__LINE__, #condition, (condition))

/* In such a try now_ms runs slower by that factor, and what sleeps and works does so for longer:
 * rows state their times as those of the first try. */
double now_ms(void);
/* The clock of the machine, in every try: for times that no work of the row's has part in. */
double real_ms(void);
void sleep_ms(double ms);
unsigned long long work_ns(double ms);
/* A call that waits for work of so many milliseconds takes most of that; one that does not wait
 * takes less than a third. */
void took_at(int line, double ms, double work_ms, bool waits);
#define TOOK(ms, work_ms, waits) took_at(__LINE__, ms, work_ms, waits)

/* --- work --------------------------------------------------------------------------------------*/

void launch(CUfunction function, CUstream stream, void **parameters);
void spin(CUstream stream, double ms);
void fill(CUstream stream, CUdeviceptr address, unsigned int words, unsigned int value);
void spin_then_verify(CUstream stream, double ms, CUdeviceptr address, unsigned int words,
                      unsigned int value);
/* How many wrong words the kernels have seen since the last time; waits for the device. */
unsigned long long wrong_words(void);
CUdeviceptr allocate(size_t bytes);
CUevent new_event(void);
size_t free_memory(void);

/* A second context, with a stream and a kernel of its own. */
struct neighbour {
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction spin;
};
struct neighbour open_neighbour(void);
void spin_in(const struct neighbour *other, double ms);
void close_neighbour(const struct neighbour *other);

/* Captures of stream a; how one ended must have been as expected. */
void begin(unsigned int mode);
void end_at(int line, bool valid, const char *what, unsigned int mode);
#define END(valid, what, mode) end_at(__LINE__, valid, what, mode)
CUstreamCaptureStatus status_of(CUstream stream);

CUgraph new_graph(void);
/* A graph of one kernel that takes so many milliseconds. */
CUgraph kernel_graph(double ms);
CUgraphNode add_child(CUgraph graph, CUgraph child);
CUgraphNode only_node(CUgraph graph);
/* How many nodes of the type the graph itself has. */
int count_type(CUgraph graph, CUgraphNodeType type);
CUgraphExec instantiate(CUgraph graph);
void launch_and_wait(CUgraphExec exec); /* on stream a */

/* --- rows about calls that are out of memory: refusals.c ---------------------------------------*/

void memory_freed_in_order_is_not_waited_for(void);

/* --- rows about threads and processes: processes.c ---------------------------------------------*/

/* What a process of such a row does. */
int obey(void);

void memory_of_other_processes_is_missing(void);
void memory_of_killed_processes_comes_back(void);
void memory_given_beside_a_kernel_can_be_had(void);
void devices_have_one_uuid_in_all_processes(void);
void other_threads_may_call_beside_a_stream_wait(void);
void other_threads_may_call_beside_a_context_wait(void);
void relaxed_threads_spare_others_captures(void);
void processes_end_beside_a_calling_thread(void);
void processes_fork_beside_a_calling_thread(void);
void several_threads_free_one_block(void);
void children_of_a_fork_have_no_memory(void);

#endif
