/*
 * The names that the simulated driver exports, and cuGetProcAddress.
 *
 * A name that no other file defines gets its function here: distinct from every other, and
 * answering CUDA_ERROR_NOT_SUPPORTED. A definition elsewhere takes the place of the weak one here.
 * Names of a later driver than the one simulated are hidden here, and with that in the whole
 * library.
 *
 * dlsym and cuGetProcAddress give the same address, since both give that of sim_NAME.
 */
#include <stdio.h>
#include <string.h>

#include "core/driver/cuda_abi.h"
#include "visibility.h"

typedef CUresult function(void);

/* The declarations of sim.h would give these names their real types. */
#define EXPORT(since, base, symbol)                                                                \
    __attribute__((weak, visibility("hidden"))) CUresult sim_##symbol(void);                       \
    __attribute__((weak, alias("sim_" #symbol))) SINCE_##since CUresult symbol(void);
#include "exports.def"
#undef EXPORT

enum entry {
#define EXPORT(since, base, symbol) ENTRY_##symbol,
#include "exports.def"
#undef EXPORT
    ENTRIES
};

__attribute__((visibility("hidden"))) CUresult sim_not_supported(enum entry entry);

#define EXPORT(since, base, symbol)                                                                \
    CUresult sim_##symbol(void)                                                                    \
    {                                                                                              \
        return sim_not_supported(ENTRY_##symbol);                                                  \
    }
#include "exports.def"
#undef EXPORT

struct entry_point {
    const char *symbol;
    const char *base;
    int since;
    _Bool per_thread;
    function *address;
};

__attribute__((visibility("hidden"))) extern const struct entry_point entry_points[ENTRIES];
const struct entry_point entry_points[ENTRIES] = {
#define EXPORT(version, name, exported) {#exported, #name, version, 0, sim_##exported},
#define EXPORT_PT(version, name, exported, pt_version, pt_exported)                                \
    {#exported, #name, version, 0, sim_##exported},                                                \
        {#pt_exported, #name, pt_version, 1, sim_##pt_exported},
#include "exports.def"
#undef EXPORT
#undef EXPORT_PT
};
