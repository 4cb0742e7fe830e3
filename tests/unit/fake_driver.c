#include "fake_driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES     2
#define CONTEXTS    256
#define EVENTS      16384
#define STREAMS     1024
#define ALLOCATIONS 8192
#define TRACE_MAX   8192
#define STACK_MAX   16

struct fake_context_state {
    CUcontext handle;
    unsigned long long id;
    CUdevice device;
    bool alive, primary, green;
    uint64_t launched, finished, ordered;
    uint64_t behind, behind_mark; /* another context's id, and how much of its work */
};

struct fake_event_state {
    bool alive;
    unsigned long long context; /* by id */
    unsigned long long recorded_in;
    uint64_t mark; /* what was launched when it was recorded */
};

struct fake_stream_state {
    bool alive, capturing;
    unsigned long long context;
};

struct fake_allocation {
    CUdeviceptr address;
    uint64_t bytes;
    unsigned long long context;
    CUdevice device;
};

static struct {
    pthread_mutex_t lock;
    struct driver table;
    uint64_t device_bytes;
    uint64_t used[DEVICES];
    struct fake_context_state contexts[CONTEXTS];
    unsigned context_count, contexts_made;
    struct fake_event_state events[EVENTS];
    unsigned events_made;
    struct fake_stream_state streams[STREAMS];
    unsigned streams_made;
    struct fake_allocation allocations[ALLOCATIONS];
    unsigned allocation_count;
    CUdeviceptr next_address, wanted_address;
    unsigned captures;
    bool invalidated;
    int retains[DEVICES];
    unsigned calls[FAKE_FUNCTIONS];
    CUresult failure[FAKE_FUNCTIONS];
    unsigned failures[FAKE_FUNCTIONS];
    void (*action[FAKE_FUNCTIONS])(void *);
    void *argument[FAKE_FUNCTIONS];
    void (*every_action)(void *);
    void *every_argument;
    char trace[TRACE_MAX], shown[TRACE_MAX];
    unsigned misuses;
    const char *last_misuse;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    CUcontext stack[STACK_MAX];
    unsigned depth;
    CUstreamCaptureMode mode;
} thread;

static const char *const names[FAKE_FUNCTIONS] = {
    "synchronize", "alloc", "free",       "info",     "create",
    "destroy",     "query", "stream",     "unstream", "stream-synchronize",
    "record",      "wait",  "free-async", "trim",     "pitch",
};

static void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

/* ---- what happens in every call ---- */

static void visit(void)
{
    lock();
    void (*action)(void *) = fake.every_action;
    void *argument = fake.every_argument;
    unlock();
    if (action)
        action(argument);
}

static void add_to_trace(const char *name)
{
    size_t length = strlen(fake.trace), more = strlen(name);
    if (length + more + 2 > TRACE_MAX)
        return;
    if (length)
        fake.trace[length++] = ' ';
    memcpy(fake.trace + length, name, more + 1);
}

/* Enters a traced function: the lock is held when it returns true; else the call fails. */
static bool begin(enum fake_function function, CUresult *result)
{
    visit();
    lock();
    fake.calls[function]++;
    add_to_trace(names[function]);
    void (*action)(void *) = fake.action[function];
    void *argument = fake.argument[function];
    bool fails = fake.failures[function] != 0;
    *result = fails ? fake.failure[function] : CUDA_SUCCESS;
    fake.failures[function] -= fails;
    if (!action && !fails)
        return true;
    unlock();
    if (action)
        action(argument);
    if (fails)
        return false;
    lock();
    return true;
}

static CUresult end(CUresult result)
{
    unlock();
    return result;
}

static CUresult misuse(CUresult result, const char *what)
{
    fake.misuses++;
    fake.last_misuse = what;
    return result;
}

/* ---- handles; the lock is held ---- */

static struct fake_context_state *find_context(CUcontext handle)
{
    for (unsigned i = fake.context_count; i-- > 0;)
        if (fake.contexts[i].handle == handle && fake.contexts[i].alive)
            return &fake.contexts[i];
    return NULL;
}

static struct fake_context_state *find_primary(CUdevice device)
{
    for (unsigned i = fake.context_count; i-- > 0;)
        if (fake.contexts[i].primary && fake.contexts[i].device == device && fake.contexts[i].alive)
            return &fake.contexts[i];
    return NULL;
}

/* The context whose work, memory and events those of this one are. */
static struct fake_context_state *owner(struct fake_context_state *context)
{
    return context && context->green ? find_primary(context->device) : context;
}

static struct fake_context_state *find_by_id(unsigned long long id)
{
    for (unsigned i = fake.context_count; i-- > 0;)
        if (fake.contexts[i].id == id)
            return fake.contexts[i].alive ? &fake.contexts[i] : NULL;
    return NULL;
}

static CUcontext current_handle(void)
{
    return thread.depth ? thread.stack[thread.depth - 1] : NULL;
}

static struct fake_context_state *current(void)
{
    return owner(find_context(current_handle()));
}

static struct fake_event_state *find_event(CUevent event)
{
    uintptr_t index = (uintptr_t)event / 16 - 1;
    return index < EVENTS && fake.events[index].alive ? &fake.events[index] : NULL;
}

static struct fake_stream_state *find_stream(CUstream stream)
{
    uintptr_t index = (uintptr_t)stream / 32 - 1;
    return index < STREAMS && fake.streams[index].alive ? &fake.streams[index] : NULL;
}

static struct fake_allocation *find_allocation(CUdeviceptr address)
{
    for (unsigned i = 0; i < fake.allocation_count; i++)
        if (fake.allocations[i].address == address)
            return &fake.allocations[i];
    return NULL;
}

static void drop_allocation(struct fake_allocation *allocation)
{
    fake.used[allocation->device] -= allocation->bytes;
    *allocation = fake.allocations[--fake.allocation_count];
}

/* ---- captures; the lock is held ---- */

static bool captures_in(const struct fake_context_state *context)
{
    for (unsigned i = 0; i < STREAMS && fake.captures; i++)
        if (fake.streams[i].alive && fake.streams[i].capturing &&
            fake.streams[i].context == context->id)
            return true;
    return false;
}

static CUresult invalidate(const char *what)
{
    fake.invalidated = true;
    return misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, what);
}

/* A call that a capture forbids unless the thread's mode is relaxed. */
static bool is_forbidden(void)
{
    return fake.captures && thread.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

bool fake_allows_unsafe_call(const char *what)
{
    lock();
    bool forbidden = is_forbidden();
    if (forbidden)
        invalidate(what);
    end(CUDA_SUCCESS);
    return !forbidden;
}

/* ---- contexts ---- */

static CUresult ctx_get_current(CUcontext *handle)
{
    visit();
    *handle = current_handle();
    return CUDA_SUCCESS;
}

static CUresult ctx_push(CUcontext handle)
{
    visit();
    lock();
    bool known = find_context(handle) != NULL;
    if (!known || thread.depth == STACK_MAX)
        return end(misuse(CUDA_ERROR_INVALID_CONTEXT, "a dead context is pushed"));
    thread.stack[thread.depth++] = handle;
    return end(CUDA_SUCCESS);
}

static CUresult ctx_pop(CUcontext *handle)
{
    visit();
    if (!thread.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *handle = thread.stack[--thread.depth];
    return CUDA_SUCCESS;
}

static CUresult ctx_get_device(CUdevice *device)
{
    visit();
    lock();
    const struct fake_context_state *context = find_context(current_handle());
    if (context)
        *device = context->device;
    return end(context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

static CUresult ctx_get_id(CUcontext handle, unsigned long long *id)
{
    visit();
    lock();
    const struct fake_context_state *context = find_context(handle);
    if (context)
        *id = context->id;
    return end(context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

static CUresult ctx_synchronize(void)
{
    CUresult result;
    if (!begin(FAKE_CTX_SYNCHRONIZE, &result))
        return result;
    struct fake_context_state *context = current();
    if (!context)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    if (captures_in(context))
        return end(invalidate("a context with a capture is synchronised"));
    context->finished = context->launched;
    return end(CUDA_SUCCESS);
}

static CUresult primary_retain(CUcontext *handle, CUdevice device)
{
    visit();
    lock();
    const struct fake_context_state *context = find_primary(device);
    if (!context)
        return end(misuse(CUDA_ERROR_UNKNOWN, "a primary context is made"));
    *handle = context->handle;
    fake.retains[device]++;
    return end(CUDA_SUCCESS);
}

static CUresult primary_release(CUdevice device)
{
    visit();
    lock();
    fake.retains[device]--;
    return end(CUDA_SUCCESS);
}

static CUresult primary_get_state(CUdevice device, unsigned int *flags, int *active)
{
    visit();
    lock();
    *flags = 0;
    *active = find_primary(device) != NULL;
    return end(CUDA_SUCCESS);
}

/* ---- memory ---- */

static CUresult mem_alloc(CUdeviceptr *address, size_t bytes)
{
    CUresult result;
    if (!begin(FAKE_MEM_ALLOC, &result))
        return result;
    struct fake_context_state *context = current();
    if (!address || !bytes)
        return end(CUDA_ERROR_INVALID_VALUE);
    if (!context)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    if (is_forbidden())
        return end(invalidate("an allocation during a capture"));
    if (bytes > fake.device_bytes - fake.used[context->device] ||
        fake.allocation_count == ALLOCATIONS)
        return end(CUDA_ERROR_OUT_OF_MEMORY);
    *address = fake.wanted_address ? fake.wanted_address : fake.next_address;
    if (!fake.wanted_address)
        fake.next_address += (bytes + 511) / 512 * 512;
    fake.wanted_address = 0;
    fake.used[context->device] += bytes;
    fake.allocations[fake.allocation_count++] =
        (struct fake_allocation){*address, bytes, context->id, context->device};
    return end(CUDA_SUCCESS);
}

/* The plain free waits for the context, as far as a fake can: the work is done. */
static CUresult mem_free(CUdeviceptr address)
{
    CUresult result;
    if (!begin(FAKE_MEM_FREE, &result))
        return result;
    if (!address)
        return end(CUDA_SUCCESS);
    if (is_forbidden())
        return end(invalidate("a free during a capture"));
    struct fake_allocation *allocation = find_allocation(address);
    if (!allocation)
        return end(CUDA_ERROR_INVALID_VALUE);
    struct fake_context_state *context = find_by_id(allocation->context);
    context->finished = context->launched;
    drop_allocation(allocation);
    return end(CUDA_SUCCESS);
}

static CUresult mem_free_async(CUdeviceptr address, CUstream stream)
{
    CUresult result;
    if (!begin(FAKE_MEM_FREE_ASYNC, &result))
        return result;
    const struct fake_stream_state *on = find_stream(stream);
    if (!address)
        return end(CUDA_SUCCESS);
    struct fake_allocation *allocation = find_allocation(address);
    if (!on || !find_by_id(on->context))
        return end(misuse(CUDA_ERROR_INVALID_HANDLE, "a dead stream frees"));
    if (!allocation)
        return end(CUDA_ERROR_INVALID_VALUE);
    drop_allocation(allocation);
    return end(CUDA_SUCCESS);
}

static CUresult mem_get_info(size_t *left, size_t *total)
{
    CUresult result;
    if (!begin(FAKE_MEM_GET_INFO, &result))
        return result;
    const struct fake_context_state *context = current();
    if (!context)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    *left = fake.device_bytes - fake.used[context->device];
    *total = fake.device_bytes;
    return end(CUDA_SUCCESS);
}

static CUresult mem_get_address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    visit();
    lock();
    for (unsigned i = 0; i < fake.allocation_count; i++) {
        const struct fake_allocation *a = &fake.allocations[i];
        if (pointer < a->address || pointer - a->address >= a->bytes)
            continue;
        *base = a->address;
        *bytes = a->bytes;
        return end(CUDA_SUCCESS);
    }
    return end(CUDA_ERROR_NOT_FOUND);
}

CUresult fake_allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                             unsigned int element_bytes)
{
    CUresult result;
    (void)element_bytes;
    if (!begin(FAKE_PITCH, &result))
        return result;
    struct fake_context_state *context = current();
    if (!address || !pitch || !width || !height)
        return end(CUDA_ERROR_INVALID_VALUE);
    if (!context)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    *pitch = (width + 511) / 512 * 512;
    size_t bytes = *pitch * height;
    if (bytes > fake.device_bytes - fake.used[context->device])
        return end(CUDA_ERROR_OUT_OF_MEMORY);
    *address = fake.next_address;
    fake.next_address += bytes;
    fake.used[context->device] += bytes;
    fake.allocations[fake.allocation_count++] =
        (struct fake_allocation){*address, bytes, context->id, context->device};
    return end(CUDA_SUCCESS);
}

/* ---- events ---- */

/* Handles of the dead are used again, but late, so that those who still use them are found out. */
static unsigned take_event(void)
{
    for (unsigned i = 0; i < EVENTS; i++) {
        unsigned index = fake.events_made++ % EVENTS;
        if (!fake.events[index].alive)
            return index;
    }
    abort();
}

static CUresult event_create(CUevent *event, unsigned int flags)
{
    CUresult result;
    (void)flags;
    if (!begin(FAKE_EVENT_CREATE, &result))
        return result;
    const struct fake_context_state *context = current();
    if (!context)
        return end(misuse(CUDA_ERROR_INVALID_CONTEXT, "an event is made without a context"));
    unsigned index = take_event();
    fake.events[index] = (struct fake_event_state){true, context->id, context->id, 0};
    *event = (CUevent)(uintptr_t)(16u * (index + 1));
    return end(CUDA_SUCCESS);
}

static CUresult event_destroy(CUevent event)
{
    CUresult result;
    if (!begin(FAKE_EVENT_DESTROY, &result))
        return result;
    struct fake_event_state *state = find_event(event);
    if (!state)
        return end(misuse(CUDA_ERROR_INVALID_HANDLE, "a dead event is destroyed"));
    state->alive = false;
    return end(CUDA_SUCCESS);
}

static CUresult event_query(CUevent event)
{
    CUresult result;
    if (!begin(FAKE_EVENT_QUERY, &result))
        return result;
    if (is_forbidden())
        return end(invalidate("a query during a capture"));
    const struct fake_event_state *state = find_event(event);
    if (!state)
        return end(misuse(CUDA_ERROR_INVALID_HANDLE, "a dead event is queried"));
    const struct fake_context_state *context = find_by_id(state->recorded_in);
    if (!context)
        return end(misuse(CUDA_ERROR_INVALID_HANDLE, "a dead context's event is queried"));
    return end(context->finished >= state->mark ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

static CUresult ctx_record_event(CUcontext handle, CUevent event)
{
    CUresult result;
    if (!begin(FAKE_RECORD, &result))
        return result;
    struct fake_context_state *context = find_context(handle);
    struct fake_event_state *state = find_event(event);
    if (!context || context->green || !state || state->context != context->id)
        return end(misuse(CUDA_ERROR_INVALID_CONTEXT, "a record with a dead or wrong handle"));
    if (captures_in(context))
        return end(invalidate("a record in a context with a capture"));
    state->recorded_in = context->id;
    state->mark = context->launched;
    return end(CUDA_SUCCESS);
}

static CUresult ctx_wait_event(CUcontext handle, CUevent event)
{
    CUresult result;
    if (!begin(FAKE_WAIT, &result))
        return result;
    struct fake_context_state *context = find_context(handle);
    const struct fake_event_state *state = find_event(event);
    if (!context || !state || !state->recorded_in)
        return end(misuse(CUDA_ERROR_INVALID_CONTEXT, "a wait with a dead or wrong handle"));
    if (captures_in(context))
        return end(invalidate("a wait in a context with a capture"));
    if (state->recorded_in != context->id) {
        context->behind = state->recorded_in;
        context->behind_mark = state->mark;
    } else if (state->mark > context->ordered) {
        context->ordered = state->mark;
    }
    return end(CUDA_SUCCESS);
}

/* ---- streams ---- */

static unsigned take_stream(void)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        unsigned index = fake.streams_made++ % STREAMS;
        if (!fake.streams[index].alive)
            return index;
    }
    abort();
}

static CUresult make_stream(CUstream *stream)
{
    const struct fake_context_state *context = current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    unsigned index = take_stream();
    fake.streams[index] = (struct fake_stream_state){true, false, context->id};
    *stream = (CUstream)(uintptr_t)(32u * (index + 1));
    return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
    CUresult result;
    (void)flags;
    if (!begin(FAKE_STREAM_CREATE, &result))
        return result;
    return end(make_stream(stream));
}

static CUresult stream_destroy(CUstream stream)
{
    CUresult result;
    if (!begin(FAKE_STREAM_DESTROY, &result))
        return result;
    struct fake_stream_state *state = find_stream(stream);
    if (!state)
        return end(misuse(CUDA_ERROR_INVALID_HANDLE, "a dead stream is destroyed"));
    fake.captures -= state->capturing;
    *state = (struct fake_stream_state){false, false, 0};
    return end(CUDA_SUCCESS);
}

static CUresult stream_synchronize(CUstream stream)
{
    CUresult result;
    if (!begin(FAKE_STREAM_SYNCHRONIZE, &result))
        return result;
    const struct fake_stream_state *state = find_stream(stream);
    if (!state || !find_by_id(state->context))
        return end(misuse(CUDA_ERROR_INVALID_HANDLE, "a dead stream is synchronised"));
    return end(CUDA_SUCCESS);
}

static CUresult stream_is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    visit();
    lock();
    const struct fake_stream_state *state = find_stream(stream);
    if (!state)
        return end(CUDA_ERROR_INVALID_HANDLE);
    *status = state->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return end(CUDA_SUCCESS);
}

static CUresult stream_get_ctx(CUstream stream, CUcontext *handle)
{
    visit();
    lock();
    const struct fake_stream_state *state = find_stream(stream);
    const struct fake_context_state *context = state ? find_by_id(state->context) : NULL;
    if (context)
        *handle = context->handle;
    return end(context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    visit();
    CUstreamCaptureMode old = thread.mode;
    thread.mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* ---- devices ---- */

static CUresult device_get_name(char *name, int bytes, CUdevice device)
{
    visit();
    if (bytes < 7)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(name, "Fake 0", 7);
    name[5] = (char)('0' + device);
    return CUDA_SUCCESS;
}

static CUresult device_total_mem(size_t *bytes, CUdevice device)
{
    (void)device;
    visit();
    lock();
    *bytes = fake.device_bytes;
    return end(CUDA_SUCCESS);
}

static CUresult device_get_uuid(CUuuid *uuid, CUdevice device)
{
    visit();
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)(16 * device + i);
    return CUDA_SUCCESS;
}

static CUresult device_get_pool(CUmemoryPool *memory_pool, CUdevice device)
{
    visit();
    *memory_pool = (CUmemoryPool)(uintptr_t)(4096 + device);
    return CUDA_SUCCESS;
}

static CUresult pool_trim_to(CUmemoryPool memory_pool, size_t bytes)
{
    CUresult result;
    (void)memory_pool;
    (void)bytes;
    if (!begin(FAKE_TRIM, &result))
        return result;
    return end(is_forbidden() ? invalidate("a trim during a capture") : CUDA_SUCCESS);
}

static const struct driver all_functions = {
    .cuCtxGetCurrent = ctx_get_current,
    .cuCtxPushCurrent_v2 = ctx_push,
    .cuCtxPopCurrent_v2 = ctx_pop,
    .cuCtxGetDevice = ctx_get_device,
    .cuCtxSynchronize = ctx_synchronize,
    .cuMemAlloc_v2 = mem_alloc,
    .cuMemFree_v2 = mem_free,
    .cuMemGetInfo_v2 = mem_get_info,
    .cuMemGetAddressRange_v2 = mem_get_address_range,
    .cuEventCreate = event_create,
    .cuEventDestroy_v2 = event_destroy,
    .cuEventQuery = event_query,
    .cuStreamCreate = stream_create,
    .cuStreamDestroy_v2 = stream_destroy,
    .cuStreamSynchronize = stream_synchronize,
    .cuDeviceGetName = device_get_name,
    .cuDeviceTotalMem_v2 = device_total_mem,
    .cuDevicePrimaryCtxRetain = primary_retain,
    .cuDevicePrimaryCtxGetState = primary_get_state,
    .cuDevicePrimaryCtxRelease = primary_release,
    .cuDevicePrimaryCtxRelease_v2 = primary_release,
    .cuDeviceGetUuid = device_get_uuid,
    .cuDeviceGetUuid_v2 = device_get_uuid,
    .cuCtxGetId = ctx_get_id,
    .cuCtxRecordEvent = ctx_record_event,
    .cuCtxWaitEvent = ctx_wait_event,
    .cuMemFreeAsync = mem_free_async,
    .cuStreamIsCapturing = stream_is_capturing,
    .cuStreamGetCtx = stream_get_ctx,
    .cuThreadExchangeStreamCaptureMode = exchange_capture_mode,
    .cuDeviceGetDefaultMemPool = device_get_pool,
    .cuDeviceGetMemPool = device_get_pool,
    .cuMemPoolTrimTo = pool_trim_to,
};

/* ---- what the test asks and scripts ---- */

struct driver *fake_driver(uint64_t bytes_per_device)
{
    pthread_mutex_t keep = fake.lock;
    memset(&fake, 0, sizeof fake);
    fake.lock = keep;
    fake.device_bytes = bytes_per_device;
    fake.next_address = UINT64_C(0x7f0000000000);
    fake.table = all_functions;
    memset(&thread, 0, sizeof thread);
    return &fake.table;
}

unsigned fake_calls(enum fake_function function)
{
    lock();
    unsigned calls = fake.calls[function];
    unlock();
    return calls;
}

const char *fake_trace(void)
{
    lock();
    memcpy(fake.shown, fake.trace, sizeof fake.shown);
    fake.trace[0] = '\0';
    unlock();
    return fake.shown;
}

unsigned fake_misuses(void)
{
    lock();
    unsigned misuses = fake.misuses;
    unlock();
    return misuses;
}

const char *fake_last_misuse(void)
{
    return fake.last_misuse ? fake.last_misuse : "none";
}

void fake_fail(enum fake_function function, CUresult result, unsigned times)
{
    lock();
    fake.failure[function] = result;
    fake.failures[function] = times;
    unlock();
}

void fake_during(enum fake_function function, void (*action)(void *), void *argument)
{
    lock();
    fake.action[function] = action;
    fake.argument[function] = argument;
    unlock();
}

void fake_during_all(void (*action)(void *), void *argument)
{
    lock();
    fake.every_action = action;
    fake.every_argument = argument;
    unlock();
}

void fake_next_address(CUdeviceptr address)
{
    lock();
    fake.wanted_address = address;
    unlock();
}

/* A slot for a context; those of the dead are taken again, since ids tell contexts apart. */
static struct fake_context_state *take_context(void)
{
    for (unsigned i = 0; i < fake.context_count; i++)
        if (!fake.contexts[i].alive)
            return &fake.contexts[i];
    return fake.context_count < CONTEXTS ? &fake.contexts[fake.context_count++] : NULL;
}

static CUcontext make_context(CUcontext handle, CUdevice device, bool primary, bool green)
{
    lock();
    struct fake_context_state *context = take_context();
    if (!context)
        abort();
    fake.contexts_made++;
    if (!handle)
        handle = (CUcontext)(uintptr_t)(4096u * fake.contexts_made);
    *context = (struct fake_context_state){.handle = handle,
                                           .id = fake.contexts_made,
                                           .device = device,
                                           .alive = true,
                                           .primary = primary,
                                           .green = green};
    unlock();
    fake_set_current(handle);
    return handle;
}

CUcontext fake_context(CUdevice device)
{
    return make_context(NULL, device, false, false);
}

CUcontext fake_primary(CUdevice device)
{
    return make_context(NULL, device, true, false);
}

CUcontext fake_context_at(CUcontext handle, CUdevice device)
{
    return make_context(handle, device, false, false);
}

CUcontext fake_green(CUdevice device)
{
    return make_context(NULL, device, false, true);
}

CUcontext fake_green_at(CUcontext handle, CUdevice device)
{
    return make_context(handle, device, false, true);
}

static void end_streams_and_events(unsigned long long id)
{
    for (unsigned i = 0; i < EVENTS; i++)
        if (fake.events[i].context == id)
            fake.events[i].alive = false;
    for (unsigned i = 0; i < STREAMS; i++)
        if (fake.streams[i].alive && fake.streams[i].context == id) {
            fake.captures -= fake.streams[i].capturing;
            fake.streams[i] = (struct fake_stream_state){false, false, 0};
        }
}

void fake_end_context(CUcontext handle)
{
    lock();
    struct fake_context_state *context = find_context(handle);
    if (!context)
        abort();
    context->alive = false;
    if (!context->green) {
        end_streams_and_events(context->id);
        for (unsigned i = fake.allocation_count; i-- > 0;)
            if (fake.allocations[i].context == context->id)
                drop_allocation(&fake.allocations[i]);
    }
    unlock();
    if (current_handle() == handle)
        thread.depth--;
}

void fake_set_current(CUcontext handle)
{
    thread.depth = handle != NULL;
    thread.stack[0] = handle;
}

unsigned fake_live_contexts(void)
{
    unsigned count = 0;
    lock();
    for (unsigned i = 0; i < fake.context_count; i++)
        count += fake.contexts[i].alive;
    unlock();
    return count;
}

int fake_primary_retains(CUdevice device)
{
    lock();
    int retains = fake.retains[device];
    unlock();
    return retains;
}

void fake_launch(CUcontext handle)
{
    lock();
    struct fake_context_state *context = owner(find_context(handle));
    if (context)
        context->launched++;
    unlock();
}

void fake_finish(CUcontext handle)
{
    fake_finish_some(handle, UINT64_MAX);
}

void fake_finish_some(CUcontext handle, uint64_t pieces)
{
    lock();
    struct fake_context_state *context = owner(find_context(handle));
    if (context) {
        uint64_t left = context->launched - context->finished;
        context->finished += pieces < left ? pieces : left;
    }
    unlock();
}

uint64_t fake_launched(CUcontext handle)
{
    lock();
    const struct fake_context_state *context = owner(find_context(handle));
    uint64_t launched = context ? context->launched : 0;
    unlock();
    return launched;
}

uint64_t fake_behind(CUcontext handle, CUcontext other)
{
    lock();
    const struct fake_context_state *context = owner(find_context(handle));
    const struct fake_context_state *of = owner(find_context(other));
    uint64_t behind = context && of && context->behind == of->id ? context->behind_mark : 0;
    unlock();
    return behind;
}

uint64_t fake_ordered(CUcontext handle)
{
    lock();
    const struct fake_context_state *context = owner(find_context(handle));
    uint64_t ordered = !context                               ? 0
                       : context->ordered > context->finished ? context->ordered
                                                              : context->finished;
    unlock();
    return ordered;
}

uint64_t fake_bytes_used(CUdevice device)
{
    lock();
    uint64_t used = fake.used[device];
    unlock();
    return used;
}

bool fake_is_allocated(CUdeviceptr address)
{
    lock();
    bool found = find_allocation(address) != NULL;
    unlock();
    return found;
}

void fake_vanish(CUdeviceptr address)
{
    lock();
    struct fake_allocation *allocation = find_allocation(address);
    if (allocation)
        drop_allocation(allocation);
    unlock();
}

CUstream fake_stream(void)
{
    CUstream stream = NULL;
    lock();
    make_stream(&stream);
    unlock();
    return stream;
}

static void set_capturing(CUstream stream, bool capturing)
{
    lock();
    struct fake_stream_state *state = find_stream(stream);
    if (state) {
        fake.captures += capturing;
        fake.captures -= state->capturing;
        state->capturing = capturing;
    }
    unlock();
}

void fake_capture_begin(CUstream stream)
{
    set_capturing(stream, true);
}

void fake_capture_end(CUstream stream)
{
    set_capturing(stream, false);
}

bool fake_capture_was_invalidated(void)
{
    lock();
    bool invalidated = fake.invalidated;
    unlock();
    return invalidated;
}
