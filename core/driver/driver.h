/*
 * The driver functions that the core may call, as one struct of pointers.
 *
 * The shim fills the struct once, before any other thread can see it, with the driver's own entry
 * points and never with replacements. After that the struct is only read, so no lock guards it. A
 * test fills it with whatever functions it wants to see called. A function that the driver does not
 * have is NULL. Only the functions marked OPTIONAL may be missing, and each of their callers says
 * what it does then.
 */
#ifndef CUDAPOOL_CORE_DRIVER_H
#define CUDAPOOL_CORE_DRIVER_H

#include "cuda_abi.h"

/* clang-format off */
#define DRIVER_FUNCTIONS(REQUIRED, OPTIONAL)                                                       \
    REQUIRED(cuCtxGetCurrent, (CUcontext *))                                                       \
    REQUIRED(cuCtxPushCurrent_v2, (CUcontext))                                                     \
    REQUIRED(cuCtxPopCurrent_v2, (CUcontext *))                                                    \
    REQUIRED(cuCtxGetDevice, (CUdevice *))                                                         \
    REQUIRED(cuCtxSynchronize, (void))                                                             \
    REQUIRED(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                               \
    REQUIRED(cuMemFree_v2, (CUdeviceptr))                                                          \
    REQUIRED(cuMemGetInfo_v2, (size_t *, size_t *))                                                \
    REQUIRED(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                      \
    REQUIRED(cuEventCreate, (CUevent *, unsigned int))                                             \
    REQUIRED(cuEventDestroy_v2, (CUevent))                                                         \
    REQUIRED(cuEventQuery, (CUevent))                                                              \
    REQUIRED(cuStreamCreate, (CUstream *, unsigned int))                                           \
    REQUIRED(cuStreamDestroy_v2, (CUstream))                                                       \
    REQUIRED(cuStreamSynchronize, (CUstream))                                                      \
    REQUIRED(cuDeviceGetName, (char *, int, CUdevice))                                             \
    REQUIRED(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                            \
    REQUIRED(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                    \
    REQUIRED(cuDevicePrimaryCtxGetState, (CUdevice, unsigned int *, int *))                        \
    OPTIONAL(cuDevicePrimaryCtxRelease, (CUdevice))                                                \
    OPTIONAL(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                             \
    OPTIONAL(cuDriverGetVersion, (int *))                                                          \
    OPTIONAL(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                          \
    OPTIONAL(cuDeviceGetUuid, (CUuuid *, CUdevice))                                                \
    OPTIONAL(cuDeviceGetUuid_v2, (CUuuid *, CUdevice))                                             \
    OPTIONAL(cuPointerGetAttributes,                                                               \
             (unsigned int, CUpointer_attribute *, void **, CUdeviceptr))                          \
    OPTIONAL(cuCtxGetId, (CUcontext, unsigned long long *))                                        \
    OPTIONAL(cuCtxRecordEvent, (CUcontext, CUevent))                                               \
    OPTIONAL(cuCtxWaitEvent, (CUcontext, CUevent))                                                 \
    OPTIONAL(cuMemFreeAsync, (CUdeviceptr, CUstream))                                              \
    OPTIONAL(cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus *))                             \
    OPTIONAL(cuStreamGetId, (CUstream, unsigned long long *))                                      \
    OPTIONAL(cuStreamGetCtx, (CUstream, CUcontext *))                                              \
    OPTIONAL(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                           \
    OPTIONAL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                                \
    OPTIONAL(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))                                       \
    OPTIONAL(cuMemPoolTrimTo, (CUmemoryPool, size_t))                                              \
    OPTIONAL(cuMemPoolGetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))                   \
    OPTIONAL(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))                   \
    OPTIONAL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))             \
    OPTIONAL(cuEventRecord, (CUevent, CUstream))                                                   \
    OPTIONAL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                  \
    OPTIONAL(cuStreamWaitEvent, (CUstream, CUevent, unsigned int))                                 \
    OPTIONAL(cuStreamGetFlags, (CUstream, unsigned int *))                                         \
    OPTIONAL(cuStreamQuery, (CUstream))                                                            \
    OPTIONAL(cuMemHostAlloc, (void **, size_t, unsigned int))                                      \
    OPTIONAL(cuMemAllocHost_v2, (void **, size_t))                                                 \
    OPTIONAL(cuMemFreeHost, (void *))                                                              \
    OPTIONAL(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                 \
    OPTIONAL(cuMemHostUnregister, (void *))                                                        \
    OPTIONAL(cuDeviceGraphMemTrim, (CUdevice))                                                     \
    OPTIONAL(cuDeviceGetGraphMemAttribute, (CUdevice, CUgraphMem_attribute, void *))               \
    OPTIONAL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                  \
    OPTIONAL(cuGraphNodeGetDependencies, (CUgraphNode, CUgraphNode *, size_t *))                   \
    OPTIONAL(cuGraphNodeGetType, (CUgraphNode, CUgraphNodeType *))                                 \
    OPTIONAL(cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *))                              \
    OPTIONAL(cuStreamGetCaptureInfo_v2,                                                            \
             (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,    \
              size_t *))                                                                           \
    OPTIONAL(cuStreamGetCaptureInfo_v3,                                                            \
             (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,    \
              const CUgraphEdgeData **, size_t *))                                                 \
    OPTIONAL(cuUserObjectCreate, (CUuserObject *, void *, CUhostFn, unsigned int, unsigned int))   \
    OPTIONAL(cuUserObjectRetain, (CUuserObject, unsigned int))                                     \
    OPTIONAL(cuUserObjectRelease, (CUuserObject, unsigned int))                                    \
    OPTIONAL(cuGraphRetainUserObject, (CUgraph, CUuserObject, unsigned int, unsigned int))         \
    OPTIONAL(cuGraphReleaseUserObject, (CUgraph, CUuserObject, unsigned int))
/* clang-format on */

struct driver {
#define DRIVER_FIELD(name, parameters) CUresult(*name) parameters;
    DRIVER_FUNCTIONS(DRIVER_FIELD, DRIVER_FIELD)
#undef DRIVER_FIELD
};

#endif
