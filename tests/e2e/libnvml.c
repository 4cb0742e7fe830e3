/*
 * Stands for NVIDIA's management library: one process, NVML_PID, holds NVML_BYTES of the simulated
 * device; -1 is what the library says where it does not know. Other devices are unknown.
 */
#include <stdlib.h>
#include <string.h>

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

enum { SUCCESS, NOT_FOUND = 6, INSUFFICIENT_SIZE };

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return getenv("NVML_PID") ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = NULL;
    return strncmp(uuid, "GPU-73696d2d", strlen("GPU-73696d2d")) == 0 ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                            struct process *processes);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                            struct process *processes)
{
    const char *bytes = getenv("NVML_BYTES");
    (void)device;
    if (*count < 2)
        return INSUFFICIENT_SIZE;
    processes[0] = (struct process){.pid = 1, .bytes = 1};
    processes[1] = (struct process){.pid = (unsigned)atoi(getenv("NVML_PID")),
                                    .bytes = bytes ? strtoull(bytes, NULL, 10) : ~0ull};
    *count = 2;
    return SUCCESS;
}
