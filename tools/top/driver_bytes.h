/*
 * What the driver says that a process holds of a device. NVIDIA's management library tells it
 * (libnvidia-ml.so.1, which comes with the driver), so no call of CUDA's is made.
 */
#ifndef CUDAPOOL_TOOLS_DRIVER_BYTES_H
#define CUDAPOOL_TOOLS_DRIVER_BYTES_H

#include <stdint.h>

/* Returns bytes, contexts and code among them; 0 where it is not known. uuid: as in a report. pid:
 * in the first PID namespace, as the driver numbers processes. One thread calls this. */
uint64_t driver_bytes(const char *uuid, uint64_t pid);

#endif
