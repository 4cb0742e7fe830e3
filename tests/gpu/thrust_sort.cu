// Thrust, with the runtime linked statically: a sort takes its temporary memory from cudaMalloc
// every time, and so does this program for its keys. Arguments: KEYS ITERATIONS.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <thrust/device_ptr.h>
#include <thrust/sort.h>

#include "check.cuh"

// A permutation of 0..count-1 where count is a power of two: sorted, key i is i.
__global__ void scatter(unsigned *keys, unsigned count, unsigned salt)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        keys[i] = (i * 2654435761u ^ salt) & (count - 1);
}

__global__ void count_misplaced(const unsigned *keys, unsigned count, unsigned long long *misplaced)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && keys[i] != i)
        atomicAdd(misplaced, 1ull);
}

static unsigned *sorted_keys(unsigned count, unsigned salt)
{
    unsigned *keys;
    CHECK(cudaMalloc(&keys, count * sizeof *keys));
    scatter<<<(count + 255) / 256, 256>>>(keys, count, salt);
    thrust::sort(thrust::device_ptr<unsigned>(keys), thrust::device_ptr<unsigned>(keys + count));
    return keys;
}

// Returns the key in the middle.
static unsigned sort_and_look(unsigned count, unsigned salt)
{
    unsigned middle, *keys = sorted_keys(count, salt);
    CHECK(cudaMemcpy(&middle, keys + count / 2, sizeof middle, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(keys));
    return middle;
}

// Returns how many keys are in the wrong place.
static unsigned long long sort_and_check(unsigned count, unsigned salt)
{
    unsigned *keys = sorted_keys(count, salt);
    unsigned long long *misplaced, wrong;
    CHECK(cudaMalloc(&misplaced, sizeof *misplaced));
    CHECK(cudaMemset(misplaced, 0, sizeof *misplaced));
    count_misplaced<<<(count + 255) / 256, 256>>>(keys, count, misplaced);
    CHECK(cudaMemcpy(&wrong, misplaced, sizeof wrong, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(misplaced));
    CHECK(cudaFree(keys));
    return wrong;
}

int main(int argc, char **argv)
{
    unsigned count = argc > 1 ? strtoul(argv[1], nullptr, 0) : 1u << 22;
    int iterations = argc > 2 ? atoi(argv[2]) : 200;
    if (count == 0 || (count & (count - 1)) != 0) {
        fprintf(stderr, "the number of keys must be a power of two\n");
        return 2;
    }
    for (int i = 0; i < 5; i++)
        sort_and_look(count, i);
    unsigned long long wrong = 0;
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < iterations; i++)
        wrong += sort_and_look(count, i) != count / 2;
    CHECK(cudaDeviceSynchronize());
    double elapsed =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    wrong += sort_and_check(count, iterations);
    printf("thrust_sort: %.4f ms each, %u keys, %d times, %llu misplaced\n", elapsed / iterations,
           count, iterations, wrong);
    return wrong == 0 ? 0 : 1;
}
