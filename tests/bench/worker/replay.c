/*
 * Replays what ../librecord.c has recorded, on the allocator of this process: the same allocations
 * and frees in the same order and threads, a kernel that does nothing for each launch, the same
 * waits.
 *
 * A trace is lines, after "cudapool-trace 1":
 *   # ...               a comment
 *   t THREAD            this thread does what follows
 *   a SLOT BYTES        an allocation; slots are numbers that are used again
 *   A SLOT BYTES STREAM the same, stream-ordered
 *   f SLOT              a free
 *   F SLOT STREAM       the same, stream-ordered
 *   l STREAM COUNT      launches, in a row; stream 0 is the NULL stream
 *   s STREAM, c         a wait for a stream, for the context
 *   m                   a mark: a step of the program begins
 * What comes before the first mark is replayed once; what lies between the first and the last (or
 * everything, where there are no two) over and over, and timed. What it leaves live is freed at its
 * end, untimed; what it frees but does not allocate stays.
 *
 * Threads take turns, as the order of the lines says: whoever's turn it is runs up to the next line
 * of another thread.
 */
#include <errno.h>

#include "worker.h"

enum { LONGEST_LINE = 256, MAX_REPLAY_THREADS = 64, MAX_PASSES = 100000 };

struct event {
    char kind;
    unsigned short stream;
    unsigned int slot; /* of a launch: how many */
    size_t bytes;
};

struct turn {
    unsigned int thread;
    size_t first, end; /* events */
};

struct trace {
    struct event *events;
    size_t count, room;
    struct turn *turns;
    size_t turn_count, turn_room;
    unsigned int threads, streams, slots;
    size_t first_mark, last_mark; /* turns: each mark begins one */
    unsigned int marks;
};

struct held {
    CUdeviceptr address; /* 0: none */
    CUstream stream;
};

static struct replay {
    struct trace trace;
    /* By slot. What this pass holds is of whoever's turn it is; what was live before the repeated
     * part stays until the end, whatever the part frees. */
    struct held *held, *kept;
    CUstream *streams;
    uint64_t pairs; /* allocations that the repeated part makes */
    /* The turn that is on, of all that were and will be. Release by the thread that ends one,
     * acquire by the one that begins the next. */
    _Alignas(128) _Atomic size_t turn;
    _Alignas(128) _Atomic bool over;
    size_t begin, end; /* turns of this pass */
    size_t base;       /* what `turn` was when it began */
    /* Passes begin and end here. */
    pthread_barrier_t barrier;
} replay;

/* --- reading ----------------------------------------------------------------------------------*/

static void *with_room(void *array, size_t count, size_t *room, size_t bytes)
{
    if (count < *room)
        return array;
    *room = *room > 0 ? 2 * *room : 1024;
    array = realloc(array, *room * bytes);
    if (array == NULL)
        FAIL("no memory");
    return array;
}

static void begin_turn(struct trace *trace, unsigned int thread)
{
    trace->turns =
        with_room(trace->turns, trace->turn_count, &trace->turn_room, sizeof *trace->turns);
    trace->turns[trace->turn_count++] =
        (struct turn){.thread = thread, .first = trace->count, .end = trace->count};
    if (thread >= trace->threads)
        trace->threads = thread + 1;
}

static void add_mark(struct trace *trace)
{
    begin_turn(trace, trace->turn_count > 0 ? trace->turns[trace->turn_count - 1].thread : 0);
    trace->last_mark = trace->turn_count - 1;
    if (trace->marks++ == 0)
        trace->first_mark = trace->last_mark;
}

static void add_event(struct trace *trace, struct event event)
{
    if (trace->turn_count == 0)
        begin_turn(trace, 0);
    trace->events = with_room(trace->events, trace->count, &trace->room, sizeof *trace->events);
    trace->events[trace->count++] = event;
    trace->turns[trace->turn_count - 1].end = trace->count;
    if (event.stream >= trace->streams)
        trace->streams = event.stream + 1u;
    if (strchr("aAfF", event.kind) != NULL && event.slot >= trace->slots)
        trace->slots = event.slot + 1;
}

/* False where the line is none of a trace's. */
static bool read_line(struct trace *trace, const char *line)
{
    unsigned int one = 0, stream = 0;
    size_t two = 0;
    int numbers = sscanf(line + 1, "%u %zu %u", &one, &two, &stream);
    struct event event = {.kind = line[0], .slot = one, .bytes = two};
    switch (line[0]) {
    case '#':
        return true;
    case 't':
        if (numbers == 1 && one < MAX_REPLAY_THREADS)
            begin_turn(trace, one);
        return numbers == 1 && one < MAX_REPLAY_THREADS;
    case 'm':
        add_mark(trace);
        return true;
    case 'A':
        event.stream = (unsigned short)stream;
        break;
    case 'F':
        event.stream = (unsigned short)two;
        break;
    case 'l':
        event =
            (struct event){.kind = 'l', .stream = (unsigned short)one, .slot = (unsigned int)two};
        break;
    case 's':
        event.stream = (unsigned short)one;
        break;
    default:
        break;
    }
    static const char kinds[] = "aAfFlsc";
    static const int needs[] = {2, 3, 1, 2, 2, 1, 0};
    const char *kind = strchr(kinds, line[0]);
    if (kind == NULL || *kind == '\0' || (numbers > 0 ? numbers : 0) < needs[kind - kinds] ||
        event.slot > 10000000 || event.stream >= MAX_STREAMS)
        return false;
    add_event(trace, event);
    return true;
}

/* False, and the command is answered, where the file is no trace. */
static bool read_trace(struct trace *trace, const char *path)
{
    char line[LONGEST_LINE];
    unsigned int number = 1;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        refuse("%s: %s", path, strerror(errno));
        return false;
    }
    bool good = fgets(line, sizeof line, file) != NULL && strcmp(line, "cudapool-trace 1\n") == 0;
    while (good && fgets(line, sizeof line, file) != NULL) {
        good = line[0] == '\n' || read_line(trace, line);
        number++;
    }
    fclose(file);
    if (!good)
        refuse("%s:%u: not a line of a trace", path, number);
    else if (trace->count == 0)
        refuse("%s: nothing happens in this trace", path);
    return good && trace->count > 0;
}

/* --- replaying --------------------------------------------------------------------------------*/

/* The stream that the thread launched on last: what a stream-ordered allocator is told. */
static __thread CUstream last_stream;

static void replay_event(const struct event *event)
{
    CUstream stream = replay.streams[event->stream];
    struct held *held = &replay.held[event->slot];
    switch (event->kind) {
    case 'a':
    case 'A':
        held->stream = event->kind == 'A' ? stream : last_stream;
        held->address = bench.allocator->allocate(event->bytes, held->stream);
        if (held->address == 0)
            FAIL("%s has no memory left", bench.allocator->name);
        break;
    case 'f':
    case 'F':
        if (held->address != 0)
            bench.allocator->release(held->address, held->stream);
        held->address = 0;
        break;
    case 'l':
        last_stream = stream;
        for (unsigned int i = 0; i < event->slot; i++)
            launch_nothing(stream);
        break;
    case 's':
        CU(cuStreamSynchronize(stream));
        break;
    default:
        CU(cuCtxSynchronize());
        break;
    }
}

static void take_turns(unsigned int thread)
{
    for (size_t i = replay.begin; i < replay.end; i++) {
        const struct turn *turn = &replay.trace.turns[i];
        size_t when = replay.base + (i - replay.begin);
        unsigned int spins = 0;
        if (turn->thread != thread)
            continue;
        while (atomic_load_explicit(&replay.turn, memory_order_acquire) != when)
            if (++spins % 1024 == 0)
                sched_yield();
        for (size_t event = turn->first; event < turn->end; event++)
            replay_event(&replay.trace.events[event]);
        atomic_store_explicit(&replay.turn, when + 1, memory_order_release);
    }
}

static void *replay_thread(void *argument)
{
    unsigned int thread = (unsigned int)(uintptr_t)argument;
    bench.allocator->thread_starts();
    for (;;) {
        pthread_barrier_wait(&replay.barrier);
        if (atomic_load_explicit(&replay.over, memory_order_relaxed))
            return NULL;
        take_turns(thread);
        pthread_barrier_wait(&replay.barrier);
    }
}

/* Those turns, by all threads; the nanoseconds it took, the GPU's work included. */
static double pass(size_t begin, size_t end)
{
    replay.begin = begin;
    replay.end = end;
    replay.base = atomic_load_explicit(&replay.turn, memory_order_relaxed);
    double start = now_ns();
    pthread_barrier_wait(&replay.barrier);
    pthread_barrier_wait(&replay.barrier);
    CU(cuCtxSynchronize());
    return now_ns() - start;
}

static void release_all(struct held *held)
{
    for (unsigned int i = 0; i < replay.trace.slots; i++) {
        if (held[i].address != 0)
            bench.allocator->release(held[i].address, held[i].stream);
        held[i].address = 0;
    }
}

static void keep_what_is_live(void)
{
    struct held *none = replay.kept;
    replay.kept = replay.held;
    replay.held = none;
}

static uint64_t allocations_between(size_t begin, size_t end)
{
    uint64_t allocations = 0;
    for (size_t i = begin; i < end; i++)
        for (size_t event = replay.trace.turns[i].first; event < replay.trace.turns[i].end; event++)
            allocations +=
                replay.trace.events[event].kind == 'a' || replay.trace.events[event].kind == 'A';
    return allocations;
}

/* The median time of passes for so long, and of so many at least, after as many that do not count.
 */
static double repeat(size_t begin, size_t end, double ms, unsigned int least, unsigned int *passes)
{
    static double times[MAX_PASSES];
    double until;
    *passes = 0;
    for (unsigned int i = 0; i < least; i++) {
        pass(begin, end);
        release_all(replay.held);
    }
    until = now_ns() + ms * 1e6;
    do {
        times[(*passes)++] = pass(begin, end);
        release_all(replay.held);
    } while (*passes < MAX_PASSES && (now_ns() < until || *passes < least));
    return median_of(times, *passes);
}

static void replay_all(const struct trace *trace, double ms, unsigned int least)
{
    bool marked = trace->marks > 1;
    size_t begin = marked ? trace->first_mark : 0;
    size_t end = marked ? trace->last_mark : trace->turn_count;
    uint64_t allocations = allocations_between(begin, end);
    unsigned int passes;
    pass(0, begin);
    keep_what_is_live();
    double ns = repeat(begin, end, ms, least, &passes);
    answer("\"pass_ns\": %.0f, \"passes\": %u, \"allocations\": %lu, \"ns_an_allocation\": %.1f",
           ns, passes, (unsigned long)allocations,
           ns / (double)(allocations > 0 ? allocations : 1));
}

static void make_streams(unsigned int count)
{
    replay.streams = calloc(count + 1, sizeof(CUstream));
    if (replay.streams == NULL)
        FAIL("no memory");
    if (count > 1)
        memcpy(replay.streams + 1, shared_streams(count - 1), (count - 1) * sizeof(CUstream));
}

static void run_threads(double ms, unsigned int least)
{
    pthread_t threads[MAX_REPLAY_THREADS];
    unsigned int count = replay.trace.threads;
    atomic_store_explicit(&replay.over, false, memory_order_relaxed);
    atomic_store_explicit(&replay.turn, 0, memory_order_relaxed);
    pthread_barrier_init(&replay.barrier, NULL, count + 1);
    for (unsigned int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, replay_thread, (void *)(uintptr_t)i) != 0)
            FAIL("no thread could be started");
    replay_all(&replay.trace, ms, least);
    atomic_store_explicit(&replay.over, true, memory_order_relaxed);
    pthread_barrier_wait(&replay.barrier);
    for (unsigned int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&replay.barrier);
}

/* replay file= ms= passes= (at least) */
void measure_replay(const struct command *command)
{
    if (bench.allocator->of_the_cpu) {
        refuse("no kernels with %s", bench.allocator->name);
        return;
    }
    memset(&replay.trace, 0, sizeof replay.trace);
    if (read_trace(&replay.trace, word(command, "file", ""))) {
        make_streams(replay.trace.streams);
        replay.held = calloc(replay.trace.slots + 1, sizeof *replay.held);
        replay.kept = calloc(replay.trace.slots + 1, sizeof *replay.kept);
        if (replay.held == NULL || replay.kept == NULL)
            FAIL("no memory");
        run_threads((double)number(command, "ms", 200), (unsigned int)number(command, "passes", 3));
        release_all(replay.kept);
        free(replay.held);
        free(replay.kept);
        free(replay.streams);
    }
    free(replay.trace.events);
    free(replay.trace.turns);
}
