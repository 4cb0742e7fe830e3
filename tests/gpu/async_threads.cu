// Threads that take memory by cudaMallocAsync, each on a stream of its own: every step allocates three
// arrays, computes with them, frees them, and now and then waits for the stream.
// Arguments: THREADS STEPS.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.cuh"

__global__ void set_to(unsigned *array, unsigned count, unsigned value)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        array[i] = value + i;
}

__global__ void add_up(const unsigned *a, const unsigned *b, unsigned *sum, unsigned count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        sum[i] = a[i] + b[i];
}

__global__ void count_wrong(const unsigned *sum, unsigned count, unsigned value,
                            unsigned long long *wrong)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && sum[i] != value + 2 * i)
        atomicAdd(wrong, 1ull);
}

static unsigned *array_of(unsigned count, cudaStream_t stream)
{
    unsigned *array;
    CHECK(cudaMallocAsync(&array, count * sizeof *array, stream));
    return array;
}

static void step(unsigned count, unsigned value, unsigned long long *wrong, cudaStream_t stream)
{
    unsigned blocks = (count + 255) / 256;
    unsigned *a = array_of(count, stream), *b = array_of(count, stream);
    set_to<<<blocks, 256, 0, stream>>>(a, count, value);
    set_to<<<blocks, 256, 0, stream>>>(b, count, 1);
    unsigned *sum = array_of(count, stream);
    add_up<<<blocks, 256, 0, stream>>>(a, b, sum, count);
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaFreeAsync(b, stream));
    count_wrong<<<blocks, 256, 0, stream>>>(sum, count, value + 1, wrong);
    CHECK(cudaFreeAsync(sum, stream));
}

static void run(unsigned index, unsigned steps, unsigned long long *wrong)
{
    cudaStream_t stream;
    unsigned random = index + 1;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned i = 0; i < steps; i++) {
        random = random * 1664525u + 1013904223u;
        step(1024 + (random >> 8) % (64 * 1024), i, wrong, stream);
        if (i % 16 == 15)
            CHECK(cudaStreamSynchronize(stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
    unsigned steps = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
    unsigned long long *wrong, wrong_here;
    std::vector<std::thread> running;
    CHECK(cudaMalloc(&wrong, sizeof *wrong));
    CHECK(cudaMemset(wrong, 0, sizeof *wrong));
    run(0, 100, wrong);
    auto start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < threads; i++)
        running.emplace_back(run, i, steps, wrong);
    for (std::thread &thread : running)
        thread.join();
    std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    CHECK(cudaMemcpy(&wrong_here, wrong, sizeof wrong_here, cudaMemcpyDeviceToHost));
    printf("async_threads: %.1f ms, %u threads, %llu wrong words\n", taken.count(), threads,
           wrong_here);
    return wrong_here != 0;
}
