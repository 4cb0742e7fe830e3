/*
 * Several processes on one simulated device of 64 MiB (SIMCUDA_SHARED): what one holds is missing
 * to the others, and comes back whichever way it ends.
 *
 * usage: shared_devices CASE     exits 0, or says what is wrong and exits 1
 *        shared_devices obey     a process of a case: it reads orders and answers each with a
 *                                number
 *        shared_devices rival    another: it allocates and frees at random until it is killed
 */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "obeying.h"

#define DEVICE (64 * MIB)
enum { RIVALS = 8 };

/* --- processes that obey -----------------------------------------------------------------------*/

static long long allocate_async(size_t mib)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocAsync(&address, mib * MIB, NULL);
    return keep(result, address);
}

static long long allocate_managed(size_t mib)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocManaged(&address, mib * MIB, CU_MEM_ATTACH_GLOBAL);
    return keep(result, address);
}

static long long give(size_t unused)
{
    (void)unused;
    CUresult result = cuMemFree_v2(held[--held_count]);
    CU(cuCtxSynchronize());
    return result;
}

static long long available(size_t unused)
{
    size_t bytes, total;
    (void)unused;
    CU(cuMemGetInfo_v2(&bytes, &total));
    EQUAL(DEVICE, total);
    return (long long)(bytes / MIB);
}

/* So many bits of the device's number among all. */
static long long device_number(size_t device)
{
    CUuuid uuid;
    long long number = 0;
    CU(cuDeviceGetUuid_v2(&uuid, (CUdevice)device));
    for (unsigned int i = 0; i < 16; i++)
        number = (long long)((unsigned long long)number * 31) + uuid.bytes[i];
    return number & INT64_MAX;
}

/* A child that never touches CUDA, and lives for a while; its pid. */
static long long have_child(size_t unused)
{
    (void)unused;
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(20000);
        _exit(0);
    }
    return child;
}

/* In the child of a fork there are no devices. */
static long long child_asks(size_t unused)
{
    int status;
    size_t bytes;
    (void)unused;
    pid_t child = fork();
    if (child == 0)
        _exit(cuMemGetInfo_v2(&bytes, &bytes) == CUDA_SUCCESS ||
              (simcuda_managed_on_devices != NULL && simcuda_managed_on_devices() != 0));
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static long long become_another(size_t unused)
{
    (void)unused;
    execlp("sleep", "sleep", "20", NULL);
    return -1;
}

static long long end(size_t status)
{
    exit((int)status);
}

static long long end_at_once(size_t status)
{
    _exit((int)status);
}

static const struct known_order known_orders[] = {
    {"alloc", allocate},
    {"async", allocate_async},
    {"managed", allocate_managed},
    {"array", allocate_array},
    {"free", give},
    {"available", available},
    {"uuid", device_number},
    {"child", have_child},
    {"child_asks", child_asks},
    {"exec", become_another},
    {"exit", end},
    {"_exit", end_at_once},
    {NULL, NULL},
};

static void obey(void)
{
    open_device();
    obey_orders(known_orders);
}

/* --- and those who have them -------------------------------------------------------------------*/

static void expect_available(struct process *process, long long mib)
{
    EQUAL((unsigned long long)mib, (unsigned long long)ask(process, "available", 0));
}

/* For what comes back a moment later: while a process becomes another, say. */
static void wait_until_available(struct process *process, long long mib)
{
    for (int i = 0; i < 2000 && ask(process, "available", 0) != mib; i++)
        sleep_ms(1);
    expect_available(process, mib);
}

/* --- cases -------------------------------------------------------------------------------------*/

/* What one holds is missing to the other, to the last page, and is there once it is given back. */
static void held_by_another(void)
{
    struct process one = start("obey"), other = start("obey");
    EQUAL(0, (unsigned)ask(&one, "alloc", 40));
    expect_available(&other, 24);
    expect_available(&one, 24);
    EQUAL(CUDA_ERROR_OUT_OF_MEMORY, (unsigned)ask(&other, "alloc", 26));
    EQUAL(CUDA_ERROR_OUT_OF_MEMORY, (unsigned)ask(&other, "array", 26));
    EQUAL(0, (unsigned)ask(&other, "alloc", 22));
    EQUAL(0, (unsigned)ask(&other, "array", 2));
    EQUAL(CUDA_ERROR_OUT_OF_MEMORY, (unsigned)ask(&one, "alloc", 1));
    EQUAL(CUDA_ERROR_OUT_OF_MEMORY, (unsigned)ask(&one, "async", 1));
    expect_available(&one, 0);
    EQUAL(0, (unsigned)ask(&other, "free", 0));
    expect_available(&one, 22);
    EQUAL(0, (unsigned)ask(&one, "async", 22));
    expect_available(&other, 0);
    EQUAL(CUDA_ERROR_OUT_OF_MEMORY, (unsigned)ask(&other, "async", 1));
    EQUAL(0, (unsigned)ask(&one, "free", 0));
    expect_available(&other, 22);
    kill_it(&one);
    kill_it(&other);
}

/* It takes what others leave, and is given out whether or not they leave anything. */
static void managed(void)
{
    struct process one = start("obey"), other = start("obey");
    EQUAL(0, (unsigned)ask(&one, "alloc", 40));
    EQUAL(0, (unsigned)ask(&other, "managed", 32));
    expect_available(&other, 0);
    EQUAL(0, (unsigned)ask(&one, "alloc", 24));
    kill_it(&one);
    expect_available(&other, 32);
    kill_it(&other);
}

/* However a process ends, what it held is there as soon as somebody knows of its end. */
static void ends(void)
{
    static const char *const ways[] = {"exit", "_exit"};
    struct process witness = start("obey");
    for (int i = 0; i < 20; i++)
        for (unsigned int way = 0; way < 3; way++) {
            struct process one = start("obey");
            EQUAL(0, (unsigned)ask(&one, "alloc", 40));
            EQUAL(0, (unsigned)ask(&one, "alloc", 1));
            expect_available(&witness, 22);
            if (way < 2) {
                order(&one, ways[way], 0);
                wait_for_end(&one);
            } else {
                kill_it(&one);
            }
            expect_available(&witness, 64);
        }
    EQUAL(0, (unsigned)ask(&witness, "alloc", 64));
    kill_it(&witness);
}

/* A process that becomes another program has no device memory any more. */
static void executes(void)
{
    struct process one = start("obey"), witness = start("obey");
    EQUAL(0, (unsigned)ask(&one, "alloc", 40));
    expect_available(&witness, 24);
    order(&one, "exec", 0);
    wait_until_available(&witness, 64);
    CHECK(waitpid(one.pid, NULL, WNOHANG) == 0);
    kill_it(&one);
    kill_it(&witness);
}

/* A child has nothing, and keeps nothing of its parent's alive. */
static void forks(void)
{
    struct process one = start("obey"), witness = start("obey");
    EQUAL(0, (unsigned)ask(&one, "alloc", 40));
    EQUAL(0, (unsigned)ask(&one, "child_asks", 0));
    pid_t child = (pid_t)ask(&one, "child", 0);
    expect_available(&witness, 24);
    kill_it(&one);
    expect_available(&witness, 64);
    CHECK(kill(child, 0) == 0);
    kill(child, SIGKILL);
    kill_it(&witness);
}

static void uuids(void)
{
    const char *file = getenv("SIMCUDA_SHARED");
    struct process one = start("obey"), other = start("obey");
    long long number = ask(&one, "uuid", 0);
    EQUAL((unsigned long long)number, (unsigned long long)ask(&other, "uuid", 0));
    CHECK(ask(&one, "uuid", 1) != number && ask(&one, "uuid", 1) == ask(&other, "uuid", 1));
    kill_it(&one);
    kill_it(&other);
    CHECK(file != NULL);
    unsetenv("SIMCUDA_SHARED");
    one = start("obey");
    other = start("obey");
    CHECK(ask(&one, "uuid", 0) != number && ask(&one, "uuid", 0) != ask(&other, "uuid", 0));
    EQUAL(0, (unsigned)ask(&one, "alloc", 64));
    EQUAL(0, (unsigned)ask(&other, "alloc", 64));
    kill_it(&one);
    kill_it(&other);
}

/* --- rivals */

/* What all rivals know themselves to hold: counted after each has got it, and no longer before it
 * gives it back, so that it is never more than what they hold. And how far each of them has come.
 */
struct tally {
    _Atomic size_t mib, most;
    atomic_bool taken; /* what one of two rivals may have at a time */
    _Atomic unsigned int rounds[RIVALS];
};

static struct tally *open_tally(void)
{
    FILE *file = fopen(getenv("TALLY"), "a+");
    CHECK(file != NULL && ftruncate(fileno(file), sizeof(struct tally)) == 0);
    struct tally *tally =
        mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    CHECK(tally != MAP_FAILED);
    fclose(file);
    return tally;
}

static void hold_for_a_while(struct tally *tally, CUdeviceptr address, size_t mib, long us)
{
    size_t now = atomic_fetch_add(&tally->mib, mib) + mib, most = atomic_load(&tally->most);
    while (now > most && !atomic_compare_exchange_weak(&tally->most, &most, now))
        continue;
    if (us > 0)
        usleep((useconds_t)us);
    atomic_fetch_sub(&tally->mib, mib);
    CU(cuMemFree_v2(address));
}

static void rival(void)
{
    struct tally *tally = open_tally();
    unsigned int random = (unsigned int)getpid(), number = (unsigned int)atoi(getenv("RIVAL"));
    obey();
    for (;;) {
        CUdeviceptr address;
        size_t mib = 2 * (size_t)(1 + rand_r(&random) % 10);
        CUresult result = cuMemAlloc_v2(&address, mib * MIB);
        if (result == CUDA_SUCCESS)
            hold_for_a_while(tally, address, mib,
                             rand_r(&random) % 4 == 0 ? rand_r(&random) % 500 : 0);
        else
            EQUAL(CUDA_ERROR_OUT_OF_MEMORY, result);
        atomic_fetch_add(&tally->rounds[number], 1);
    }
}

/* Two that take turns with 40 MiB, and a third one with 24 MiB: none of them is ever refused. */
static void peaceful_rival(void)
{
    struct tally *tally = open_tally();
    int number = atoi(getenv("RIVAL"));
    size_t mib = number < 2 ? 40 : 24;
    obey();
    for (;;) {
        while (number < 2 && atomic_exchange(&tally->taken, true))
            sched_yield();
        hold_for_a_while(tally, take(mib * MIB), mib, 0);
        if (number < 2)
            atomic_store(&tally->taken, false);
        atomic_fetch_add(&tally->rounds[number], 1);
    }
}

/* It obeys until it has no more orders. */
static struct process start_rival(const char *what, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv("RIVAL", text, 1);
    struct process process = start(what);
    ask(&process, "available", 0);
    fclose(process.orders);
    process.orders = fopen("/dev/null", "w");
    return process;
}

/* Each of those rivals goes so many rounds more; on a busy machine that may take its time. */
static void expect_progress(struct tally *tally, int first, int end, unsigned int rounds)
{
    unsigned int before[RIVALS] = {0};
    for (int i = first; i < end; i++)
        before[i] = atomic_load(&tally->rounds[i]);
    for (int i = first; i < end; i++) {
        for (int ms = 0; ms < 15000 && atomic_load(&tally->rounds[i]) < before[i] + rounds; ms++)
            sleep_ms(1);
        CHECK(atomic_load(&tally->rounds[i]) >= before[i] + rounds);
    }
}

static void start_rivals(struct process *rivals)
{
    for (int i = 0; i < RIVALS; i++)
        rivals[i] = start_rival("rival", i);
}

static void room_for_all(void)
{
    struct process all[3];
    struct tally *tally = open_tally();
    for (int i = 0; i < 3; i++)
        all[i] = start_rival("peaceful_rival", i);
    expect_progress(tally, 0, 3, 1000);
    for (int i = 0; i < 3; i++)
        kill_it(&all[i]);
}

/* However they all go at it, they never hold more than there is, and all of it can be had. */
static void rivals(void)
{
    struct process all[RIVALS];
    struct tally *tally = open_tally();
    start_rivals(all);
    expect_progress(tally, 0, RIVALS, 2000);
    EQUAL(64, atomic_load(&tally->most));
    for (int i = 0; i < RIVALS; i++)
        kill_it(&all[i]);
    struct process witness = start("obey");
    EQUAL(0, (unsigned)ask(&witness, "alloc", 64));
    kill_it(&witness);
}

/* Some are stopped in the middle of whatever they do: the others go on. */
static void stop_some(struct process *all, struct tally *tally)
{
    for (int i = 0; i < RIVALS / 2; i++)
        kill(all[i].pid, SIGSTOP);
    expect_progress(tally, RIVALS / 2, RIVALS, 20);
    for (int i = 0; i < RIVALS / 2; i++)
        kill(all[i].pid, SIGCONT);
}

/* Killed in the middle of whatever they do, they leave nothing behind. */
static void killed_rivals(void)
{
    struct process all[RIVALS];
    struct tally *tally = open_tally();
    start_rivals(all);
    for (int round = 0; round < 20; round++) {
        stop_some(all, tally);
        for (int i = 0; i < RIVALS; i += 1 + round % 3) {
            kill_it(&all[i]);
            all[i] = start_rival("rival", i);
        }
    }
    for (int i = 0; i < RIVALS; i++)
        kill_it(&all[i]);
    struct process witness = start("obey");
    EQUAL(0, (unsigned)ask(&witness, "alloc", 64));
    kill_it(&witness);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"obey", obey},
        {"held_by_another", held_by_another},
        {"managed", managed},
        {"ends", ends},
        {"executes", executes},
        {"forks", forks},
        {"uuids", uuids},
        {"rival", rival},
        {"rivals", rivals},
        {"killed_rivals", killed_rivals},
        {"peaceful_rival", peaceful_rival},
        {"room_for_all", room_for_all},

        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
