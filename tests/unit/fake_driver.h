/*
 * A driver for unit tests of the core: every function records that it was called and does what the
 * test has scripted. Contexts, events, streams and memory are numbers; the GPU's work is a number
 * too, which stands still until the test lets it go on. There is one such driver to a process.
 *
 * Any thread may call anything at any time: one lock guards the whole state. What no caller of the
 * core may do (touch the handle of what has died, invalidate a capture, free what is not there) is
 * counted as misuse, which tests look at when they end.
 */
#ifndef CUDAPOOL_TESTS_UNIT_FAKE_DRIVER_H
#define CUDAPOOL_TESTS_UNIT_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/driver.h"

/* The functions that a trace shows, in the order of what a test may set. Looking up the current
 * context, a thread's capture mode and the like are not in it. */
enum fake_function {
    FAKE_CTX_SYNCHRONIZE,
    FAKE_MEM_ALLOC,
    FAKE_MEM_FREE,
    FAKE_MEM_GET_INFO,
    FAKE_EVENT_CREATE,
    FAKE_EVENT_DESTROY,
    FAKE_EVENT_QUERY,
    FAKE_STREAM_CREATE,
    FAKE_STREAM_DESTROY,
    FAKE_STREAM_SYNCHRONIZE,
    FAKE_RECORD,
    FAKE_WAIT,
    FAKE_MEM_FREE_ASYNC,
    FAKE_TRIM,
    FAKE_PITCH,
    FAKE_FUNCTIONS
};

/* Starts over with devices of so many bytes, no contexts, and all functions there. The table may
 * be changed by the test before it starts a pool. */
struct driver *fake_driver(uint64_t bytes_per_device);

/* ---- what was called ---- */

unsigned fake_calls(enum fake_function function);

/* The functions called since the last look, such as "alloc record query". Owned by the fake. */
const char *fake_trace(void);

/* Calls that nobody may make, and what the last one was. */
unsigned fake_misuses(void);
const char *fake_last_misuse(void);

/* ---- what happens in a call ---- */

/* The next so many calls return this, and do nothing. */
void fake_fail(enum fake_function function, CUresult result, unsigned times);

/* Called in each call of the function, before it does anything; no lock is held. NULL: nothing. */
void fake_during(enum fake_function function, void (*action)(void *), void *argument);

/* Called in every call of every function of the driver, traced or not. */
void fake_during_all(void (*action)(void *), void *argument);

/* The next allocation has this address. */
void fake_next_address(CUdeviceptr address);

/* ---- contexts ---- */

/* A new context, made current in this thread; or a device's primary one, likewise. */
CUcontext fake_context(CUdevice device);
CUcontext fake_primary(CUdevice device);

/* The same with a handle that was used before. */
CUcontext fake_context_at(CUcontext handle, CUdevice device);

/* A green context of a device: its handle, as cuCtxFromGreenCtx gives it. */
CUcontext fake_green(CUdevice device);
CUcontext fake_green_at(CUcontext handle, CUdevice device);

/* Ends it, with its memory, events and streams. */
void fake_end_context(CUcontext handle);

void fake_set_current(CUcontext handle);
unsigned fake_live_contexts(void);

/* Retains of the device's primary context that were not released: by the core, none. */
int fake_primary_retains(CUdevice device);

/* ---- the GPU's work ---- */

/* Gives a context work to do, which goes on until the test finishes it. */
void fake_launch(CUcontext handle);

/* All work of the context so far is done; or all but what was given to it last. */
void fake_finish(CUcontext handle);
void fake_finish_some(CUcontext handle, uint64_t pieces);

/* How much work the context was given; how much of it is behind what it does next: done, or
 * ordered so by cuCtxWaitEvent. */
uint64_t fake_launched(CUcontext handle);
uint64_t fake_ordered(CUcontext handle);

/* How much work of another context is behind what this one does next, by cuCtxWaitEvent. */
uint64_t fake_behind(CUcontext handle, CUcontext other);

/* ---- memory ---- */

/* Bytes in use on the device, and whether an address is the first of an allocation. */
uint64_t fake_bytes_used(CUdevice device);
bool fake_is_allocated(CUdeviceptr address);

/* Frees behind everybody's back. */
void fake_vanish(CUdeviceptr address);

/* cuMemAllocPitch, with rows of a multiple of 512 bytes, and cuMemFreeAsync. */
CUresult fake_allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                             unsigned int element_bytes);

/* ---- streams and captures ---- */

CUstream fake_stream(void);

/* Whether a call may be made that captures forbid; if not, it is a misuse. */
bool fake_allows_unsafe_call(const char *what);

/* A capture on the stream of the current context, in global mode. Begin and end as the program's
 * calls do it, without the core's being told. */
void fake_capture_begin(CUstream stream);
void fake_capture_end(CUstream stream);
bool fake_capture_was_invalidated(void);

#endif
