#include "fake_streams.h"

#include <string.h>

#define STREAMS 256
#define EVENTS  16384
#define POOLS   16

struct stream_state {
    CUstream handle;
    CUcontext context; /* whose legacy or per-thread one it is; NULL for others */
    unsigned long long id;
    uint64_t launched, finished;
    uint64_t after[STREAMS];
};

static struct {
    struct driver *driver, below;
    struct stream_state streams[STREAMS];
    unsigned stream_count;
    unsigned long long ids;
    struct {
        CUevent event;
        struct stream_state *stream;
        uint64_t mark;
    } events[EVENTS];
    unsigned event_count;
    unsigned refusals;
    struct fake_stream_calls calls;
    unsigned failing_records, failing_waits;
    void (*during_record)(void);
    uint64_t attributes[POOLS][9];
    CUdevice devices[POOLS];
    unsigned pool_count;
    CUmemoryPool current[2];
} fake;

/* ---- streams ---- */

static CUcontext current_context(void)
{
    CUcontext context = NULL;
    fake.below.cuCtxGetCurrent(&context);
    return context;
}

static struct stream_state *state_of(CUstream handle)
{
    bool created = handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD;
    CUcontext context = created ? NULL : current_context();
    unsigned i = 0;
    while (i < fake.stream_count &&
           (fake.streams[i].handle != handle || fake.streams[i].context != context))
        i++;
    if (i == fake.stream_count && i < STREAMS)
        fake.streams[fake.stream_count++] =
            (struct stream_state){.handle = handle, .context = context, .id = ++fake.ids};
    return &fake.streams[i];
}

static struct stream_state *named(CUstream handle)
{
    return state_of(handle ? handle : CU_STREAM_LEGACY);
}

void fake_stream_works(CUstream stream)
{
    named(stream)->launched++;
}

void fake_stream_is_done(CUstream stream)
{
    struct stream_state *state = named(stream);
    state->finished = state->launched;
}

uint64_t fake_stream_after(CUstream waiting, CUstream other)
{
    return named(waiting)->after[named(other) - fake.streams];
}

uint64_t fake_stream_work(CUstream stream)
{
    return named(stream)->launched;
}

void fake_stream_destroyed(CUstream stream)
{
    struct stream_state *state = named(stream);
    state->handle = NULL;
    state->context = (CUcontext)1;
}

static CUresult stream_get_id(CUstream handle, unsigned long long *id)
{
    *id = named(handle)->id;
    return CUDA_SUCCESS;
}

/* ---- events ---- */

static CUresult event_record(CUevent event, CUstream stream)
{
    unsigned i = 0;
    fake.calls.records++;
    if (fake.failing_records && fake.failing_records--)
        return CUDA_ERROR_UNKNOWN;
    while (i < fake.event_count && fake.events[i].event != event)
        i++;
    fake.event_count += i == fake.event_count;
    fake.events[i].event = event;
    fake.events[i].stream = named(stream);
    fake.events[i].mark = named(stream)->launched;
    void (*call)(void) = fake.during_record;
    fake.during_record = NULL;
    if (call)
        call();
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    fake.calls.queries++;
    for (unsigned i = 0; i < fake.event_count; i++)
        if (fake.events[i].event == event)
            return fake.events[i].stream->finished >= fake.events[i].mark ? CUDA_SUCCESS
                                                                          : CUDA_ERROR_NOT_READY;
    return fake.below.cuEventQuery(event);
}

static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned int flags)
{
    (void)flags;
    fake.calls.waits++;
    if (fake.failing_waits && fake.failing_waits--)
        return CUDA_ERROR_UNKNOWN;
    for (unsigned i = 0; i < fake.event_count; i++)
        if (fake.events[i].event == event) {
            uint64_t *after = &named(stream)->after[fake.events[i].stream - fake.streams];
            *after = fake.events[i].mark > *after ? fake.events[i].mark : *after;
        }
    return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream stream)
{
    fake_stream_is_done(stream);
    return CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    for (unsigned i = 0; i < fake.event_count; i++)
        if (fake.events[i].event == event)
            fake.events[i].event = NULL;
    return fake.below.cuCtxRecordEvent(context, event);
}

void fake_stream_during_record(void (*call)(void))
{
    fake.during_record = call;
}

void fake_stream_fail_records(unsigned times)
{
    fake.failing_records = times;
}

void fake_stream_fail_waits(unsigned times)
{
    fake.failing_waits = times;
}

struct fake_stream_calls fake_stream_calls(void)
{
    return fake.calls;
}

/* ---- memory pools ---- */

CUmemoryPool fake_mempool(CUdevice device)
{
    unsigned index = fake.pool_count++;
    for (unsigned i = 1; i <= 3; i++)
        fake.attributes[index][i] = 1;
    fake.devices[index] = device;
    return (CUmemoryPool)(uintptr_t)(0x100 + index);
}

void fake_mempool_set_current(CUdevice device, CUmemoryPool memory_pool)
{
    fake.current[device] = memory_pool;
}

uint64_t *fake_mempool_attribute(CUmemoryPool memory_pool, CUmemPool_attribute attribute)
{
    return &fake.attributes[(uintptr_t)memory_pool - 0x100][attribute];
}

static CUresult get_default_pool(CUmemoryPool *memory_pool, CUdevice device)
{
    *memory_pool = (CUmemoryPool)(uintptr_t)(0x100 + device);
    return CUDA_SUCCESS;
}

static CUresult get_pool(CUmemoryPool *memory_pool, CUdevice device)
{
    *memory_pool = fake.current[device];
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool memory_pool, CUmemPool_attribute attribute, void *value)
{
    if (!fake_allows_unsafe_call("a memory pool's attribute in a capture"))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    uint64_t found = *fake_mempool_attribute(memory_pool, attribute);
    if (attribute <= 3)
        *(int *)value = (int)found;
    else
        *(cuuint64_t *)value = found;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUmemoryPool memory_pool, CUmemPool_attribute attribute, void *value)
{
    if (!fake_allows_unsafe_call("a memory pool's attribute in a capture"))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    *fake_mempool_attribute(memory_pool, attribute) =
        attribute <= 3 ? (uint64_t) * (int *)value : *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}

static CUresult allocate_from_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                                   CUstream stream)
{
    (void)stream;
    fake.calls.allocations++;
    if (fake.refusals) {
        fake.refusals--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = fake.below.cuMemAlloc_v2(address, bytes);
    uint64_t *used = fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    uint64_t *high = fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    if (result == CUDA_SUCCESS)
        *used += (bytes + 511) / 512 * 512;
    *high = *used > *high ? *used : *high;
    return result;
}

void fake_stream_refuse_memory(unsigned times)
{
    fake.refusals = times;
}

static CUresult get_flags(CUstream stream, unsigned int *flags)
{
    (void)stream;
    *flags = CU_STREAM_NON_BLOCKING;
    return CUDA_SUCCESS;
}

void fake_streams(struct driver *driver)
{
    memset(&fake, 0, sizeof fake);
    fake.driver = driver;
    fake.below = *driver;
    fake.current[0] = fake_mempool(0);
    fake.current[1] = fake_mempool(1);
    driver->cuStreamGetId = stream_get_id;
    driver->cuEventRecord = event_record;
    driver->cuEventQuery = event_query;
    driver->cuStreamWaitEvent = stream_wait_event;
    driver->cuStreamSynchronize = stream_synchronize;
    driver->cuCtxRecordEvent = ctx_record_event;
    driver->cuDeviceGetDefaultMemPool = get_default_pool;
    driver->cuStreamGetFlags = get_flags;
    driver->cuDeviceGetMemPool = get_pool;
    driver->cuMemPoolGetAttribute = get_attribute;
    driver->cuMemPoolSetAttribute = set_attribute;
    driver->cuMemAllocFromPoolAsync = allocate_from_pool;
}
