#include "cache_threads.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache_set.h"
#include "core/base/lines.h"
#include "core/contexts/pool_state.h"

static void end_of_thread(void *unused);

/* The calling thread's own caches. */
static _Thread_local struct {
    struct thread_cache *all; /* in all heaps */
    bool told;                /* end_of_thread will be called */
    bool over;                /* end_of_thread has been called */
} caches_of_thread;

/* One key serves all pools of the process, since keys are few. The thread that makes the first pool
 * makes the key. */
static pthread_key_t end_key;

static bool end_key_is_made;

void thread_caches_prepare(struct pool *pool, const struct thread_functions *threads)
{
    pool->expedited = thread_caches_prepare_closing();
    pool->process = getpid();
    if (threads->set_specific && threads->key_create && !end_key_is_made)
        end_key_is_made = threads->key_create(&end_key, end_of_thread) == 0;
    pool->thread_functions = *threads;
    if (!end_key_is_made)
        pool->thread_functions.set_specific = NULL;
}

struct thread_cache *thread_cache_known(const struct heap *heap)
{
    struct thread_cache *cache = caches_of_thread.all;
    while (cache && cache->heap != heap)
        cache = cache->next_of_thread;
    return cache;
}

/* Puts a cache on the spare list, because its thread ends or has ended. Another thread may then
 * take it over. */
static void retire_cache(struct thread_cache *cache)
{
    struct heap *heap = cache->heap;
    if (cache->awake)
        thread_cache_put_to_sleep(cache);
    cache->thread = 0;
    cache->next_spare = heap->caches.spare;
    heap->caches.spare = cache;
    heap->caches.owned--;
}

/* Whether the thread was inside a cache, or held a lock, when a signal handler ended it. Its
 * changes may then be incomplete, and the lock is never released. */
static bool is_interrupted(const struct thread_cache *caches)
{
    bool inside = thread_state.context_locks != 0;
    for (const struct thread_cache *c = caches; c; c = c->next_of_thread)
        inside = inside || atomic_load_explicit(&c->inside, memory_order_relaxed);
    return inside;
}

/* Whether this process is a child of the pool's process. The child has this thread and the memory,
 * but another thread may have held the lock at the fork. Not every way to fork runs the handlers
 * that set `forgotten`, so the process id is compared as well. */
static bool is_the_parents(const struct pool *pool)
{
    return atomic_load_explicit(&pool->forgotten, memory_order_relaxed) ||
           pool->process != getpid();
}

/* Called once, as the thread ends. Later allocations and frees of the thread take the slow path. */
static void end_of_thread(void *unused)
{
    struct thread_cache *cache = caches_of_thread.all;
    (void)unused;
    caches_of_thread.over = true;
    caches_of_thread.all = NULL;
    thread_state.device_cache = &no_thread_cache;
    if (is_interrupted(cache))
        return;
    for (struct thread_cache *next; cache; cache = next) {
        next = cache->next_of_thread;
        if (is_the_parents(cache->pool))
            continue;
        heap_lock(cache->heap);
        retire_cache(cache);
        heap_unlock(cache->heap);
    }
}

void thread_cache_prepare_thread(const struct pool *pool)
{
    if (!caches_of_thread.told && !caches_of_thread.over && pool->thread_functions.set_specific)
        caches_of_thread.told =
            pool->thread_functions.set_specific(end_key, &caches_of_thread) == 0;
}

/* Returns the kernel's id of the calling thread. Returns 0 for a thread of another process that
 * shares memory with the pool's process (vfork, clone). The kernel would not say whether that
 * thread lives. */
static pid_t number_of_this_thread(const struct pool *pool)
{
    return getpid() == pool->process ? (pid_t)syscall(SYS_gettid) : 0;
}

static bool has_ended(const struct pool *pool, pid_t thread)
{
    return thread && syscall(SYS_tgkill, pool->process, thread, 0) != 0 && errno == ESRCH;
}

/* Finds caches of threads that have ended without end_of_thread. It checks one old cache whenever a
 * new one would be made. So at most about every second cache is without a thread. */
static void look_for_an_end(struct heap *heap)
{
    struct thread_cache *cache =
        heap->caches.checked_for_end ? heap->caches.checked_for_end->next : NULL;
    if (!cache)
        cache = atomic_load_explicit(&heap->caches.all, memory_order_relaxed);
    heap->caches.checked_for_end = cache;
    int error = errno; /* the program's errno */
    if (cache && has_ended(cache->pool, cache->thread))
        retire_cache(cache);
    errno = error;
}

static struct thread_cache *take_spare(struct heap *heap)
{
    if (!heap->caches.spare)
        look_for_an_end(heap);
    struct thread_cache *cache = heap->caches.spare;
    if (cache)
        heap->caches.spare = cache->next_spare;
    return cache;
}

static struct thread_cache *add_cache(struct pool *pool, struct heap *heap)
{
    struct thread_cache *cache = allocate_in_whole_lines(sizeof *cache);
    if (!cache)
        return NULL;
    cache->pool = pool;
    cache->heap = heap;
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        atomic_init(&cache->bins[i], &cache_no_bin);
        cache->by_request[i] = &cache_no_bin;
    }
    cache->next = atomic_load_explicit(&heap->caches.all, memory_order_relaxed);
    atomic_store_explicit(&heap->caches.all, cache, memory_order_relaxed);
    return cache;
}

static struct thread_cache *make_cache(struct pool *pool, struct heap *heap)
{
    struct thread_state *thread = &thread_state;
    if (caches_of_thread.over || !caches_of_thread.told)
        return NULL;
    struct thread_cache *cache = take_spare(heap);
    if (!cache)
        cache = add_cache(pool, heap);
    if (!cache)
        return NULL;
    heap->caches.owned++;
    cache->thread = number_of_this_thread(pool);
    atomic_store_explicit(&cache->slot, (uint8_t)(thread_id(pool) % HEAP_SLOTS),
                          memory_order_relaxed);
    cache->next_of_thread = caches_of_thread.all;
    caches_of_thread.all = cache;
    if (thread->context && heap_of(thread->context) == heap)
        thread->device_cache = cache;
    return cache;
}

struct thread_cache *thread_cache_of_this_thread(struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct thread_cache *cache = thread_cache_known(heap);
    cache = cache ? cache : make_cache(pool, heap);
    if (cache && !cache->awake)
        thread_cache_wake(cache);
    return cache;
}
