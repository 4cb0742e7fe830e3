/*
 * cuGetProcAddress, both versions: the driver's own rules of choosing a variant.
 */
#include <string.h>

#include "sim.h"

CUresult sim_not_supported(enum entry entry);
CUresult sim_not_supported(enum entry entry)
{
    struct call call = {.entry = entry, .rules = NEEDS_NOTHING};
    CUresult result = call_begin(&call);
    return call_end(&call, result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED);
}

/* The newest variant up to the version; among the newest, the per-thread one if wanted. */
static const struct entry_point *choose(const char *name, int version, bool per_thread)
{
    const struct entry_point *best = NULL;
    for (int i = 0; i < ENTRIES; i++) {
        const struct entry_point *candidate = &entry_points[i];
        if (strcmp(candidate->base, name) != 0 || candidate->since > version ||
            (candidate->per_thread && !per_thread))
            continue;
        if (best == NULL || candidate->since > best->since ||
            (candidate->since == best->since && candidate->per_thread))
            best = candidate;
    }
    return best;
}

static CUdriverProcAddressQueryResult look_up(const char *name, void **address, int version,
                                              cuuint64_t flags)
{
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct entry_point *found = choose(name, version, per_thread);
    *address = NULL;
    if (found == NULL)
        return choose(name, SIM_DRIVER_VERSION, true) != NULL
                   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *address = (void *)(uintptr_t)found->address;
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

static bool arguments_are_fine(const char *name, void *const *address, int version,
                               cuuint64_t flags)
{
    return name != NULL && address != NULL && version <= SIM_DRIVER_VERSION && flags <= 2;
}

DRIVER_CALL(cuGetProcAddress, NEEDS_NOTHING,
            (const char *name, void **address, int version, cuuint64_t flags),
            (name, address, version, flags))
{
    if (!arguments_are_fine(name, address, version, flags))
        return CUDA_ERROR_INVALID_VALUE;
    call_note(call, "%s %d %llu", name, version, (unsigned long long)flags);
    return look_up(name, address, version, flags) == CU_GET_PROC_ADDRESS_SUCCESS
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_FOUND;
}

DRIVER_CALL(cuGetProcAddress_v2, NEEDS_NOTHING,
            (const char *name, void **address, int version, cuuint64_t flags,
             CUdriverProcAddressQueryResult *status),
            (name, address, version, flags, status))
{
    CUdriverProcAddressQueryResult found;
    if (!arguments_are_fine(name, address, version, flags))
        return CUDA_ERROR_INVALID_VALUE;
    call_note(call, "%s %d %llu", name, version, (unsigned long long)flags);
    found = look_up(name, address, version, flags);
    if (status != NULL)
        *status = found;
    return found == CU_GET_PROC_ADDRESS_SUCCESS || status != NULL ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_NOT_FOUND;
}
