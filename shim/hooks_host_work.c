/*
 * Hooks of work that ends only if the host acts: host functions, callbacks, waits for a value or
 * for an external semaphore. All pass through. The pool marks where the work lies among the other
 * work of its context.
 */
#include "hooks_host_work.h"

/* Defines the hooks of both spellings of a function. In NAME_ptsz the NULL stream is the thread's
 * own, which is in the same context as the stream that NULL means in NAME. */
#define HOST_WORK_HOOKS(name, parameters, arguments)                                               \
    HOOK(name, parameters)                                                                         \
    {                                                                                              \
        return HOST_WORK(real_driver()->name arguments, stream);                                   \
    }                                                                                              \
    HOOK(name##_ptsz, parameters)                                                                  \
    {                                                                                              \
        return HOST_WORK(real_driver()->name##_ptsz arguments, stream);                            \
    }

HOST_WORK_HOOKS(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *argument),
                (stream, function, argument))
HOST_WORK_HOOKS(cuLaunchHostFunc_v2,
                (CUstream stream, CUhostFn function, void *argument, unsigned int mode),
                (stream, function, argument, mode))
HOST_WORK_HOOKS(cuStreamAddCallback,
                (CUstream stream, CUstreamCallback callback, void *argument, unsigned int flags),
                (stream, callback, argument, flags))
HOST_WORK_HOOKS(cuStreamWaitValue32,
                (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags),
                (stream, address, value, flags))
HOST_WORK_HOOKS(cuStreamWaitValue64,
                (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
                (stream, address, value, flags))
HOST_WORK_HOOKS(cuStreamWaitValue32_v2,
                (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags),
                (stream, address, value, flags))
HOST_WORK_HOOKS(cuStreamWaitValue64_v2,
                (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
                (stream, address, value, flags))
HOST_WORK_HOOKS(cuStreamBatchMemOp,
                (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
                 unsigned int flags),
                (stream, count, operations, flags))
HOST_WORK_HOOKS(cuStreamBatchMemOp_v2,
                (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
                 unsigned int flags),
                (stream, count, operations, flags))
HOST_WORK_HOOKS(cuWaitExternalSemaphoresAsync,
                (const CUexternalSemaphore *semaphores,
                 const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters, unsigned int count,
                 CUstream stream),
                (semaphores, parameters, count, stream))
