/*
 * The CUDA driver's interface for test programs, in place of <cuda.h>: no toolkit is needed.
 *
 * Names are the exported ones (cuMemAlloc_v2, not cuMemAlloc), so that what a test calls is what it
 * says. A program that includes this links with -lcuda, or with the simulated driver of tests/sim,
 * which has the same soname, or looks its functions up. Where a toolkit is found, the build checks
 * every type here against <cuda.h> (tests/sim/abi_check.c).
 */
#ifndef TESTS_DRIVER_API_H
#define TESTS_DRIVER_API_H

#include "core/driver/cuda_abi.h"

typedef struct CUuserObject_st *CUuserObject;
typedef void (*CUhostFn)(void *);
typedef void (*CUstreamCallback)(CUstream, CUresult, void *);
typedef unsigned int CUdevice_P2PAttribute;
typedef unsigned int CUfunc_cache;
typedef unsigned int CUgraphInstantiateResult;
typedef unsigned int CUdevResourceType;
typedef unsigned int CUmemorytype;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef unsigned int CUmemAccess_flags;
typedef unsigned int CUmoduleLoadingMode;
typedef unsigned int CUstreamBatchMemOpType;
typedef unsigned int CUgraphExecUpdateResult;
typedef unsigned int CUgraphMem_attribute;
typedef unsigned int CUexternalSemaphoreHandleType;
typedef unsigned int CUgraphConditionalNodeType;
typedef cuuint64_t CUgraphConditionalHandle;
typedef uint32_t cuuint32_t;
typedef struct CUextSemaphore_st *CUexternalSemaphore;

typedef struct CUDA_ARRAY_MEMORY_REQUIREMENTS_st {
    size_t size, alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct CUDA_MEMCPY2D_st {
    size_t srcXInBytes;
    size_t srcY;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes;
    size_t dstY;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes;
    size_t Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D_st {
    size_t srcXInBytes;
    size_t srcY;
    size_t srcZ;
    size_t srcLOD;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch;
    size_t srcHeight;
    size_t dstXInBytes;
    size_t dstY;
    size_t dstZ;
    size_t dstLOD;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch;
    size_t dstHeight;
    size_t WidthInBytes;
    size_t Height;
    size_t Depth;
} CUDA_MEMCPY3D;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

struct CUDA_GRAPH_INSTANTIATE_PARAMS_st {
    cuuint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    CUgraphInstantiateResult result_out;
};

struct CUctxCreateParams_st {
    CUexecAffinityParam *execAffinityParams;
    int numExecAffinityParams;
    void *cigParams;
};

typedef struct CUdevSmResource_st {
    unsigned int smCount;
    unsigned int minSmPartitionSize;
    unsigned int smCoscheduledAlignment;
} CUdevSmResource;

typedef struct CUdevResource_st {
    CUdevResourceType type;
    unsigned char internal_padding[92];
    union {
        CUdevSmResource sm;
        unsigned char oversize[48];
    };
} CUdevResource;

struct memory_operation_of_a_stream {
    CUstreamBatchMemOpType operation;
    CUdeviceptr address;
    union {
        cuuint32_t value;
        cuuint64_t value64;
    };
    unsigned int flags;
    CUdeviceptr alias;
};

typedef union CUstreamBatchMemOpParams_union {
    CUstreamBatchMemOpType operation;
    struct memory_operation_of_a_stream waitValue;
    struct memory_operation_of_a_stream writeValue;
    cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st {
    CUcontext ctx;
    unsigned int count;
    CUstreamBatchMemOpParams *paramArray;
    unsigned int flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;

typedef struct CUDA_HOST_NODE_PARAMS_st {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;

typedef struct CUgraphExecUpdateResultInfo_st {
    CUgraphExecUpdateResult result;
    CUgraphNode errorNode;
    CUgraphNode errorFromNode;
} CUgraphExecUpdateResultInfo;

/* The first members of the driver's union are those that tests use; it is as large as the driver's.
 */
struct CUgraphNodeParams_st {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_HOST_NODE_PARAMS host;
        struct {
            CUgraph graph;
            unsigned int ownership;
        } graph;
        struct {
            CUgraphConditionalHandle handle;
            CUgraphConditionalNodeType type;
            unsigned int size;
            CUgraph *phGraph_out;
            CUcontext ctx;
        } conditional;
    };
    long long reserved2;
};

typedef struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st {
    CUexternalSemaphoreHandleType type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvSciSyncObj;
    } handle;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;

typedef struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_st {
    struct {
        struct {
            unsigned long long value;
        } fence;
        unsigned long long reserved_for_others[2];
        unsigned int reserved[12];
    } params;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS;

typedef struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_st {
    struct {
        struct {
            unsigned long long value;
        } fence;
        unsigned long long reserved_for_others[3];
        unsigned int reserved[10];
    } params;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS;

typedef struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_st {
    CUexternalSemaphore *extSemArray;
    const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray;
    unsigned int numExtSems;
} CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;

typedef struct CUDA_EXT_SEM_WAIT_NODE_PARAMS_st {
    CUexternalSemaphore *extSemArray;
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray;
    unsigned int numExtSems;
} CUDA_EXT_SEM_WAIT_NODE_PARAMS;

/* Constants that only tests and the simulated driver use; core/driver/cuda_constants.def has the
 * rest. */
enum driver_api_constant {
#define CONSTANT(name, value) name = (value),
#include "driver_api_constants.def"
#undef CONSTANT
};

#define CU_LAUNCH_PARAM_END            ((void *)0x0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE    ((void *)0x2)

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "the size of " #type " is wrong");
#include "driver_api_sizes.def"
#undef SIZE

#define FUNCTION(name, parameters) CUresult name parameters;
#include "driver_api.def"
#undef FUNCTION

/* The driver call must succeed; FAIL is the program's own way to say that something did not. */
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_result = (call);                                                               \
        if (cu_result != CUDA_SUCCESS)                                                             \
            FAIL("%s: CUDA error %u", #call, cu_result);                                           \
    } while (0)

#endif
