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

bool driver_has_block(const struct driver *driver, CUdeviceptr address)
{
    CUdeviceptr base;
    size_t bytes;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(driver);
    CUresult result = driver->cuMemGetAddressRange_v2(&base, &bytes, address);
    relaxed_mode_end(driver, mode);
    leave_driver();
    return result != CUDA_ERROR_NOT_FOUND;
}

CUresult driver_memory_info(const struct driver *driver, size_t *left, size_t *total)
{
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(driver);
    CUresult result = driver->cuMemGetInfo_v2(left, total);
    relaxed_mode_end(driver, mode);
    leave_driver();
    return result;
}
