/*
 * Threads that do one thing for a while, counted and timed. The main thread makes a crew, runs it
 * and reads what it has measured; the members touch nothing that another member writes, but what
 * their body shares on purpose.
 */
#include "worker.h"

static const size_t mixed_sizes[MAX_SIZES] = {1 << 10, 4 << 10, 64 << 10, 256 << 10,
                                              1 << 20, 3 << 20, 8 << 20,  24 << 20};
enum { SMALL_SIZES = 4, WARM_UP_MS = 3 };

/* "mixed": 1 KiB to 24 MiB; "small": those up to 256 KiB; or a number of bytes. */
static bool choose_sizes(struct crew *crew, const char *sizes)
{
    bool small = strcmp(sizes, "small") == 0;
    char *end;
    if (small || strcmp(sizes, "mixed") == 0) {
        crew->size_count = small ? SMALL_SIZES : MAX_SIZES;
        memcpy(crew->sizes, mixed_sizes, sizeof crew->sizes);
    } else {
        crew->size_count = 1;
        crew->sizes[0] = strtoul(sizes, &end, 10);
        if (crew->sizes[0] == 0 || *end != '\0')
            return false;
    }
    return crew->sizes[crew->size_count - 1] <= bench.allocator->largest;
}

struct crew *crew_for(const struct command *command)
{
    unsigned long threads = number(command, "threads", 1), streams = number(command, "streams", 1);
    const char *work = word(command, "work", "none"), *sizes = word(command, "sizes", "mixed");
    struct crew *crew;
    if (threads < 1 || threads > MAX_THREADS || streams < 1 || streams > MAX_STREAMS) {
        refuse("threads must be 1 to %d, streams 1 to %d", MAX_THREADS, MAX_STREAMS);
        return NULL;
    }
    crew = aligned_alloc(_Alignof(struct crew), sizeof *crew);
    if (crew == NULL)
        FAIL("no memory");
    memset(crew, 0, sizeof *crew);
    crew->threads = (unsigned int)threads;
    crew->ms = (double)number(command, "ms", 40);
    crew->launches = strcmp(work, "kernel") == 0;
    crew->warm_up = 2 * MAX_SIZES;
    if (!choose_sizes(crew, sizes) || (crew->launches && bench.allocator->of_the_cpu)) {
        refuse("sizes=%s work=%s: not with %s", sizes, work, bench.allocator->name);
        crew_free(crew);
        return NULL;
    }
    crew->stream_count = (unsigned int)streams;
    crew->streams = shared_streams(crew->stream_count);
    return crew;
}

void crew_free(struct crew *crew)
{
    free(crew);
}

/* Relaxed: nothing else is told with it. */
static bool is_stopped(struct crew *crew)
{
    return atomic_load_explicit(&crew->stop, memory_order_relaxed);
}

/* Bodies that count for nothing, until caches are full and lazily made things are made. */
static uint64_t warm_up(struct member *member)
{
    struct crew *crew = member->crew;
    double end = now_ns() + WARM_UP_MS * 1e6;
    uint64_t iteration = 0;
    while (iteration < crew->warm_up || now_ns() < end)
        crew->body(member, member->index + iteration++);
    return iteration;
}

static void work(struct member *member, uint64_t first)
{
    struct crew *crew = member->crew;
    uint64_t iteration = first;
    double start = now_ns();
    uint64_t done = 0;
    while (done == 0 && !is_stopped(crew))
        done += crew->body(member, member->index + iteration++);
    atomic_store_explicit(&member->has_done_something, true, memory_order_relaxed);
    while (!is_stopped(crew))
        done += crew->body(member, member->index + iteration++);
    member->seconds = (now_ns() - start) * 1e-9;
    member->done = done;
}

static void *run_member(void *argument)
{
    struct member *member = argument;
    struct crew *crew = member->crew;
    bench.allocator->thread_starts();
    if (crew->prepare != NULL)
        crew->prepare(member);
    uint64_t first = warm_up(member);
    atomic_fetch_add_explicit(&crew->ready, 1, memory_order_release);
    while (!atomic_load_explicit(&crew->go, memory_order_acquire))
        sched_yield();
    work(member, first);
    atomic_fetch_add_explicit(&crew->finished, 1, memory_order_release);
    if (crew->finish != NULL)
        crew->finish(member);
    return NULL;
}

static void sleep_ms(double ms)
{
    struct timespec pause = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000L};
    nanosleep(&pause, NULL);
}

/* Where the machine is busy with something else, the time is over before they have begun. */
static void wait_until_all_have_done_something(struct crew *crew)
{
    double end = now_ns() + 5e9;
    for (unsigned int i = 0; i < crew->threads; i++)
        while (!atomic_load_explicit(&crew->members[i].has_done_something, memory_order_relaxed) &&
               now_ns() < end)
            sleep_ms(1);
}

void crew_run(struct crew *crew)
{
    for (unsigned int i = 0; i < crew->threads; i++) {
        struct member *member = &crew->members[i];
        member->index = i;
        member->crew = crew;
        if (pthread_create(&member->thread, NULL, run_member, member) != 0)
            FAIL("no thread could be started");
    }
    while (atomic_load_explicit(&crew->ready, memory_order_acquire) < crew->threads)
        sched_yield();
    atomic_store_explicit(&crew->go, true, memory_order_release);
    sleep_ms(crew->ms);
    wait_until_all_have_done_something(crew);
    atomic_store_explicit(&crew->stop, true, memory_order_relaxed);
    for (unsigned int i = 0; i < crew->threads; i++)
        pthread_join(crew->members[i].thread, NULL);
    CU(cuCtxSynchronize());
}

double crew_rate(const struct crew *crew)
{
    double rate = 0;
    for (unsigned int i = 0; i < crew->threads; i++)
        if (crew->members[i].done > 0)
            rate += (double)crew->members[i].done / crew->members[i].seconds;
    return rate;
}
