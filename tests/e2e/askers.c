/*
 * Processes on one simulated device of 1 GiB (SIMCUDA_SHARED), each with the pool: what one caches,
 * another asks for; and a group keeps to its limit.
 *
 * usage: askers CASE     exits 0, or says what is wrong and exits 1
 *        askers obey     a process of a case: it reads orders and answers each with a number
 *        askers rival    another: it allocates and frees at random until it is killed
 */
#include "obeying.h"

enum { THREADS = 16, RIVALS = 12 };

/* --- processes that obey -----------------------------------------------------------------------*/

static CUstream stream;
static struct kernels kernels;

static long long allocate_async(size_t mib)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocAsync(&address, mib * MIB, stream);
    return keep(result, address);
}

static long long give_all(size_t unused)
{
    (void)unused;
    while (held_count > 0)
        CU(cuMemFree_v2(held[--held_count]));
    return 0;
}

static long long give_all_async(size_t unused)
{
    (void)unused;
    while (held_count > 0)
        CU(cuMemFreeAsync(held[--held_count], stream));
    CU(cuStreamSynchronize(stream));
    return 0;
}

/* The code takes memory, too. */
static long long begin_kernel(size_t ms)
{
    load_kernels(&kernels);
    spin(&kernels, stream, ms * 1000000);
    return 0;
}

static long long available(size_t unused)
{
    size_t bytes, total;
    (void)unused;
    CU(cuMemGetInfo_v2(&bytes, &total));
    return (long long)(bytes / MIB);
}

static long long cached(size_t unused)
{
    struct cudapool_bytes bytes;
    (void)unused;
    CHECK(cudapool_get_bytes(0, &bytes) == 0);
    return (long long)(bytes.cached / MIB);
}

static void *allocate_in_thread(void *mib)
{
    CUdeviceptr address;
    CU(cuCtxSetCurrent(context));
    return cuMemAlloc_v2(&address, *(size_t *)mib * MIB) == CUDA_SUCCESS ? mib : NULL;
}

/* Threads that all run out of memory; how many of them get theirs. */
static long long allocate_in_threads(size_t mib)
{
    pthread_t threads[THREADS];
    long long met = 0;
    void *result;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, allocate_in_thread, &mib) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], &result) == 0);
        met += result != NULL;
    }
    return met;
}

static const struct known_order known_orders[] = {
    {"alloc", allocate},
    {"async", allocate_async},
    {"array", allocate_array},
    {"free", give_all},
    {"free_async", give_all_async},
    {"kernel", begin_kernel},
    {"available", available},
    {"cached", cached},
    {"threads", allocate_in_threads},
    {NULL, NULL},
};

static void get_ready(void)
{
    open_device();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void obey(void)
{
    get_ready();
    obey_orders(known_orders);
}

/* Holds blocks of 2 to 64 MiB, and frees them at random. Being refused is what it expects. */
static void rival(void)
{
    unsigned int random = (unsigned int)getpid();
    get_ready();
    for (;;) {
        size_t mib = 2 * (size_t)(1 + rand_r(&random) % 32);
        CUresult result = CUDA_SUCCESS;
        if (held_count < 8 && rand_r(&random) % 2 == 0)
            result = (CUresult)allocate(mib);
        else if (held_count > 0)
            CU(cuMemFree_v2(held[--held_count]));
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        if (rand_r(&random) % 8 == 0)
            usleep((useconds_t)(rand_r(&random) % 2000));
    }
}

/* --- and those who have them -------------------------------------------------------------------*/

static void must(const struct process *process, const char *name, size_t number)
{
    EQUAL(CUDA_SUCCESS, (unsigned)ask(process, name, number));
}

/* The order ends in no less and no more than so many milliseconds. */
static void takes(const struct process *process, const char *name, size_t number, CUresult result,
                  double least, double most)
{
    double began = now_ms();
    EQUAL(result, (unsigned)ask(process, name, number));
    double took = now_ms() - began;
    if (took < least || took > most)
        FAIL("%s takes %.1f ms, not %.0f to %.0f", name, took, least, most);
}

#define AT_ONCE 3000

/* Refused in no more than so many milliseconds, at least once in several tries: the machine may
 * have more to do. */
static void is_refused_within(const struct process *process, const char *name, size_t number,
                              double most)
{
    double least = 1e9;
    for (int i = 0; i < 8 && least > most; i++) {
        double began = now_ms();
        EQUAL(CUDA_ERROR_OUT_OF_MEMORY, (unsigned)ask(process, name, number));
        double took = now_ms() - began;
        least = took < least ? took : least;
    }
    if (least > most)
        FAIL("%s takes %.1f ms, not %.0f", name, least, most);
}

/* One that caches so many MiB. */
static struct process start_with(const char *take, const char *give, size_t mib)
{
    struct process process = start("obey");
    must(&process, take, mib);
    must(&process, give, 0);
    return process;
}

/* --- cases -------------------------------------------------------------------------------------*/

static void is_given(void)
{
    struct process one = start_with("alloc", "free", 680), other = start("obey");
    takes(&other, "alloc", 1000, CUDA_SUCCESS, 0, AT_ONCE);
    EQUAL(0, (unsigned)ask(&one, "cached", 0));
    kill_it(&one);
    kill_it(&other);
}

static void in_stream_order(void)
{
    struct process one = start_with("async", "free_async", 680), other = start("obey");
    takes(&other, "async", 1000, CUDA_SUCCESS, 0, AT_ONCE);
    kill_it(&one);
    kill_it(&other);
}

static void for_an_array(void)
{
    struct process one = start_with("alloc", "free", 680), other = start("obey");
    takes(&other, "array", 900, CUDA_SUCCESS, 0, AT_ONCE);
    kill_it(&one);
    kill_it(&other);
}

/* Who is stopped does not answer, which is waited for once. */
static void is_stopped(void)
{
    struct process one = start_with("alloc", "free", 680), other = start("obey");
    must(&other, "alloc", 2);
    kill(one.pid, SIGSTOP);
    CHECK(waitpid(one.pid, NULL, WUNTRACED) == one.pid);
    takes(&other, "alloc", 1000, CUDA_ERROR_OUT_OF_MEMORY, 90, AT_ONCE);
    is_refused_within(&other, "alloc", 1000, 90);
    kill(one.pid, SIGCONT);
    kill_it(&one);
    must(&other, "alloc", 1000);
    kill_it(&other);
}

static void is_killed(void)
{
    struct process one = start_with("alloc", "free", 680), other = start("obey");
    kill_it(&one);
    takes(&other, "alloc", 1020, CUDA_SUCCESS, 0, AT_ONCE);
    kill_it(&other);
}

static void is_too_little(void)
{
    struct process one = start_with("alloc", "free", 200), other = start("obey");
    must(&other, "alloc", 300);
    is_refused_within(&other, "alloc", 900, 90);
    EQUAL(200, (unsigned)ask(&one, "cached", 0));
    kill_it(&one);
    kill_it(&other);
}

static void behind_a_kernel(void)
{
    struct process one = start("obey"), other = start("obey");
    must(&one, "alloc", 100); /* so little that the free does not wait */
    takes(&one, "kernel", 2000, CUDA_SUCCESS, 0, 900);
    takes(&one, "free", 0, CUDA_SUCCESS, 0, 900);
    takes(&other, "alloc", 1000, CUDA_SUCCESS, 300, 6000);
    kill_it(&one);
    kill_it(&other);
}

/* An allocation has had the GPU wait for what was freed before it: what goes back after that is the
 * driver's when that work is over. */
static void behind_a_barrier(void)
{
    struct process one = start_with("alloc", "free", 600), other = start("obey");
    must(&one, "alloc", 50);
    takes(&one, "kernel", 2000, CUDA_SUCCESS, 0, 900);
    takes(&one, "free", 0, CUDA_SUCCESS, 0, 900);
    takes(&one, "alloc", 50, CUDA_SUCCESS, 0, 900);
    takes(&other, "alloc", 900, CUDA_SUCCESS, 300, 6000);
    kill_it(&one);
    kill_it(&other);
}

/* Each gets what the other caches, and both at the same time. */
static void of_each_other(void)
{
    struct process one = start("obey"), other = start("obey");
    for (size_t round = 0; round < 20; round++) {
        size_t mib = 480 + 2 * (round % 16);
        double began = now_ms();
        order(&one, "alloc", mib);
        order(&other, "alloc", mib);
        EQUAL(CUDA_SUCCESS, (unsigned)answer_of(&one));
        EQUAL(CUDA_SUCCESS, (unsigned)answer_of(&other));
        CHECK(now_ms() - began < 5 * AT_ONCE);
        must(&one, "free", 0);
        must(&other, "free", 0);
    }
    kill_it(&one);
    kill_it(&other);
}

static void by_many_threads(void)
{
    struct process one = start_with("alloc", "free", 1000), other = start("obey");
    EQUAL(THREADS, (unsigned)ask(&other, "threads", 60));
    kill_it(&one);
    kill_it(&other);
}

static void counts_as_free(void)
{
    struct process one = start_with("alloc", "free", 680), other = start("obey");
    EQUAL(1024, (unsigned)ask(&other, "available", 0));
    must(&one, "alloc", 680);
    for (int i = 0; i < 100 && ask(&other, "available", 0) != 344; i++)
        sleep_ms(20);
    EQUAL(344, (unsigned)ask(&other, "available", 0));
    kill_it(&one);
    kill_it(&other);
}

/* --- a group of 256 MiB ------------------------------------------------------------------------*/

static void of_a_group(void)
{
    struct process one = start("obey"), other = start("obey");
    must(&one, "alloc", 200);
    EQUAL(256 - 200, (unsigned)ask(&other, "available", 0));
    takes(&other, "alloc", 58, CUDA_ERROR_OUT_OF_MEMORY, 0, AT_ONCE);
    takes(&other, "async", 58, CUDA_ERROR_OUT_OF_MEMORY, 0, AT_ONCE);
    must(&other, "alloc", 56);
    must(&other, "free", 0);
    must(&one, "free", 0);
    takes(&other, "alloc", 256, CUDA_SUCCESS, 0, AT_ONCE);
    EQUAL(0, (unsigned)ask(&one, "cached", 0));
    takes(&one, "alloc", 2, CUDA_ERROR_OUT_OF_MEMORY, 0, AT_ONCE);
    kill_it(&other);
    takes(&one, "alloc", 256, CUDA_SUCCESS, 0, AT_ONCE);
    kill_it(&one);
}

/* Killed in the middle of whatever they do, they leave nothing behind; the script looks at what all
 * of them have held. */
static void of_a_group_of_rivals(void)
{
    struct process all[RIVALS];
    for (int i = 0; i < RIVALS; i++)
        all[i] = start("rival");
    for (int round = 0; round < 10; round++) {
        sleep_ms(200);
        for (int i = 0; i < RIVALS; i += 1 + round % 4) {
            kill_it(&all[i]);
            all[i] = start("rival");
        }
    }
    struct process witness = start("obey");
    ask(&witness, "available", 0);
    for (int i = 0; i < RIVALS; i++)
        kill_it(&all[i]);
    takes(&witness, "alloc", 256, CUDA_SUCCESS, 0, AT_ONCE);
    kill_it(&witness);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"obey", obey},
        {"rival", rival},
        {"is_given", is_given},
        {"in_stream_order", in_stream_order},
        {"for_an_array", for_an_array},
        {"is_stopped", is_stopped},
        {"is_killed", is_killed},
        {"is_too_little", is_too_little},
        {"behind_a_kernel", behind_a_kernel},
        {"behind_a_barrier", behind_a_barrier},
        {"of_each_other", of_each_other},
        {"by_many_threads", by_many_threads},
        {"counts_as_free", counts_as_free},
        {"of_a_group", of_a_group},
        {"of_a_group_of_rivals", of_a_group_of_rivals},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
