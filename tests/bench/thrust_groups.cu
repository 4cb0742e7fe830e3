// A C++ program whose use of GPU memory is recorded (record.sh): four threads, each on a stream of
// its own, group and sum random data of changing size with Thrust, which takes temporary memory from
// cudaMalloc. No pool of any kind. Argument: ROUNDS.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

struct group_of {
    unsigned groups;
    __device__ unsigned operator()(unsigned i) const
    {
        return i * 2654435761u % groups;
    }
};

// Returns the sum over all groups, which is the sum of 0..count-1 modulo 2^32.
static unsigned group_and_sum(cudaStream_t stream, unsigned count, unsigned groups)
{
    auto policy = thrust::cuda::par.on(stream);
    thrust::device_vector<unsigned> values(count), keys(count), found(count), sums(count);
    thrust::sequence(policy, values.begin(), values.end());
    thrust::transform(policy, values.begin(), values.end(), keys.begin(), group_of{groups});
    thrust::sort_by_key(policy, keys.begin(), keys.end(), values.begin());
    auto end = thrust::reduce_by_key(policy, keys.begin(), keys.end(), values.begin(),
                                     found.begin(), sums.begin());
    return thrust::reduce(policy, sums.begin(), end.second);
}

static std::atomic<unsigned> wrong;

static void work(unsigned thread, unsigned round)
{
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (unsigned i = 0; i < 4; i++) {
        unsigned count = 20000u << (thread + i + round) % 5;
        unsigned expected = (unsigned)((unsigned long long)count * (count - 1) / 2);
        wrong += group_and_sum(stream, count, 100 + 50 * thread) != expected;
    }
    cudaStreamDestroy(stream);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 6;
    auto mark = (void (*)())dlsym(RTLD_DEFAULT, "bench_record_mark");
    cudaFree(nullptr);
    for (int round = 0; round < rounds; round++) {
        std::vector<std::thread> threads;
        if (mark && round > 0)
            mark();
        for (unsigned i = 0; i < 4; i++)
            threads.emplace_back(work, i, (unsigned)round);
        for (auto &thread : threads)
            thread.join();
    }
    if (mark)
        mark();
    printf("thrust_groups: %d rounds, %u wrong sums\n", rounds, wrong.load());
    return wrong == 0 ? 0 : 1;
}
