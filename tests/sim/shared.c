/* Devices that several processes share: shared.h says how. */
#define _GNU_SOURCE
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* All of it is read and written with sequential consistency, so that a sum over slots between two
 * looks at last_take has seen every take that came before. */
struct shared_device {
    _Atomic uint64_t last_take;          /* number (32 bits), pages (22), slot (10) */
    _Atomic uint64_t peak;               /* pages */
    _Atomic uint64_t held[SHARED_SLOTS]; /* pages (32 bits), number of the last take (32) */
};

struct header {
    char magic[16];
    uint64_t total, id;
};

struct shared_file {
    struct header header;
    _Atomic uint32_t claims;              /* slots given out so far, for owners that differ */
    _Atomic uint32_t used_slots;          /* beyond them nobody ever was */
    _Atomic uint64_t owner[SHARED_SLOTS]; /* pid (32 bits), claim (32); 0: nobody */
    struct shared_device devices[SHARED_DEVICES];
};

static const char magic[16] = "simcuda shared 1";

/* Of the file, behind the slots' bytes: locked while it is made. */
enum { MAKING = SHARED_SLOTS };

/* This process's view: written once, before any other call goes on, and in the child of a fork. */
static struct shared_file *file;
static char *file_name;
static unsigned int own_slot = SHARED_SLOTS; /* of who only looks on */

/* --- the words ---------------------------------------------------------------------------------*/

static uint32_t take_number(uint64_t take)
{
    return (uint32_t)(take >> 32);
}

static uint64_t take_pages(uint64_t take)
{
    return take >> 10 & ((1u << 22) - 1);
}

static unsigned int take_slot(uint64_t take)
{
    return take & (SHARED_SLOTS - 1);
}

static uint64_t make_take(uint32_t number, uint64_t pages, unsigned int slot)
{
    return (uint64_t)number << 32 | pages << 10 | slot;
}

static uint64_t held_pages(uint64_t held)
{
    return held >> 32;
}

static uint32_t held_number(uint64_t held)
{
    return (uint32_t)held;
}

static uint64_t make_held(uint64_t pages, uint32_t number)
{
    return pages << 32 | number;
}

/* --- who lives ---------------------------------------------------------------------------------*/

static bool lock_byte(int descriptor, int command, short type, unsigned int byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    while (fcntl(descriptor, command, &lock) != 0)
        if (errno != EINTR)
            return false;
    return command != F_OFD_GETLK || lock.l_type != F_UNLCK;
}

/* The same file, opened anew; -1 if it is not there any more, or no descriptor is. */
static int open_again(void)
{
    int descriptor = open(file_name, O_RDWR | O_CLOEXEC);
    uint64_t id = 0;
    if (descriptor < 0)
        return -1;
    if (pread(descriptor, &id, sizeof id, offsetof(struct header, id)) == sizeof id &&
        id == file->header.id)
        return descriptor;
    close(descriptor);
    return -1;
}

static bool is_locked(int descriptor, unsigned int slot)
{
    return lock_byte(descriptor, F_OFD_GETLK, F_WRLCK, slot);
}

/* It has begun to end, or has ended: its memory is gone, and its locks may be. They may also
 * outlast it for a moment, where another process was looking at it while it ended. */
static bool is_ending(uint64_t owner)
{
    char name[40], text[2] = "";
    int descriptor;
    ssize_t length;
    snprintf(name, sizeof name, "/proc/%u/statm", (unsigned int)(owner >> 32));
    descriptor = open(name, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return errno == ENOENT;
    length = read(descriptor, text, sizeof text);
    close(descriptor);
    return length == sizeof text && text[0] == '0' && text[1] == ' ';
}

/* --- taking and giving -------------------------------------------------------------------------*/

/* The last take, which its slot includes now. */
static uint64_t complete_last_take(struct shared_device *device)
{
    for (;;) {
        uint64_t take = atomic_load(&device->last_take);
        _Atomic uint64_t *slot = &device->held[take_slot(take)];
        uint64_t held = atomic_load(slot);
        if ((int32_t)(take_number(take) - held_number(held)) <= 0)
            return take;
        /* Whoever else does it changes the number, so that it is done once. */
        if (atomic_compare_exchange_strong(
                slot, &held, make_held(held_pages(held) + take_pages(take), take_number(take))))
            return take;
    }
}

static void lower(_Atomic uint64_t *slot, uint64_t pages)
{
    uint64_t held = atomic_load(slot);
    while (!atomic_compare_exchange_weak(slot, &held,
                                         make_held(held_pages(held) - pages, held_number(held))))
        continue;
}

/* For who has locked the slot's byte. */
static void empty(unsigned int slot)
{
    for (unsigned int i = 0; i < SHARED_DEVICES; i++) {
        struct shared_device *device = &file->devices[i];
        complete_last_take(device);
        lower(&device->held[slot], held_pages(atomic_load(&device->held[slot])));
    }
    atomic_store(&file->owner[slot], 0);
}

/* What processes held that have ended comes back. */
static void sweep(void)
{
    int descriptor = open_again();
    unsigned int slots = atomic_load(&file->used_slots);
    if (descriptor < 0)
        return;
    for (unsigned int i = 0; i < slots; i++)
        if (i != own_slot && atomic_load(&file->owner[i]) != 0 &&
            lock_byte(descriptor, F_OFD_SETLK, F_WRLCK, i)) {
            empty(i);
            lock_byte(descriptor, F_OFD_SETLK, F_UNLCK, i);
        }
    close(descriptor);
}

/* All slots at one moment. One for all calls, of which one goes on at a time (sim.lock): a
 * program's thread may have too little stack for it. */
static struct sum {
    uint64_t take, pages;
    unsigned int slots;
    uint64_t owner[SHARED_SLOTS], held[SHARED_SLOTS];
} sum;

/* Without takes in between. Memory may be given back meanwhile: the sum is no less than what is
 * held after it, and no more than what was held before. */
static void add_up(struct shared_device *device)
{
    do {
        sum.take = complete_last_take(device);
        sum.pages = 0;
        sum.slots = atomic_load(&file->used_slots);
        for (unsigned int i = 0; i < sum.slots; i++) {
            sum.owner[i] = atomic_load(&file->owner[i]);
            sum.held[i] = held_pages(atomic_load(&device->held[i]));
            sum.pages += sum.held[i];
        }
    } while (atomic_load(&device->last_take) != sum.take);
}

/* Without what processes held that are gone by now or about to be: others may know before us. */
static uint64_t of_the_living(void)
{
    int descriptor = open_again();
    uint64_t pages = sum.pages;
    for (unsigned int i = 0; descriptor >= 0 && i < sum.slots; i++)
        if (i != own_slot && sum.held[i] > 0 &&
            (atomic_load(&file->owner[i]) != sum.owner[i] || !is_locked(descriptor, i) ||
             is_ending(sum.owner[i])))
            pages -= sum.held[i];
    if (descriptor >= 0)
        close(descriptor);
    return pages;
}

static void note_peak(struct shared_device *device, uint64_t taken)
{
    uint64_t peak = atomic_load(&device->peak), pages;
    if (sum.pages + taken <= peak)
        return;
    pages = of_the_living() + taken;
    while (pages > peak && !atomic_compare_exchange_weak(&device->peak, &peak, pages))
        continue;
}

bool shared_take(unsigned int ordinal, uint64_t bytes)
{
    struct shared_device *device = &file->devices[ordinal];
    uint64_t pages = bytes / SHARED_PAGE, total = file->header.total / SHARED_PAGE;
    bool swept = false;
    for (;;) {
        add_up(device);
        if (sum.pages + pages <= total) {
            uint64_t take = make_take(take_number(sum.take) + 1, pages, own_slot);
            uint64_t before = sum.take;
            if (atomic_compare_exchange_strong(&device->last_take, &before, take))
                break;
        } else if (swept) {
            return false;
        } else {
            sweep();
            swept = true;
        }
    }
    complete_last_take(device);
    note_peak(device, pages);
    return true;
}

void shared_give(unsigned int ordinal, uint64_t bytes)
{
    lower(&file->devices[ordinal].held[own_slot], bytes / SHARED_PAGE);
}

struct shared_bytes shared_look(unsigned int ordinal)
{
    struct shared_device *device = &file->devices[ordinal];
    sweep();
    add_up(device);
    return (struct shared_bytes){sum.pages * SHARED_PAGE, file->header.total,
                                 atomic_load(&device->peak) * SHARED_PAGE};
}

bool shared_slot(unsigned int slot, unsigned int ordinal, pid_t *pid, uint64_t *bytes)
{
    uint64_t owner = atomic_load(&file->owner[slot]);
    *pid = (pid_t)(owner >> 32);
    *bytes = held_pages(atomic_load(&file->devices[ordinal].held[slot])) * SHARED_PAGE;
    return owner != 0;
}

/* --- opening -----------------------------------------------------------------------------------*/

static bool complain(const char *path, const char *what)
{
    fprintf(stderr, "simulated CUDA driver: SIMCUDA_SHARED=%s: %s\n", path, what);
    return false;
}

/* Whether the file is empty, or was left by who did not come to its end in make. */
static bool is_unmade(int descriptor)
{
    struct header header;
    struct stat status;
    return fstat(descriptor, &status) == 0 &&
           (status.st_size == 0 || (status.st_size == sizeof header &&
                                    pread(descriptor, &header, sizeof header, 0) == sizeof header &&
                                    memcmp(header.magic, magic, sizeof magic) == 0));
}

/* The file has its size last: until then, whoever comes makes it again. */
static bool make(int descriptor, uint64_t total)
{
    struct header header = {.total = total};
    bool made;
    memcpy(header.magic, magic, sizeof magic);
    if (getrandom(&header.id, sizeof header.id, 0) != sizeof header.id ||
        !lock_byte(descriptor, F_OFD_SETLKW, F_WRLCK, MAKING))
        return false;
    made =
        !is_unmade(descriptor) || (pwrite(descriptor, &header, sizeof header, 0) == sizeof header &&
                                   ftruncate(descriptor, sizeof(struct shared_file)) == 0);
    lock_byte(descriptor, F_OFD_SETLK, F_UNLCK, MAKING);
    return made;
}

/* Maps what the descriptor is of. The child of a fork must not keep the lock. */
static bool map_file(int descriptor, const char *path)
{
    struct header header;
    struct stat status;
    if (fstat(descriptor, &status) != 0 || status.st_size != sizeof *file ||
        pread(descriptor, &header, sizeof header, 0) != sizeof header ||
        memcmp(header.magic, magic, sizeof magic) != 0)
        return complain(path, "an empty file is allowed, or one that such processes share");
    file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (file == MAP_FAILED)
        file = NULL;
    if (file == NULL || madvise(file, sizeof *file, MADV_DONTFORK) != 0)
        return complain(path, "it cannot be mapped");
    return true;
}

static bool claim(int descriptor, const char *path)
{
    for (unsigned int i = 0; i < SHARED_SLOTS; i++) {
        uint32_t used = atomic_load(&file->used_slots);
        if (!lock_byte(descriptor, F_OFD_SETLK, F_WRLCK, i))
            continue;
        empty(i);
        while (used <= i && !atomic_compare_exchange_weak(&file->used_slots, &used, i + 1))
            continue;
        own_slot = i;
        atomic_store(&file->owner[i],
                     (uint64_t)getpid() << 32 | (atomic_fetch_add(&file->claims, 1) + 1));
        return true;
    }
    return complain(path, "more than 1024 processes share it");
}

/* Some file systems give a lock up with the descriptor. */
static bool keeps_locks(const char *path)
{
    int descriptor = open_again();
    bool kept = descriptor >= 0 && is_locked(descriptor, own_slot);
    if (descriptor >= 0)
        close(descriptor);
    return kept || complain(path, "its file system keeps no locks for mappings: /dev/shm does");
}

static bool open_file(const char *path, int flags, uint64_t total)
{
    int descriptor = open(path, O_RDWR | O_CLOEXEC | flags, 0666);
    bool opened;
    if (descriptor < 0 || (file_name = realpath(path, NULL)) == NULL)
        return complain(path, "a file that can be written is allowed");
    opened = (flags == 0 || make(descriptor, total) || complain(path, "it cannot be made")) &&
             map_file(descriptor, path) && (flags == 0 || claim(descriptor, path));
    close(descriptor);
    return opened;
}

bool shared_join(const char *path, uint64_t total)
{
    if (!open_file(path, O_CREAT, total) || !keeps_locks(path))
        return false;
    if (file->header.total == total)
        return true;
    return complain(path, "other processes have devices of another size (SIMCUDA_MEMORY)");
}

bool shared_visit(const char *path)
{
    return open_file(path, 0, 0);
}

bool shared_on(void)
{
    return file != NULL;
}

void shared_forget(void)
{
    file = NULL;
}

uint64_t shared_id(void)
{
    return file->header.id;
}
