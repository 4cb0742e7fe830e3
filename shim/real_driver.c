/*
 * The process's driver: where it is, and which functions it has.
 *
 * Any thread calls this file, from constructors on. It takes no lock of its own. The dynamic linker
 * has one, under which a constructor may call us, so a lock held across dlopen or dlsym could
 * deadlock with it. Threads that race into the first call each resolve all addresses, and one
 * result is kept.
 */
#include "real_driver.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "core/base/glibc_compat.h"

#define DRIVER_SONAME "libcuda.so.1"
#define ADDRESS_SLOTS 512 /* a power of two, at least twice ENTRY_COUNT */
#define SLOT_IS_FREE  0xff

_Static_assert(ADDRESS_SLOTS >= 2 * ENTRY_COUNT, "the address map would fill up");
_Static_assert(ENTRY_COUNT < SLOT_IS_FREE, "a slot of the address map is one byte");

/* Everything that is known of the driver. One thread fills it and publishes it; after that it is
 * only read. */
struct resolution {
    struct real_driver real;
    struct driver core;
    bool core_has_all_it_requires;
    void *address[ENTRY_COUNT];        /* the driver's own addresses; NULL where it lacks the
                                          function */
    unsigned char slot[ADDRESS_SLOTS]; /* address -> entry, open addressing */
};

/* Release when a resolution is published, acquire when it is read. A published resolution is never
 * freed or replaced. */
static _Atomic(struct resolution *) published;

/* Stand-ins for missing functions. They are called as functions of other types, and look at no
 * argument. */
static CUresult function_is_missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult driver_is_missing(void)
{
    return CUDA_ERROR_NOT_INITIALIZED;
}

static const struct real_driver no_driver = {
#define ENTRY_POINT(name, parameters)                                                              \
    .name = (CUresult(*) parameters)(void (*)(void))driver_is_missing,
#include "entry_points.def"
#undef ENTRY_POINT
};

/* Bypasses the dlsym of other preloads: one whose functions call ours would otherwise call itself
 * through us. */
static void *find_in(void *source, const char *name)
{
    return source == RTLD_NEXT ? find_behind_us(name) : glibc_dlsym()(source, name);
}

static size_t first_slot_of(const void *address)
{
    uint64_t mixed = (uint64_t)(uintptr_t)address * 0x9e3779b97f4a7c15u;
    return (size_t)(mixed >> 48) % ADDRESS_SLOTS;
}

static int entry_at(const struct resolution *driver, const void *address)
{
    for (size_t slot = first_slot_of(address);; slot = (slot + 1) % ADDRESS_SLOTS) {
        unsigned char entry = driver->slot[slot];
        if (entry == SLOT_IS_FREE) {
            return ENTRY_NONE;
        }
        if (driver->address[entry] == address) {
            return entry;
        }
    }
}

/* Of two names with one address, the first one in the list keeps the address. */
static void enter_address(struct resolution *driver, enum entry entry)
{
    const void *address = driver->address[entry];
    if (address == NULL || entry_at(driver, address) != ENTRY_NONE) {
        return;
    }
    size_t slot = first_slot_of(address);
    while (driver->slot[slot] != SLOT_IS_FREE) {
        slot = (slot + 1) % ADDRESS_SLOTS;
    }
    driver->slot[slot] = (unsigned char)entry;
}

static void fill_real_driver(struct resolution *driver, void *source)
{
    void *address;
#define ENTRY_POINT(name, parameters)                                                              \
    address = find_in(source, #name);                                                              \
    driver->address[ENTRY_##name] = address;                                                       \
    driver->real.name = address != NULL                                                            \
                            ? (CUresult(*) parameters)address                                      \
                            : (CUresult(*) parameters)(void (*)(void))function_is_missing;
#include "entry_points.def"
#undef ENTRY_POINT
    for (int slot = 0; slot < ADDRESS_SLOTS; slot++) {
        driver->slot[slot] = SLOT_IS_FREE;
    }
    for (int entry = 0; entry < ENTRY_COUNT; entry++) {
        enter_address(driver, (enum entry)entry);
    }
}

static void fill_core_driver(struct resolution *driver, void *source)
{
    bool all = true;
#define OPTIONAL(name, parameters)                                                                 \
    driver->core.name = (CUresult(*) parameters)find_in(source, #name);
#define REQUIRED(name, parameters)                                                                 \
    OPTIONAL(name, parameters)                                                                     \
    all = all && driver->core.name != NULL;
    DRIVER_FUNCTIONS(REQUIRED, OPTIONAL)
#undef REQUIRED
#undef OPTIONAL
    driver->core_has_all_it_requires = all;
}

/* Makes this the process's driver, unless another thread was faster. Returns the resolution that is
 * published. */
static const struct resolution *publish(struct resolution *driver)
{
    struct resolution *faster = NULL;
    if (atomic_compare_exchange_strong_explicit(&published, &faster, driver, memory_order_acq_rel,
                                                memory_order_acquire)) {
        return driver;
    }
    free(driver);
    return faster;
}

static const struct resolution *resolve(void *source)
{
    struct resolution *driver = malloc(sizeof *driver);
    if (driver == NULL) {
        return NULL;
    }
    fill_real_driver(driver, source);
    fill_core_driver(driver, source);
    (void)dlerror(); /* a missing function is no error that the program asked for */
    return publish(driver);
}

/*
 * The driver, if the process has loaded one. It is kept loaded from then on, because its addresses
 * are kept. NULL is not remembered, since the driver may be loaded later.
 */
static const struct resolution *loaded_driver(void)
{
    const struct resolution *driver = atomic_load_explicit(&published, memory_order_acquire);
    if (driver != NULL) {
        return driver;
    }
    void *handle = dlopen(DRIVER_SONAME, RTLD_LAZY | RTLD_NOLOAD);
    return handle != NULL ? resolve(handle) : NULL;
}

/*
 * The driver of a program that has called one of our hooks. Without a libcuda.so.1, a driver of
 * another name may be linked with the program. Without us the program's calls would have reached
 * that one.
 */
static const struct resolution *called_driver(void)
{
    const struct resolution *driver = loaded_driver();
    if (driver == NULL && find_behind_us("cuInit") != NULL) {
        driver = resolve(RTLD_NEXT);
    }
    if (driver == NULL) {
        (void)dlerror(); /* the error is of our search, not of the program's */
    }
    return driver;
}

const struct real_driver *real_driver(void)
{
    const struct resolution *driver = called_driver();
    return driver != NULL ? &driver->real : &no_driver;
}

const struct driver *core_driver(void)
{
    const struct resolution *driver = called_driver();
    return driver != NULL && driver->core_has_all_it_requires ? &driver->core : NULL;
}

bool driver_has(enum entry entry)
{
    return driver_address(entry) != NULL;
}

void *driver_address(enum entry entry)
{
    const struct resolution *driver = loaded_driver();
    return driver != NULL ? driver->address[entry] : NULL;
}

int entry_of_address(const void *address)
{
    const struct resolution *driver = called_driver();
    return driver != NULL ? entry_at(driver, address) : ENTRY_NONE;
}
