/*
 * Pairs of an allocation and its free: in one thread to many, across threads, in threads that live
 * for a moment, and while many blocks are live.
 */
#include "worker.h"

static bool pair(struct member *member, uint64_t iteration)
{
    one_pair(member->crew, iteration);
    return true;
}

/* The time of a pair in one of the lanes, in each of which one is made at a time. */
static void answer_pairs(double pairs_per_second, unsigned int lanes)
{
    if (pairs_per_second <= 0) {
        refuse("not one pair was made in the time");
        return;
    }
    answer("\"ns\": %.2f, \"pairs_per_second\": %.0f", lanes * 1e9 / pairs_per_second,
           pairs_per_second);
}

/* pairs threads= sizes=mixed|small|BYTES work=none|kernel streams= ms= */
void measure_pairs(const struct command *command)
{
    struct crew *crew = crew_for(command);
    if (crew == NULL)
        return;
    crew->body = pair;
    crew_run(crew);
    answer_pairs(crew_rate(crew), crew->threads);
    crew_free(crew);
}

/* --- freed by another thread ------------------------------------------------------------------*/

enum { RING = 256 };

/* From one producer to one consumer. A place is 0 while it is the producer's to fill. Release where
 * either hands it over, acquire where the other takes it. */
struct ring {
    _Alignas(128) uint64_t filled; /* the producer's */
    _Alignas(128) uint64_t taken;  /* the consumer's */
    _Alignas(128) _Atomic CUdeviceptr places[RING];
};

static struct ring *rings;

static CUstream stream_of(const struct crew *crew, unsigned int index)
{
    return crew->streams[index % crew->stream_count];
}

static bool produce(struct crew *crew, struct ring *ring, unsigned int index, uint64_t iteration)
{
    _Atomic CUdeviceptr *place = &ring->places[ring->filled % RING];
    if (atomic_load_explicit(place, memory_order_acquire) != 0)
        return false;
    CUdeviceptr block = bench.allocator->allocate(crew->sizes[iteration % crew->size_count],
                                                  stream_of(crew, index / 2));
    if (block == 0)
        FAIL("%s has no memory left", bench.allocator->name);
    atomic_store_explicit(place, block, memory_order_release);
    ring->filled++;
    return true;
}

static bool consume(struct crew *crew, struct ring *ring, unsigned int index)
{
    _Atomic CUdeviceptr *place = &ring->places[ring->taken % RING];
    CUdeviceptr block = atomic_load_explicit(place, memory_order_acquire);
    if (block == 0)
        return false;
    atomic_store_explicit(place, 0, memory_order_release);
    bench.allocator->release(block, stream_of(crew, index / 2));
    ring->taken++;
    return true;
}

/* A full ring, or an empty one, is a chance for who shares the processor. */
static bool produce_or_consume(struct member *member, uint64_t iteration)
{
    struct ring *ring = &rings[member->index / 2];
    bool done = member->index % 2 == 0 ? produce(member->crew, ring, member->index, iteration)
                                       : consume(member->crew, ring, member->index);
    if (!done)
        sched_yield();
    return done;
}

static void free_what_is_left(struct crew *crew)
{
    for (unsigned int i = 0; i < crew->threads / 2; i++)
        while (consume(crew, &rings[i], i * 2))
            continue;
}

/* cross threads= (an even number: each second one frees what the one before has allocated) sizes=
 * streams= ms= */
void measure_cross(const struct command *command)
{
    struct crew *crew = crew_for(command);
    if (crew == NULL)
        return;
    if (crew->threads % 2 != 0) {
        refuse("threads=%u: must be even", crew->threads);
        crew_free(crew);
        return;
    }
    rings = aligned_alloc(_Alignof(struct ring), crew->threads / 2 * sizeof *rings);
    if (rings == NULL)
        FAIL("no memory");
    memset(rings, 0, crew->threads / 2 * sizeof *rings);
    crew->body = produce_or_consume;
    crew_run(crew);
    free_what_is_left(crew);
    answer_pairs(crew_rate(crew) / 2, crew->threads / 2); /* two bodies to a pair */
    free(rings);
    crew_free(crew);
}

/* --- threads that live for a moment -----------------------------------------------------------*/

static unsigned int pairs_in_a_life;

static void *live_for_a_moment(void *argument)
{
    struct crew *crew = argument;
    bench.allocator->thread_starts();
    for (unsigned int i = 0; i < pairs_in_a_life; i++)
        one_pair(crew, i);
    return NULL;
}

static bool a_life(struct member *member, uint64_t iteration)
{
    pthread_t thread;
    (void)iteration;
    if (pthread_create(&thread, NULL, live_for_a_moment, member->crew) != 0)
        FAIL("no thread could be started");
    pthread_join(thread, NULL);
    return true;
}

/* short_threads threads= (so many at a time) pairs= (in each) sizes= work= streams= ms= */
void measure_short_threads(const struct command *command)
{
    struct crew *crew = crew_for(command);
    if (crew == NULL)
        return;
    pairs_in_a_life = (unsigned int)number(command, "pairs", 32);
    crew->body = a_life;
    crew->warm_up = 4;
    crew_run(crew);
    if (crew_rate(crew) <= 0)
        refuse("not one thread ended in the time");
    else
        answer("\"ns_a_thread\": %.0f, \"threads_per_second\": %.0f",
               crew->threads * 1e9 / crew_rate(crew), crew_rate(crew));
    crew_free(crew);
}

/* --- blocks that stay -------------------------------------------------------------------------*/

static CUdeviceptr *live;
static unsigned long live_count;

static void make_room_for(unsigned long count)
{
    live = realloc(live, (count > 0 ? count : 1) * sizeof *live);
    if (live == NULL)
        FAIL("no memory");
}

/* live blocks= bytes= limit_ms=: so many blocks are live from now on, or as many as the time
 * allows.
 */
void hold_live_blocks(const struct command *command)
{
    unsigned long wanted = number(command, "blocks", 0);
    size_t bytes = number(command, "bytes", 512);
    double start = now_ns(), limit = (double)number(command, "limit_ms", 1000) * 1e6;
    while (live_count > wanted)
        bench.allocator->release(live[--live_count], NULL);
    make_room_for(wanted);
    while (live_count < wanted && now_ns() - start < limit) {
        live[live_count] = bench.allocator->allocate(bytes, NULL);
        if (live[live_count] == 0)
            break;
        live_count++;
    }
    answer("\"blocks\": %lu, \"seconds\": %.3f", live_count, (now_ns() - start) * 1e-9);
}
