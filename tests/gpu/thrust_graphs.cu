// Thrust in a capture (captures.allocate): keys are written, sorted and summed up on a stream that
// is captured in global mode, with par_nosync, which waits for nothing. The keys and sums come from
// cudaMalloc in the capture and go back in it, and so does what a sort and a scan take for
// themselves. What gives the host a number (reduce_by_key, unique) waits for it, and can't be
// captured. The graphs are replayed while another thread allocates, writes, verifies and frees; no
// word may be wrong, and the memory must be there again once the executables have gone.
//
// Arguments: KEYS REPLAYS. Exits 3 where the capture is refused, as it is without the setting.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <thread>

#include <unistd.h>

#include <thrust/device_ptr.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/transform.h>

#include "check.cuh"

enum { GRAPHS = 4, EAGER = 500, ROUND = 1000, REFUSED = 3, PAGE = 2 << 20 };

// A permutation of 0..count-1 where count is a power of two: sorted, key i is i.
struct scatter {
    unsigned count, salt;
    __device__ unsigned operator()(unsigned i) const
    {
        return (i * 2654435761u ^ salt) & (count - 1);
    }
};

__global__ void check_sorted(const unsigned *keys, const unsigned *sums, unsigned count,
                             unsigned long long *wrong)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && keys[i] != i)
        atomicAdd(wrong, 1ull);
    unsigned long long sum = (unsigned long long)i * (i + 1) / 2;
    if (i < count && sums[i] != (unsigned)sum)
        atomicAdd(wrong, 1ull);
}

__global__ void fill(unsigned *words, unsigned count, unsigned value)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = value;
}

__global__ void verify(const unsigned *words, unsigned count, unsigned value,
                       unsigned long long *wrong)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && words[i] != value)
        atomicAdd(wrong, 1ull);
}

static unsigned blocks_of(unsigned count)
{
    return (count + 255) / 256;
}

static double now_ms()
{
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// ---- what is captured ----

// A call that a capture may refuse.
static void may_be_refused(cudaError_t error)
{
    if (error != cudaSuccess)
        throw std::runtime_error(cudaGetErrorName(error));
}

static thrust::device_ptr<unsigned> allocate(unsigned count)
{
    unsigned *words;
    may_be_refused(cudaMalloc(&words, count * sizeof *words));
    return thrust::device_ptr<unsigned>(words);
}

static void sort_and_check(cudaStream_t stream, unsigned count, unsigned salt,
                           unsigned long long *wrong)
{
    auto here = thrust::cuda::par_nosync.on(stream);
    thrust::counting_iterator<unsigned> numbers(0);
    auto keys = allocate(count), sums = allocate(count);
    thrust::transform(here, numbers, numbers + count, keys, scatter{count, salt});
    thrust::sort(here, keys, keys + count);
    thrust::inclusive_scan(here, keys, keys + count, sums);
    check_sorted<<<blocks_of(count), 256, 0, stream>>>(keys.get(), sums.get(), count, wrong);
    may_be_refused(cudaGetLastError());
    may_be_refused(cudaFree(keys.get()));
    may_be_refused(cudaFree(sums.get()));
}

static cudaGraphExec_t capture(cudaStream_t stream, unsigned count, unsigned salt,
                               unsigned long long *wrong)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    sort_and_check(stream, count, salt, wrong);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return executable;
}

static void replay(cudaGraphExec_t *graphs, cudaStream_t stream, unsigned replays)
{
    for (unsigned i = 0; i < replays; i++) {
        CHECK(cudaGraphLaunch(graphs[i % GRAPHS], stream));
        if (i % ROUND == ROUND - 1)
            CHECK(cudaStreamSynchronize(stream));
    }
    CHECK(cudaStreamSynchronize(stream));
}

// ---- the other thread ----

static std::atomic<bool> stop;
static std::atomic<unsigned long> blocks_meanwhile;

// It waits for its stream at the end only: that would spoil a capture.
static void other_thread(unsigned count, unsigned long long *wrong)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned value = 1; !stop; value++) {
        unsigned *words, size = count << (value % 3);
        CHECK(cudaMalloc(&words, size * sizeof *words));
        fill<<<blocks_of(size), 256, 0, stream>>>(words, size, ~value);
        verify<<<blocks_of(size), 256, 0, stream>>>(words, size, ~value, wrong);
        CHECK(cudaFree(words));
        blocks_meanwhile++;
    }
    CHECK(cudaStreamSynchronize(stream));
}

// ---- memory comes back ----

static size_t free_memory()
{
    size_t left = 0, total, before;
    int unchanged = 0;
    // An executable's end is told by a thread of the driver's, a little later.
    do {
        before = left;
        CHECK(cudaDeviceSynchronize());
        usleep(20000);
        CHECK(cudaMemGetInfo(&left, &total));
        unchanged = left == before ? unchanged + 1 : 0;
    } while (unchanged < 5);
    return left;
}

int main(int argc, char **argv)
{
    unsigned count = argc > 1 ? strtoul(argv[1], nullptr, 0) : 1u << 19;
    unsigned replays = argc > 2 ? strtoul(argv[2], nullptr, 0) : 20000;
    cudaGraphExec_t graphs[GRAPHS];
    unsigned long long *wrong, found;
    cudaStream_t stream;
    if (count == 0 || (count & (count - 1)) != 0) {
        fprintf(stderr, "the number of keys must be a power of two\n");
        return 2;
    }
    CHECK(cudaMalloc(&wrong, sizeof *wrong));
    CHECK(cudaMemset(wrong, 0, sizeof *wrong));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // What is loaded at its first launch is not to be loaded in a capture.
    fill<<<1, 1, 0, stream>>>(nullptr, 0, 0);
    verify<<<1, 1, 0, stream>>>(nullptr, 0, 0, wrong);
    sort_and_check(stream, count, 0, wrong);
    CHECK(cudaStreamSynchronize(stream));
    double start = now_ms();
    for (unsigned i = 0; i < EAGER; i++)
        sort_and_check(stream, count, i, wrong);
    CHECK(cudaStreamSynchronize(stream));
    double eager = (now_ms() - start) / EAGER;
    // The driver keeps something for itself once there was a graph.
    try {
        graphs[0] = capture(stream, count, 0, wrong);
    } catch (const std::exception &error) {
        printf("thrust_graphs: 0.0 ms, refused: %s\n", error.what());
        fflush(stdout);
        _exit(REFUSED);
    }
    CHECK(cudaGraphLaunch(graphs[0], stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(graphs[0]));
    size_t before = free_memory();
    for (unsigned i = 0; i < GRAPHS / 2; i++)
        graphs[i] = capture(stream, count, i + 1, wrong);
    std::thread other(other_thread, count, wrong);
    for (unsigned i = GRAPHS / 2; i < GRAPHS; i++)
        graphs[i] = capture(stream, count, i + 1, wrong);
    start = now_ms();
    replay(graphs, stream, replays);
    double replayed = (now_ms() - start) / replays;
    stop = true;
    other.join();
    size_t during = free_memory();
    for (cudaGraphExec_t graph : graphs)
        CHECK(cudaGraphExecDestroy(graph));
    size_t after = free_memory();
    CHECK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    size_t kept = during < before ? before - during : 0, lost = after < before ? before - after : 0;
    printf(
        "thrust_graphs: %.4f ms a replay, %.4f eager, %u replays of %d graphs beside %lu blocks, "
        "%llu wrong words, %.1f MiB kept, %.1f lost\n",
        replayed, eager, replays, GRAPHS, blocks_meanwhile.load(), found, (double)kept / (1 << 20),
        (double)lost / (1 << 20));
    return found == 0 && kept > 0 && lost <= kept / 100 + PAGE ? 0 : 1;
}
