/*
 * The driver as a whole, and its devices: cuInit, what a device is and can do, names of errors.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"

struct device *device_of(CUdevice ordinal)
{
    if (ordinal < 0 || (unsigned int)ordinal >= sim.settings.devices)
        return NULL;
    return &sim.devices[ordinal];
}

static bool open_device(int ordinal)
{
    struct device *device = &sim.devices[ordinal];
    device->ordinal = ordinal;
    device->total = sim.settings.memory;
    if (!device_memory_open(device, device->total))
        return false;
    device->default_pool = pool_new(&(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, ordinal},
                                    CU_MEM_ALLOCATION_TYPE_PINNED, true);
    device->current_pool = device->default_pool;
    return device->default_pool != NULL;
}

DRIVER_CALL(cuInit, NEEDS_NOTHING, (unsigned int flags), (flags))
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!sim.settings.valid)
        return CUDA_ERROR_UNKNOWN;
    if (sim.settings.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (sim.initialised)
        return CUDA_SUCCESS;
    for (unsigned int i = 0; i < sim.settings.devices; i++)
        if (!open_device((int)i))
            return CUDA_ERROR_OUT_OF_MEMORY;
    sim.initialised = true;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDriverGetVersion, NEEDS_NOTHING, (int *version), (version))
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult value;
    const char *name, *text;
} errors[] = {
#define ERROR(name, value, text) {value, #name, text},
#include "errors.def"
#undef ERROR
};

int error_of_name(const char *name, size_t length)
{
    unsigned int number = 0;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strlen(errors[i].name) == length && memcmp(errors[i].name, name, length) == 0)
            return (int)errors[i].value;
    for (size_t i = 0; i < length; i++) {
        if (name[i] < '0' || name[i] > '9' || number > 9999)
            return -1;
        number = 10 * number + (unsigned int)(name[i] - '0');
    }
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].value == number)
            return (int)number;
    return -1;
}

DRIVER_CALL(cuGetErrorName, NEEDS_NOTHING, (CUresult error, const char **name), (error, name))
{
    for (size_t i = 0; name != NULL && i < sizeof errors / sizeof *errors; i++)
        if (errors[i].value == error) {
            *name = errors[i].name;
            return CUDA_SUCCESS;
        }
    if (name != NULL)
        *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL(cuGetErrorString, NEEDS_NOTHING, (CUresult error, const char **text), (error, text))
{
    for (size_t i = 0; text != NULL && i < sizeof errors / sizeof *errors; i++)
        if (errors[i].value == error) {
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    if (text != NULL)
        *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL(cuGetExportTable, NEEDS_NOTHING, (const void **table, const CUuuid *id), (table, id))
{
    if (table == NULL || id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

DRIVER_CALL_NO_ARGUMENTS(cuProfilerStart, NEEDS_CONTEXT)
{
    return CUDA_SUCCESS;
}

DRIVER_CALL_NO_ARGUMENTS(cuProfilerStop, NEEDS_CONTEXT)
{
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetCount, LIGHT, (int *count), (count))
{
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim.settings.devices;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGet, LIGHT, (CUdevice * device, int ordinal), (device, ordinal))
{
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetName, LIGHT, (char *name, int length, CUdevice device),
            (name, length, device))
{
    if (name == NULL || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "Simulated device");
    return CUDA_SUCCESS;
}

static CUresult fill_uuid(CUuuid *uuid, CUdevice device)
{
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "sim-gpu", 8);
    memcpy(uuid->bytes + 8, &sim.settings.devices_id, 8);
    uuid->bytes[7] = (char)device;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetUuid, LIGHT, (CUuuid * uuid, CUdevice device), (uuid, device))
{
    return fill_uuid(uuid, device);
}

DRIVER_CALL(cuDeviceGetUuid_v2, LIGHT, (CUuuid * uuid, CUdevice device), (uuid, device))
{
    return fill_uuid(uuid, device);
}

DRIVER_CALL(cuDeviceTotalMem_v2, LIGHT, (size_t * bytes, CUdevice device), (bytes, device))
{
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device_of(device)->total;
    return CUDA_SUCCESS;
}

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {2, 1024},
    {3, 1024},
    {4, 64},
    {5, 2147483647},
    {6, 65535},
    {7, 65535},
    {8, 49152},
    {9, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {11, 2147483647},
    {12, 65536},
    {13, 1980000},
    {14, 512},
    {15, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {36, 2619000},
    {37, 5120},
    {38, 52428800},
    {39, 2048},
    {40, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {78, 1},
    {81, 233472},
    {82, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {89, 1},
    {90, 1},
    {91, 1},
    {95, 1},
    {97, 232448},
    {99, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {106, 32},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {116, 1},
    {124, 1},
};

DRIVER_CALL(cuDeviceGetAttribute, LIGHT,
            (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device))
{
    if (value == NULL || attribute == 0 || attribute > 160)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device + 1 : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute)
            *value = attributes[i].value;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceComputeCapability, LIGHT, (int *major, int *minor, CUdevice device),
            (major, minor, device))
{
    if (major == NULL || minor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetPCIBusId, LIGHT, (char *id, int length, CUdevice device),
            (id, length, device))
{
    if (id == NULL || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", (unsigned int)device + 1);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetByPCIBusId, LIGHT, (CUdevice * device, const char *id), (device, id))
{
    unsigned int bus;
    if (device == NULL || id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "0000:%x:", &bus) != 1 || device_of((CUdevice)bus - 1) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = (CUdevice)bus - 1;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceCanAccessPeer, LIGHT, (int *can, CUdevice device, CUdevice peer),
            (can, device, peer))
{
    if (can == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL || device_of(peer) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetP2PAttribute, LIGHT,
            (int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer),
            (value, attribute, device, peer))
{
    if (value == NULL || attribute == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL || device_of(peer) == NULL || device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = 1;
    return CUDA_SUCCESS;
}
