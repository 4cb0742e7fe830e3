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

#endif
