/*
 * Pairs around kernels: by how much a pair lengthens a launch, and how much of the streams' overlap
 * survives. Both against the same without the pair, which "once" measures.
 */
#include "worker.h"

/* --- the launch alone, and with a pair around it ----------------------------------------------*/

enum { MAX_ROUNDS = 1000, MAX_BATCHES = 200 };

struct rounds {
    size_t bytes;
    CUstream stream;
    unsigned long count;
    double *next; /* where the next round's time goes */
};

static void time_launches(struct rounds *rounds)
{
    for (unsigned long i = 0; i < rounds->count; i++) {
        double start = now_ns();
        launch_nothing(rounds->stream);
        *rounds->next++ = now_ns() - start;
    }
    CU(cuStreamSynchronize(rounds->stream));
}

static void time_pairs(struct rounds *rounds)
{
    for (unsigned long i = 0; i < rounds->count; i++) {
        double start = now_ns();
        CUdeviceptr block = bench.allocator->allocate(rounds->bytes, rounds->stream);
        launch_nothing(rounds->stream);
        bench.allocator->release(block, rounds->stream);
        *rounds->next++ = now_ns() - start;
        if (block == 0)
            FAIL("%s has no memory left", bench.allocator->name);
    }
    CU(cuStreamSynchronize(rounds->stream));
}

static struct rounds new_rounds(const struct command *command, unsigned long batches)
{
    struct rounds rounds = {.bytes = number(command, "bytes", MIB),
                            .stream = shared_streams(1)[0],
                            .count = number(command, "rounds", 100)};
    rounds.next = rounds.count <= MAX_ROUNDS && batches <= MAX_BATCHES
                      ? calloc(rounds.count * batches, sizeof *rounds.next)
                      : NULL;
    if (rounds.next == NULL)
        FAIL("rounds must be at most %d, batches at most %d", MAX_ROUNDS, MAX_BATCHES);
    return rounds;
}

/* launch bytes= rounds= batches=: batches of launches alone and with a pair, in turn. */
void measure_launch(const struct command *command)
{
    unsigned long batches = number(command, "batches", 20);
    if (bench.allocator->of_the_cpu) {
        refuse("no kernels with %s", bench.allocator->name);
        return;
    }
    struct rounds alone = new_rounds(command, batches), paired = new_rounds(command, batches);
    double *alone_times = alone.next, *paired_times = paired.next;
    time_pairs(&paired);
    time_launches(&alone);
    paired.next = paired_times;
    alone.next = alone_times;
    for (unsigned long i = 0; i < batches; i++) {
        time_launches(&alone);
        time_pairs(&paired);
    }
    double launch = median_of(alone_times, alone.count * batches);
    double with_pair = median_of(paired_times, paired.count * batches);
    answer("\"launch_ns\": %.1f, \"with_pair_ns\": %.1f, \"added_ns\": %.1f", launch, with_pair,
           with_pair - launch);
    free(alone_times);
    free(paired_times);
}

/* --- a whole program's time -------------------------------------------------------------------*/

static struct {
    pthread_barrier_t at_start_and_end;
    unsigned long rounds, kernel_us;
} overlap;

static void allocate_work_free(CUstream stream)
{
    CUdeviceptr block = bench.allocator->allocate(MIB, stream);
    if (block == 0)
        FAIL("%s has no memory left", bench.allocator->name);
    launch_spin(stream, overlap.kernel_us * 1000);
    bench.allocator->release(block, stream);
}

static void *overlap_thread(void *argument)
{
    CUstream stream = argument;
    bench.allocator->thread_starts();
    bench.allocator->release(bench.allocator->allocate(MIB, stream), stream);
    pthread_barrier_wait(&overlap.at_start_and_end);
    for (unsigned long i = 0; i < overlap.rounds; i++)
        allocate_work_free(stream);
    CU(cuStreamSynchronize(stream));
    pthread_barrier_wait(&overlap.at_start_and_end);
    return NULL;
}

/* overlap threads= us= rounds=: each thread, on a stream of its own, allocates 1 MiB, launches a
 * kernel of so many microseconds and frees, over and over. */
void measure_overlap(const struct command *command)
{
    unsigned long threads = number(command, "threads", 4);
    pthread_t thread[MAX_THREADS];
    if (bench.allocator->of_the_cpu || threads < 1 || threads > MAX_THREADS) {
        refuse("not with %s, and threads must be 1 to %d", bench.allocator->name, MAX_THREADS);
        return;
    }
    CUstream *streams = shared_streams((unsigned int)threads);
    overlap.rounds = number(command, "rounds", 100);
    overlap.kernel_us = number(command, "us", 200);
    pthread_barrier_init(&overlap.at_start_and_end, NULL, (unsigned int)threads + 1);
    for (unsigned long i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, overlap_thread, streams[i]) != 0)
            FAIL("no thread could be started");
    pthread_barrier_wait(&overlap.at_start_and_end);
    double start = now_ns();
    pthread_barrier_wait(&overlap.at_start_and_end);
    double ns = now_ns() - start;
    for (unsigned long i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&overlap.at_start_and_end);
    answer("\"ms\": %.3f", ns * 1e-6);
}
