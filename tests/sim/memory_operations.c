/*
 * Stream memory operations: waits until a word of memory, which the program or another stream
 * writes, compares as wanted; writes of words; and external semaphores, which are such words that
 * only these calls can name. A wait takes no processor on a GPU and can last for ever.
 */
#include <stdlib.h>

#include "sim.h"

/* --- what an operation does --------------------------------------------------------------------*/

/* The word may be written by the program at any moment, without our knowing. */
__attribute__((no_sanitize("thread"))) static uint64_t read_word(const struct memory_step *step)
{
    return step->wide
               ? __atomic_load_n((const uint64_t *)(uintptr_t)step->address, __ATOMIC_ACQUIRE)
               : __atomic_load_n((const uint32_t *)(uintptr_t)step->address, __ATOMIC_ACQUIRE);
}

static void write_word(const struct memory_step *step)
{
    if (step->wide)
        __atomic_store_n((uint64_t *)(uintptr_t)step->address, step->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)(uintptr_t)step->address, (uint32_t)step->value,
                         __ATOMIC_RELEASE);
}

static bool compares(const struct memory_step *step)
{
    uint64_t word = read_word(step);
    switch (step->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return step->wide ? (int64_t)(word - step->value) >= 0
                          : (int32_t)((uint32_t)word - (uint32_t)step->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return word == step->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (word & step->value) != 0;
    default:
        return (~(word | step->value) & (step->wide ? UINT64_MAX : UINT32_MAX)) != 0;
    }
}

bool memory_steps_run(struct work *work)
{
    for (; work->memory_steps.done < work->memory_steps.count; work->memory_steps.done++) {
        const struct memory_step *step = &work->memory_steps.step[work->memory_steps.done];
        if (step->writes)
            write_word(step);
        else if (!compares(step))
            return false;
    }
    return true;
}

static void add_step(struct work *work, const struct memory_step *step)
{
    work->how = WAITS_FOR_MEMORY;
    work->memory_steps.step[work->memory_steps.count++] = *step;
}

/* One operation of a batch; false if it is none. */
static bool add_operation(struct work *work, const CUstreamBatchMemOpParams *parameters)
{
    const struct memory_operation_of_a_stream *given = &parameters->waitValue;
    struct memory_step step = {.address = given->address, .flags = given->flags};
    switch (parameters->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        step.wide = true;
        step.value = given->value64;
        break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        step.value = given->value;
        break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER:
        return true;
    default:
        return false;
    }
    step.writes = parameters->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
                  parameters->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (step.address % (step.wide ? 8 : 4) != 0 ||
        !device_may_access(step.address, step.wide ? 8 : 4))
        return false;
    add_step(work, &step);
    return true;
}

CUresult memory_operations_work(const CUstreamBatchMemOpParams *parameters, unsigned int count,
                                struct work *work)
{
    *work = (struct work){.how = TAKES_NO_TIME, .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    if (parameters == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (count > MOST_STEPS)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; i < count; i++)
        if (!add_operation(work, &parameters[i]))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* --- external semaphores -----------------------------------------------------------------------*/

/* Never freed, since an operation may still wait for it. */
struct semaphore {
    uint64_t value;
};

static CUresult semaphores_work(const CUexternalSemaphore *handles, unsigned int count,
                                struct work *work)
{
    if (handles == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (count > MOST_STEPS)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; i < count; i++) {
        struct semaphore *semaphore = handle_object(KIND_SEMAPHORE, handles[i]);
        struct memory_step step = {.wide = true};
        if (semaphore == NULL)
            return CUDA_ERROR_INVALID_HANDLE;
        step.address = (uint64_t)(uintptr_t)&semaphore->value;
        add_step(work, &step);
    }
    return CUDA_SUCCESS;
}

CUresult semaphores_wait_work(const CUDA_EXT_SEM_WAIT_NODE_PARAMS *parameters, struct work *work)
{
    CUresult result;
    *work = (struct work){.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT};
    if (parameters == NULL || parameters->paramsArray == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = semaphores_work(parameters->extSemArray, parameters->numExtSems, work);
    for (unsigned int i = 0; i < work->memory_steps.count; i++)
        work->memory_steps.step[i].value = parameters->paramsArray[i].params.fence.value;
    return result;
}

CUresult semaphores_signal_work(const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *parameters,
                                struct work *work)
{
    CUresult result;
    *work = (struct work){.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL};
    if (parameters == NULL || parameters->paramsArray == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = semaphores_work(parameters->extSemArray, parameters->numExtSems, work);
    for (unsigned int i = 0; i < work->memory_steps.count; i++) {
        work->memory_steps.step[i].value = parameters->paramsArray[i].params.fence.value;
        work->memory_steps.step[i].writes = true;
    }
    return result;
}

/* --- the driver's functions --------------------------------------------------------------------*/

static CUresult add_to_stream(struct call *call, CUstream handle, const struct work *work)
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    return stream != NULL ? stream_add(stream, work, NULL) : why_not;
}

static CUresult operate(struct call *call, CUstream stream, CUstreamBatchMemOpType operation,
                        const struct memory_operation_of_a_stream *given)
{
    CUstreamBatchMemOpParams parameters = {.waitValue = *given};
    struct work work;
    CUresult result;
    parameters.operation = operation;
    result = memory_operations_work(&parameters, 1, &work);
    return result == CUDA_SUCCESS ? add_to_stream(call, stream, &work) : result;
}

#define ONE_WORD(name, type, member, what)                                                         \
    DRIVER_CALL_PT(name, _ptsz, 0,                                                                 \
                   (CUstream stream, CUdeviceptr address, type value, unsigned int flags),         \
                   (stream, address, value, flags))                                                \
    {                                                                                              \
        return operate(call, stream, what,                                                         \
                       &(struct memory_operation_of_a_stream){                                     \
                           .address = address, .member = value, .flags = flags});                  \
    }

ONE_WORD(cuStreamWaitValue32, cuuint32_t, value, CU_STREAM_MEM_OP_WAIT_VALUE_32)
ONE_WORD(cuStreamWaitValue32_v2, cuuint32_t, value, CU_STREAM_MEM_OP_WAIT_VALUE_32)
ONE_WORD(cuStreamWaitValue64, cuuint64_t, value64, CU_STREAM_MEM_OP_WAIT_VALUE_64)
ONE_WORD(cuStreamWaitValue64_v2, cuuint64_t, value64, CU_STREAM_MEM_OP_WAIT_VALUE_64)
ONE_WORD(cuStreamWriteValue32, cuuint32_t, value, CU_STREAM_MEM_OP_WRITE_VALUE_32)
ONE_WORD(cuStreamWriteValue32_v2, cuuint32_t, value, CU_STREAM_MEM_OP_WRITE_VALUE_32)
ONE_WORD(cuStreamWriteValue64, cuuint64_t, value64, CU_STREAM_MEM_OP_WRITE_VALUE_64)
ONE_WORD(cuStreamWriteValue64_v2, cuuint64_t, value64, CU_STREAM_MEM_OP_WRITE_VALUE_64)

/* A stream takes any number: as many operations, one after the other. */
static CUresult batch(struct call *call, CUstream stream, unsigned int count,
                      const CUstreamBatchMemOpParams *parameters)
{
    CUresult result = count > 0 && parameters != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
        struct work work;
        result = memory_operations_work(&parameters[i], 1, &work);
        if (result == CUDA_SUCCESS)
            result = add_to_stream(call, stream, &work);
    }
    return result;
}

DRIVER_CALL_PT(cuStreamBatchMemOp, _ptsz, 0,
               (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *parameters,
                unsigned int flags),
               (stream, count, parameters, flags))
{
    return batch(call, stream, count, parameters);
}

DRIVER_CALL_PT(cuStreamBatchMemOp_v2, _ptsz, 0,
               (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *parameters,
                unsigned int flags),
               (stream, count, parameters, flags))
{
    return batch(call, stream, count, parameters);
}

DRIVER_CALL(cuImportExternalSemaphore, NEEDS_CONTEXT,
            (CUexternalSemaphore * handle, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *description),
            (handle, description))
{
    struct semaphore *semaphore;
    if (handle == NULL || description == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (description->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    semaphore = calloc(1, sizeof *semaphore);
    if (semaphore == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = handle_new(KIND_SEMAPHORE, semaphore);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDestroyExternalSemaphore, IGNORES_ERRORS, (CUexternalSemaphore handle), (handle))
{
    if (handle_object(KIND_SEMAPHORE, handle) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_free(KIND_SEMAPHORE, handle);
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuSignalExternalSemaphoresAsync, _ptsz, 0,
               (const CUexternalSemaphore *semaphores,
                const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *parameters, unsigned int count,
                CUstream stream),
               (semaphores, parameters, count, stream))
{
    CUexternalSemaphore *handles = (CUexternalSemaphore *)(uintptr_t)semaphores;
    struct work work;
    CUresult result = semaphores_signal_work(
        &(CUDA_EXT_SEM_SIGNAL_NODE_PARAMS){handles, parameters, count}, &work);
    return result == CUDA_SUCCESS ? add_to_stream(call, stream, &work) : result;
}

DRIVER_CALL_PT(cuWaitExternalSemaphoresAsync, _ptsz, 0,
               (const CUexternalSemaphore *semaphores,
                const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters, unsigned int count,
                CUstream stream),
               (semaphores, parameters, count, stream))
{
    CUexternalSemaphore *handles = (CUexternalSemaphore *)(uintptr_t)semaphores;
    struct work work;
    CUresult result =
        semaphores_wait_work(&(CUDA_EXT_SEM_WAIT_NODE_PARAMS){handles, parameters, count}, &work);
    return result == CUDA_SUCCESS ? add_to_stream(call, stream, &work) : result;
}
