#include "calls.h"

_Thread_local struct driver_calls driver_calls;

struct relaxed_mode relaxed_mode_begin(const struct driver *driver)
{
    struct relaxed_mode mode = {false, CU_STREAM_CAPTURE_MODE_RELAXED};
    if (driver->cuThreadExchangeStreamCaptureMode)
        mode.exchanged = driver->cuThreadExchangeStreamCaptureMode(&mode.mode) == CUDA_SUCCESS;
    return mode;
}

void relaxed_mode_end(const struct driver *driver, struct relaxed_mode mode)
{
    if (mode.exchanged)
        driver->cuThreadExchangeStreamCaptureMode(&mode.mode);
}

static CUresult ask_range(const struct driver *driver, CUdeviceptr address, CUdeviceptr *base,
                          size_t *bytes)
{
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    CUresult result = driver->cuMemGetAddressRange_v2(base, bytes, address);
    leave_driver_relaxed(driver, mode);
    return result;
}

bool driver_has_block(const struct driver *driver, CUdeviceptr address)
{
    CUdeviceptr base;
    size_t bytes;
    return ask_range(driver, address, &base, &bytes) != CUDA_ERROR_NOT_FOUND;
}

static bool is_of_a_memory_pool(const struct driver *driver, CUdeviceptr address)
{
    CUmemoryPool of = NULL;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    void *place = &of;
    enter_driver();
    bool told = driver->cuPointerGetAttributes &&
                driver->cuPointerGetAttributes(1, &attribute, &place, address) == CUDA_SUCCESS;
    leave_driver();
    return told && of;
}

uint64_t driver_stream_ordered_bytes(const struct driver *driver, CUdeviceptr address)
{
    CUdeviceptr base;
    size_t bytes;
    bool is_start = is_of_a_memory_pool(driver, address) &&
                    ask_range(driver, address, &base, &bytes) == CUDA_SUCCESS && base == address;
    return is_start ? bytes : 0;
}

CUresult driver_memory_info(const struct driver *driver, size_t *left, size_t *total)
{
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    CUresult result = driver->cuMemGetInfo_v2(left, total);
    leave_driver_relaxed(driver, mode);
    return result;
}
