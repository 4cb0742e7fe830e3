/*
 * What the simulated driver tells tests beside the driver's own interface.
 *
 * The functions are weak: a test that may also run on a real GPU asks first whether one is there
 * (simcuda_calls != NULL). Safe from any thread; none of them counts as a driver call.
 */
#ifndef TESTS_SIM_SIMCUDA_H
#define TESTS_SIM_SIMCUDA_H

#include <stdint.h>

/* How often an entry point, by its exported name, was called so far in this process; of all entry
 * points together for NULL. UINT64_MAX for a name that is not exported. */
__attribute__((weak, visibility("default"))) uint64_t simcuda_calls(const char *name);

/* Device memory that the program holds from cuMemAlloc and its relatives (pitched, managed,
 * stream-ordered and arrays included), as requested: bytes, and how many allocations. */
__attribute__((weak, visibility("default"))) uint64_t simcuda_live_bytes(void);
__attribute__((weak, visibility("default"))) uint64_t simcuda_live_allocations(void);

/* The most that simcuda_live_bytes ever was, and the most of any device's memory ever used, in
 * whole pages, over all devices together. */
__attribute__((weak, visibility("default"))) uint64_t simcuda_peak_bytes(void);
__attribute__((weak, visibility("default"))) uint64_t simcuda_peak_device_bytes(void);

/* How many operations (kernels, copies, fills ...) have run so far. */
__attribute__((weak, visibility("default"))) uint64_t simcuda_operations(void);

/* With SIMCUDA_STEPPED: its clock in nanoseconds; moving it, for time that passes outside the
 * driver; and what is called, in the thread that waits and with no lock held, when a wait would
 * never end because all that is left waits for flags: it sets one. Without one, the wait goes on. */
typedef void simcuda_stall_handler(void);
__attribute__((weak, visibility("default"))) uint64_t simcuda_now(void);
__attribute__((weak, visibility("default"))) void simcuda_advance(uint64_t ns);
__attribute__((weak, visibility("default"))) void simcuda_on_stall(simcuda_stall_handler *handler);

#endif
