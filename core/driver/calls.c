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
