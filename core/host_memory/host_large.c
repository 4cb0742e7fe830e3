#include "host_large.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "core/base/cancellation.h"
#include "core/base/futex.h"
#include "core/base/numbers.h"
#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "core/housekeeper/own_thread.h"

/* The size of a huge page, and the alignment of every block made here. */
#define HUGE_PAGE (UINT64_C(2) << 20)

/* Each thread touches at least so many bytes. More than THREADS_MOST threads are not faster. */
#define BYTES_PER_THREAD (UINT64_C(8) << 20)
#define THREADS_MOST     8u

bool host_large_serves(const struct pool *pool, uint64_t bytes, unsigned flags)
{
    return pool->settings.host.large == HOST_LARGE_HUGE_PAGES && bytes >= HUGE_PAGE &&
           !(flags & CU_MEMHOSTALLOC_WRITECOMBINED) && pool->driver->cuMemHostRegister_v2 &&
           pool->driver->cuMemHostUnregister;
}

static uint64_t mapped_bytes(uint64_t bytes)
{
    return size_class_up(bytes, HUGE_PAGE);
}

/* Maps memory; NULL where there is no room. Children get no copy of it: after a fork the first
 * write by parent or child would move a page away from the GPU. It is not in core dumps, like the
 * driver's own pinned memory. */
static char *map(uint64_t bytes)
{
    uint64_t all = mapped_bytes(bytes) + HUGE_PAGE;
    char *begin = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED)
        return NULL;
    char *aligned = begin + (size_class_up((uintptr_t)begin, HUGE_PAGE) - (uintptr_t)begin);
    char *end = aligned + mapped_bytes(bytes);
    if (aligned > begin)
        munmap(begin, (size_t)(aligned - begin));
    if (begin + all > end)
        munmap(end, (size_t)(begin + all - end));
    madvise(aligned, mapped_bytes(bytes), MADV_HUGEPAGE);
    madvise(aligned, mapped_bytes(bytes), MADV_DONTFORK);
    madvise(aligned, mapped_bytes(bytes), MADV_DONTDUMP);
    return aligned;
}

/* ---- touching ---- */

/* What the threads of one call share. It exists until the last of them has counted itself. */
struct touching {
    _Atomic uint32_t over; /* number of threads that have touched their part. Release store by each
                              of them, acquire load where the caller waits */
};

struct part {
    char *begin;
    uint64_t bytes;
    struct touching *touching;
};

/* Touches every 4 KiB page, since huge pages may be switched off. */
static void touch(const struct part *part)
{
    for (uint64_t i = 0; i < part->bytes; i += 4096)
        *(volatile char *)(part->begin + i) = 0;
}

static void *touch_in_thread(void *argument)
{
    const struct part *part = argument;
    touch(part);
    /* The caller may return as soon as it sees the new count. futex_wake may then get the address
     * of a word that no longer exists. */
    _Atomic uint32_t *over = &part->touching->over;
    atomic_fetch_add_explicit(over, 1, memory_order_release);
    futex_wake(over);
    return NULL;
}

static unsigned count_processors(void)
{
    cpu_set_t processors;
    CPU_ZERO(&processors);
    return sched_getaffinity(0, sizeof processors, &processors) == 0
               ? (unsigned)CPU_COUNT(&processors)
               : 1;
}

/* The calling thread touches the last part, and whatever no thread could be made for. */
static void touch_all(struct pool *pool, char *begin, uint64_t bytes)
{
    unsigned most = (unsigned)smaller_of(THREADS_MOST, bytes / BYTES_PER_THREAD), made = 0;
    unsigned count = (unsigned)smaller_of(most, count_processors());
    uint64_t each = count ? size_class_up(bytes / count, HUGE_PAGE) : bytes;
    struct touching touching = {0};
    struct part parts[THREADS_MOST];
    for (; made + 1 < count && (made + 1) * each < bytes; made++) {
        parts[made] = (struct part){begin + made * each, each, &touching};
        if (!own_thread_make(pool, touch_in_thread, &parts[made]))
            break;
    }
    touch(&(struct part){begin + made * each, bytes - made * each, &touching});
    uint32_t over;
    while ((over = atomic_load_explicit(&touching.over, memory_order_acquire)) < made)
        futex_wait(&touching.over, over, UINT64_MAX);
}

/* ---- making, freeing ---- */

CUresult host_large_make(struct pool *pool, void **address, uint64_t bytes, unsigned flags)
{
    int error = errno;
    int cancellation = cancellation_off();
    char *memory = map(bytes);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (memory) {
        touch_all(pool, memory, mapped_bytes(bytes));
        result = pool->driver->cuMemHostRegister_v2(memory, mapped_bytes(bytes), flags);
        if (result == CUDA_SUCCESS)
            *address = memory;
        else
            munmap(memory, mapped_bytes(bytes));
    }
    cancellation_restore(cancellation);
    errno = error;
    return result;
}

CUresult host_large_give_back(struct pool *pool, void *address, uint64_t bytes)
{
    CUresult result = pool->driver->cuMemHostUnregister(address);
    /* NOT_REGISTERED: somebody has ended the registration past the pool. */
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
        munmap(address, mapped_bytes(bytes));
    return result;
}

void host_large_unmap(CUdeviceptr address, uint64_t bytes)
{
    munmap((void *)(uintptr_t)address, mapped_bytes(bytes));
}
