/*
 * What the simulated driver tells tests beside the driver's own interface.
 *
 * The functions are weak: a test that may also run on a real GPU asks first whether one is there
 * (simcuda_calls != NULL). Safe from any thread; none of them counts as a driver call.
 */
#ifndef TESTS_SIM_SIMCUDA_H
#define TESTS_SIM_SIMCUDA_H

#include <stdint.h>

#define SIMCUDA_WEAK __attribute__((weak, visibility("default")))

/* How often an entry point, by its exported name, was called so far in this process; of all entry
 * points together for NULL. UINT64_MAX for a name that is not exported. */
SIMCUDA_WEAK uint64_t simcuda_calls(const char *name);

/* Device memory that the program holds from cuMemAlloc and its relatives (pitched, managed,
 * stream-ordered and arrays included), as requested: bytes, and how many allocations. */
SIMCUDA_WEAK uint64_t simcuda_live_bytes(void);
SIMCUDA_WEAK uint64_t simcuda_live_allocations(void);

/* Host memory that devices may reach: what is allocated or registered, in all contexts. */
SIMCUDA_WEAK uint64_t simcuda_live_host_bytes(void);
SIMCUDA_WEAK uint64_t simcuda_live_host_allocations(void);

/* The most that simcuda_live_bytes ever was, and the most of any device's memory ever used, in
 * whole pages, over all devices together. */
SIMCUDA_WEAK uint64_t simcuda_peak_bytes(void);
SIMCUDA_WEAK uint64_t simcuda_peak_device_bytes(void);

/* Managed memory that the devices have room for beside what else is taken of them, in whole pages
 * of 2 MiB: the rest stays on the host. */
SIMCUDA_WEAK uint64_t simcuda_managed_on_devices(void);

/* How many operations (kernels, copies, fills ...) have run so far. */
SIMCUDA_WEAK uint64_t simcuda_operations(void);

/* The function is called at the start of every call of that entry point, in the calling thread and
 * before any lock is taken, as a profiler's callback is: it may make driver calls itself, which are
 * not reported. NULL ends that. False for a name that is not exported. One entry point at a time.
 */
SIMCUDA_WEAK int simcuda_set_callback(const char *name, void (*function)(const char *name));

/* With SIMCUDA_STEPPED: its clock in nanoseconds; moving it, for time that passes outside the
 * driver; and what is called, in the thread that waits and with no lock held, when a wait would
 * never end because all that is left waits for flags: it sets one. Without one, the wait goes on.
 */
typedef void simcuda_stall_handler(void);
SIMCUDA_WEAK uint64_t simcuda_now(void);
SIMCUDA_WEAK void simcuda_advance(uint64_t ns);
SIMCUDA_WEAK void simcuda_on_stall(simcuda_stall_handler *handler);

/* Host functions and callbacks with this argument do not begin while it is held: as if the first
 * thing that they do were to take a lock that the program holds. Those behind them wait, too. */
SIMCUDA_WEAK void simcuda_hold_host_functions(const void *argument, int held);

/* The user objects that the graph has, or the executable graph, which a GPU would launch more
 * slowly for them. */
SIMCUDA_WEAK uint64_t simcuda_objects_of_graph(const void *graph);
SIMCUDA_WEAK uint64_t simcuda_objects_of_executable(const void *executable);

/* --- SIMCUDA_RACES -----------------------------------------------------------------------------
 *
 * What a program tells the race detector (race_detector.h says what it makes of it). Every function
 * does nothing while it is off. tests/sim/races.h has the calls of the driver with the telling.
 *
 * A program that tells of one allocation tells of all: memory that it has freed and that it then
 * gets again without saying so counts as used after the free.
 */

/* After the call that allocated; id is the program's own name for it, for reports. With a stream
 * (a CUstream): allocated in that stream's order. Memory of a graph (a capturing stream's) is not
 * the program's: its calls are ignored. */
SIMCUDA_WEAK void simcuda_program_allocated(uint64_t address, uint64_t bytes, uint64_t id);
SIMCUDA_WEAK void simcuda_program_allocated_async(uint64_t address, uint64_t bytes, uint64_t id,
                                                  void *stream);
/* Before the call that frees; and after it, if it failed. */
SIMCUDA_WEAK void simcuda_program_freed(uint64_t address);
SIMCUDA_WEAK void simcuda_program_freed_async(uint64_t address, void *stream);
SIMCUDA_WEAK void simcuda_program_free_failed(uint64_t address);

/* Before the calling thread reads or writes memory that devices may use, too. */
SIMCUDA_WEAK void simcuda_host_reads(const void *address, uint64_t bytes);
SIMCUDA_WEAK void simcuda_host_writes(const void *address, uint64_t bytes);

/* The program tells how its threads synchronise: from now on nothing else orders them. What a
 * thread did before simcuda_release(object) comes before what another does after
 * simcuda_acquire(object): before unlock and after lock, before pthread_create and first in the
 * thread, last in the thread and after pthread_join. Host functions can use both at any time. */
SIMCUDA_WEAK void simcuda_threads_tell(void);
SIMCUDA_WEAK void simcuda_release(const void *object);
SIMCUDA_WEAK void simcuda_acquire(const void *object);

/* From now on no context's handle has the value of one that was destroyed: which of the threads
 * gets it, and whether another still has the old one on its stack, would be a matter of time. */
SIMCUDA_WEAK void simcuda_keep_contexts(void);

/* The calling thread's next calls, until the end, are one call of the program; the plain driver
 * waits in it for ... Calls may not nest. */
enum simcuda_waits {
    SIMCUDA_WAITS_FOR_NOTHING = 1,
    SIMCUDA_WAITS_FOR_OWNER,   /* cuMemFree(argument): its context's work, and copies of it;
                                  cuMemFreeHost(argument): its context's work alone */
    SIMCUDA_WAITS_FOR_CONTEXT, /* the current context's work */
    SIMCUDA_WAITS_FOR_STREAM,  /* argument: a CUstream */
    SIMCUDA_WAITS_FOR_EVENT,   /* argument: a CUevent */
    SIMCUDA_STREAM_FREE,       /* cuMemFreeAsync(..., argument): nothing, but allocations from now
                                  on may be put behind this stream's work */
    SIMCUDA_STREAM_ALLOCATION, /* cuMemAllocAsync: nothing on the host, and on the device for what
                                  stream-ordered frees came after */
};
SIMCUDA_WEAK void simcuda_program_call_begin(enum simcuda_waits waits, uint64_t argument);
SIMCUDA_WEAK void simcuda_program_call_end(void);

/* How many of each were found so far, and the last report's text: at most bytes of it, with a 0. */
struct simcuda_findings {
    uint64_t hazards, program_errors, lost_progress, operations, allocations;
};
SIMCUDA_WEAK void simcuda_findings(struct simcuda_findings *findings);
SIMCUDA_WEAK void simcuda_last_report(char *text, uint64_t bytes);

#endif
