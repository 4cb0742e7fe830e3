/*
 * What every driver call does first and last.
 *
 * call_begin counts the call, tells of it whoever asked for that, fails it if the environment wants
 * that, takes the locks that its rules name and finds the current context; call_end gives the locks
 * back and writes the log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared.h"
#include "sim.h"

struct sim sim = {
    .driver_lock = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .log_lock = PTHREAD_MUTEX_INITIALIZER,
    .settings = {.log = -1, .races = -1},
    .next_id = 1,
};

/* What a call moves the clock of SIMCUDA_STEPPED by. */
enum { STEP_NS = 100 };

/* Calls made so far. Relaxed: a count orders nothing. */
static _Atomic uint64_t counts[ENTRIES];

/* What calls cost on an H100 (SIMCUDA_TIMING), in nanoseconds; others cost 150. */
static const struct {
    enum entry entry;
    unsigned int ns;
} costs[] = {
    {ENTRY_cuMemAlloc_v2, 30000},      {ENTRY_cuMemFree_v2, 27000},
    {ENTRY_cuMemAllocPitch_v2, 30000}, {ENTRY_cuMemAllocManaged, 15000},
    {ENTRY_cuMemHostAlloc, 440000},    {ENTRY_cuMemAllocHost_v2, 440000},
    {ENTRY_cuMemFreeHost, 195000},     {ENTRY_cuMemGetInfo_v2, 5800},
    {ENTRY_cuMemAllocAsync, 280},      {ENTRY_cuMemFreeAsync, 390},
    {ENTRY_cuCtxGetCurrent, 9},        {ENTRY_cuThreadExchangeStreamCaptureMode, 9},
    {ENTRY_cuStreamIsCapturing, 17},   {ENTRY_cuStreamGetId, 18},
    {ENTRY_cuStreamGetCtx, 18},        {ENTRY_cuEventQuery, 130},
    {ENTRY_cuEventRecord, 141},        {ENTRY_cuStreamQuery, 149},
    {ENTRY_cuCtxRecordEvent, 160},     {ENTRY_cuCtxWaitEvent, 136},
    {ENTRY_cuLaunchKernel, 2000},      {ENTRY_cuGetProcAddress, 100},
    {ENTRY_cuGetProcAddress_v2, 100},
};

static unsigned int cost_of(enum entry entry)
{
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (costs[i].entry == entry)
            return costs[i].ns;
    return 150;
}

static void take_the_time(enum entry entry)
{
    uint64_t end = now_ns() + cost_of(entry);
    while (now_ns() < end)
        continue;
}

static pthread_key_t thread_key;
static pthread_once_t thread_key_once = PTHREAD_ONCE_INIT;
static __thread struct thread thread;

static void thread_ends(void *id)
{
    if (sim.forked)
        return;
    pthread_mutex_lock(&sim.lock);
    thread_streams_free((uint64_t)(uintptr_t)id);
    if (races_on)
        race_thread_ended();
    pthread_mutex_unlock(&sim.lock);
    user_objects_destroy();
}

static void make_thread_key(void)
{
    pthread_key_create(&thread_key, thread_ends);
}

struct thread *this_thread(void)
{
    static _Atomic uint64_t last_id;
    if (thread.id == 0) {
        thread.id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
        pthread_once(&thread_key_once, make_thread_key);
        pthread_setspecific(thread_key, (void *)(uintptr_t)thread.id);
    }
    return &thread;
}

/* The GPU does not survive a fork: in the child every call that needs it fails. */
static void in_forked_child(void)
{
    sim.forked = true;
    shared_forget();
}

/* Our threads run on whatever the program closes, so the library stays. */
static void stay_loaded(void)
{
    Dl_info self;
    if (dladdr((void *)(uintptr_t)stay_loaded, &self) != 0)
        dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    settings_read(&sim.settings);
    races_on = sim.settings.races >= 0;
    stay_loaded();
    pthread_atfork(NULL, NULL, in_forked_child);
}

/* What an H200 lets a host function call, as far as it was asked: it refuses everything else. */
static bool allowed_in_host_function(enum entry entry)
{
    static const char *const allowed[] = {"cuEventQuery",
                                          "cuEventRecord",
                                          "cuStreamQuery",
                                          "cuStreamSynchronize",
                                          "cuStreamGetId",
                                          "cuStreamIsCapturing",
                                          "cuGetProcAddress",
                                          "cuGetErrorName",
                                          "cuGetErrorString",
                                          "cuDriverGetVersion",
                                          "cuThreadExchangeStreamCaptureMode"};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (strncmp(entry_points[entry].symbol, allowed[i], strlen(allowed[i])) == 0)
            return true;
    return false;
}

/* Finds the current context and refuses what may not be called now. Under sim.lock. */
static CUresult check(struct call *call)
{
    CUresult why_not = CUDA_SUCCESS;
    if (!(call->rules & NEEDS_NOTHING) && !sim.initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (this_thread()->in_host_function && !allowed_in_host_function(call->entry))
        return CUDA_ERROR_NOT_PERMITTED;
    call->context = current_context(&why_not);
    if ((call->rules & NEEDS_CONTEXT) && call->context == NULL)
        return why_not;
    if (call->context != NULL && call->context->root->error != CUDA_SUCCESS &&
        !(call->rules & (NEEDS_NOTHING | IGNORES_ERRORS)))
        return call->context->root->error;
    if (call->rules & UNSAFE)
        return captures_allow_unsafe_call();
    return CUDA_SUCCESS;
}

/* The fault that the environment wants, sticking where it would on a device. */
static CUresult injected_fault(struct call *call, uint64_t nth_call)
{
    CUresult fault = fault_for(call->entry, nth_call);
    if (fault != CUDA_SUCCESS && error_sticks(fault)) {
        CUresult why_not;
        struct context *context = current_context(&why_not);
        if (context != NULL)
            context->root->error = fault;
    }
    return fault;
}

/* Who wants to be called at the start of which entry point's calls. The function is written first
 * and the entry point is read first: the release and acquire pair up. */
static _Atomic(void (*)(const char *)) callback;
static _Atomic int callback_entry = ENTRIES;
static __thread bool in_callback;

int simcuda_set_callback(const char *name, void (*function)(const char *name))
{
    for (int i = 0; i < ENTRIES; i++)
        if (strcmp(name, entry_points[i].symbol) == 0) {
            atomic_store_explicit(&callback, function, memory_order_relaxed);
            atomic_store_explicit(&callback_entry, function != NULL ? i : ENTRIES,
                                  memory_order_release);
            return 1;
        }
    return 0;
}

static void call_back(enum entry entry)
{
    void (*function)(const char *);
    if (atomic_load_explicit(&callback_entry, memory_order_acquire) != (int)entry || in_callback)
        return;
    function = atomic_load_explicit(&callback, memory_order_relaxed);
    in_callback = true;
    if (function != NULL)
        function(entry_points[entry].symbol);
    in_callback = false;
}

CUresult call_begin(struct call *call)
{
    uint64_t nth_call =
        atomic_fetch_add_explicit(&counts[call->entry], 1, memory_order_relaxed) + 1;
    CUresult result;
    pthread_once(&prepared, prepare);
    if (sim.forked)
        return call->rules & NEEDS_NOTHING ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    call_back(call->entry);
    if (!(call->rules & (LIGHT | NEEDS_NOTHING))) {
        pthread_mutex_lock(&sim.driver_lock);
        call->has_driver_lock = true;
    }
    if (sim.settings.timing)
        take_the_time(call->entry);
    pthread_mutex_lock(&sim.lock);
    call->has_lock = true;
    if (sim.settings.stepped)
        scheduler_step(STEP_NS);
    result = injected_fault(call, nth_call);
    return result != CUDA_SUCCESS ? result : check(call);
}

void call_leave_driver(struct call *call)
{
    if (call->has_driver_lock)
        pthread_mutex_unlock(&sim.driver_lock);
    call->has_driver_lock = false;
}

void call_note(struct call *call, const char *format, ...)
{
    va_list arguments;
    if (sim.settings.log < 0)
        return;
    va_start(arguments, format);
    vsnprintf(call->note, sizeof call->note, format, arguments);
    va_end(arguments);
}

static void write_log(const struct call *call, CUresult result)
{
    char line[320];
    int length =
        snprintf(line, sizeof line, "%llu %s(%s) = %u\n", (unsigned long long)this_thread()->id,
                 entry_points[call->entry].symbol, call->note, result);
    pthread_mutex_lock(&sim.log_lock);
    while (length > 0) {
        ssize_t written = write(sim.settings.log, line, (size_t)length);
        length -= written > 0 ? (int)written : length;
    }
    pthread_mutex_unlock(&sim.log_lock);
}

CUresult call_end(struct call *call, CUresult result)
{
    bool logged = !sim.forked && sim.settings.log >= 0;
    if (call->has_lock)
        pthread_mutex_unlock(&sim.lock);
    call_leave_driver(call);
    user_objects_destroy();
    if (logged)
        write_log(call, result);
    return result;
}

uint64_t simcuda_calls(const char *name)
{
    uint64_t total = 0;
    for (int i = 0; i < ENTRIES; i++) {
        uint64_t count = atomic_load_explicit(&counts[i], memory_order_relaxed);
        if (name != NULL && strcmp(name, entry_points[i].symbol) == 0)
            return count;
        total += count;
    }
    return name == NULL ? total : UINT64_MAX;
}
