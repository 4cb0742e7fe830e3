// Blocks of cudaMallocAsync that several streams use, and streams that come and go: what a step
// costs. Arguments: CASE STEPS [BYTES [WORK]]; WORK is the length of each kernel's loop.
//   handed_back   a block goes from one stream to another behind an event, and the first waits for
//   the second ring          the same round four streams never_waited  the stream that allocates
//   never waits for those that free synchronised  an event after each free is synchronised with;
//   four streams take turns noted         one stream; each step records an event, has another
//   stream wait for it, and queries it requests      a stream for each block thousand      a
//   thousand streams take turns
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.cuh"

static size_t bytes = 1 << 20;
static unsigned work = 50;
static std::vector<cudaStream_t> streams;
static std::vector<cudaEvent_t> events;

__global__ void write(float *block, unsigned count, unsigned work)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = i;
    for (unsigned k = 0; k < work; k++)
        value = value * 1.0001f + 1;
    if (i < count)
        block[i] = value;
}

static cudaStream_t new_stream()
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void use(float *block, cudaStream_t stream)
{
    unsigned count = bytes / sizeof *block;
    write<<<(count + 255) / 256, 256, 0, stream>>>(block, count, work);
}

static float *take(cudaStream_t stream)
{
    float *block;
    CHECK(cudaMallocAsync(&block, bytes, stream));
    use(block, stream);
    return block;
}

static void put_behind(size_t later, size_t earlier)
{
    CHECK(cudaEventRecord(events[earlier], streams[earlier]));
    CHECK(cudaStreamWaitEvent(streams[later], events[earlier], 0));
}

static void hand_over(size_t from, size_t to)
{
    float *block = take(streams[from]);
    put_behind(to, from);
    use(block, streams[to]);
    CHECK(cudaFreeAsync(block, streams[to]));
}

static void handed_back(unsigned step)
{
    hand_over(0, 1);
    put_behind(0, 1);
    if (step % 100 == 99)
        CHECK(cudaStreamSynchronize(streams[1]));
}

static void ring(unsigned step)
{
    size_t from = step % 4, to = (step + 1) % 4;
    hand_over(from, to);
    put_behind(from, to);
    if (step % 100 == 99)
        CHECK(cudaStreamSynchronize(streams[to]));
}

static void never_waited(unsigned step)
{
    hand_over(0, 1 + step % 3);
    for (size_t i = 1; step % 100 == 99 && i < 4; i++)
        CHECK(cudaStreamSynchronize(streams[i]));
}

static void synchronised(unsigned step)
{
    size_t i = step % 4;
    CHECK(cudaFreeAsync(take(streams[i]), streams[i]));
    CHECK(cudaEventRecord(events[i], streams[i]));
    CHECK(cudaEventSynchronize(events[i]));
}

static void noted(unsigned step)
{
    CHECK(cudaFreeAsync(take(streams[0]), streams[0]));
    put_behind(1, 0);
    cudaEventQuery(events[0]);
    if (step % 100 == 99)
        CHECK(cudaStreamSynchronize(streams[0]));
}

static void requests(unsigned step)
{
    cudaStream_t stream = new_stream();
    CHECK(cudaFreeAsync(take(stream), stream));
    CHECK(cudaEventRecord(events[0], stream));
    if (step % 10 == 9)
        CHECK(cudaEventSynchronize(events[0]));
    CHECK(cudaStreamDestroy(stream));
}

static void thousand(unsigned step)
{
    cudaStream_t stream = streams[step % streams.size()];
    CHECK(cudaFreeAsync(take(stream), stream));
    if (step % streams.size() == streams.size() - 1)
        CHECK(cudaDeviceSynchronize());
}

static void repeat(void (*body)(unsigned), unsigned steps)
{
    for (unsigned step = 0; step < steps; step++)
        body(step);
    CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(unsigned);
    } cases[] = {{"handed_back", handed_back},   {"ring", ring},   {"never_waited", never_waited},
                 {"synchronised", synchronised}, {"noted", noted}, {"requests", requests},
                 {"thousand", thousand}};
    unsigned steps = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000;
    bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : bytes;
    work = argc > 4 ? strtoul(argv[4], NULL, 10) : work;
    for (auto &one : cases) {
        if (argc < 2 || strcmp(one.name, argv[1]) != 0)
            continue;
        for (unsigned i = 0; i < (one.body == thousand ? 1000 : 4); i++) {
            streams.push_back(new_stream());
            events.emplace_back();
            CHECK(cudaEventCreateWithFlags(&events.back(), cudaEventDisableTiming));
        }
        repeat(one.body, steps / 4);
        auto start = std::chrono::steady_clock::now();
        repeat(one.body, steps);
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        printf("between_streams: %.3f ms, %s\n", took.count(), one.name);
        return 0;
    }
    fprintf(stderr,
            "usage: between_streams handed_back|ring|never_waited|synchronised|noted|requests|"
            "thousand STEPS [BYTES [WORK]]\n");
    return 2;
}
