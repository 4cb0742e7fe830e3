#include "driver_bytes.h"

#include <stdbool.h>
#include <stddef.h>

#include "core/base/glibc_compat.h"

GLIBC_SYMBOL_VERSION(dlsym, GLIBC_FIRST_VERSION);

/* nvmlProcessInfo_t of driver 510 and later: functions with the suffix _v3. bytes is
 * NVML_VALUE_NOT_AVAILABLE, all bits set, where nobody counts them. */
struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

enum { PROCESSES_MOST = 1024 };

typedef int device_by_uuid(const char *uuid, void **device);
typedef int processes_of(void *device, unsigned *count, struct process_info *processes);

static device_by_uuid *find_device;
static processes_of *list_processes;

static void load_library(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = library ? dlsym(library, "nvmlInit_v2") : NULL;
    if (!init || init() != 0)
        return;
    find_device = dlsym(library, "nvmlDeviceGetHandleByUUID");
    list_processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
}

uint64_t driver_bytes(const char *uuid, uint64_t pid)
{
    static bool loaded;
    static struct process_info processes[PROCESSES_MOST];
    unsigned count = PROCESSES_MOST;
    void *device;
    if (!loaded)
        load_library();
    loaded = true;
    if (!find_device || !list_processes || find_device(uuid, &device) != 0 ||
        list_processes(device, &count, processes) != 0)
        return 0;
    for (unsigned i = 0; i < count; i++)
        if (processes[i].pid == pid)
            return processes[i].bytes == ~0ull ? 0 : processes[i].bytes;
    return 0;
}
