/*
 * A program that brings an allocator of its own: malloc, calloc, realloc and free, and none of
 * their relatives, as many do. What aligned_alloc gives it is libc's, and this free knows none of
 * that: it ends the process then, with status 3.
 *
 * usage: own_malloc [JANSSON]        its threads use this library until the process is gone
 */
#include "pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    return 0; /* whose malloc it is */
}
#else

extern void *__libc_calloc(size_t count, size_t bytes);
extern void __libc_free(void *memory);

#define MARK  UINT64_C(0x6f776e6d616c6c6f)

/* In front of each of its blocks; as large as the alignment that malloc promises. */
struct head {
    uint64_t mark;
    size_t bytes;
};

void *calloc(size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all) ||
        __builtin_add_overflow(all, sizeof(struct head), &all))
        return NULL;
    struct head *head = __libc_calloc(1, all);
    if (!head)
        return NULL;
    *head = (struct head){MARK, all - sizeof *head};
    return head + 1;
}

void *malloc(size_t bytes)
{
    return calloc(1, bytes);
}

void free(void *memory)
{
    struct head *head = memory;
    if (!head--)
        return;
    if (head->mark != MARK) {
        static const char text[] = "free is given what is not this program's\n";
        ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
        (void)written;
        _exit(3);
    }
    head->mark = 0;
    __libc_free(head);
}

void *realloc(void *memory, size_t bytes)
{
    void *made = malloc(bytes);
    if (made && memory) {
        size_t had = ((struct head *)memory - 1)->bytes;
        memcpy(made, memory, had < bytes ? had : bytes);
        free(memory);
    }
    return made;
}

/* So many that the tables of sizes grow. */
#define SIZES 300u

static void *make_and_delete(void *library)
{
    void *(*make)(void) = (void *(*)(void))function_of(library, "json_object");
    void (*delete)(void *) = (void (*)(void *))function_of(library, "json_delete");
    for (;;)
        delete (make());
    return NULL;
}

static void use_jansson(const char *name)
{
    void *library = open_library(name, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, make_and_delete, library) == 0);
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUstream stream;
    if (argc > 1)
        use_jansson(argv[1]);
    CU(cuInit(0));
    CU(cuCtxCreate_v2(&context, 0, 0));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 1; i <= SIZES; i++) {
        CUdeviceptr memory;
        CU(cuMemFree_v2(take(i << 12)));
        CU(cuMemAllocAsync(&memory, i << 12, stream));
        CU(cuMemFreeAsync(memory, stream));
    }
    CU(cuStreamDestroy_v2(stream));
    CU(cuCtxDestroy_v2(context));
    return 0;
}
#endif
