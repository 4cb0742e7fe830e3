/*
 * A library that patches the driver's functions to learn what memory comes and goes, as those under
 * MPI do: it is opened as a module is, and looks the functions up by a handle of itself, since it
 * is linked with the driver.
 *
 * patch_code writes a jump over the first bytes of a function; what lay there is copied, whole
 * instructions of a few kinds, and runs elsewhere before the rest. patch_code_for_calls does
 * without the copy: it puts the bytes back for each call (one thread only). patch_relocations
 * writes to the places through which objects call other objects' functions.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libinterposition_patch.h"

static struct patched seen;

/* The two functions, and how what they did before can be called. */
struct function {
    const char *name;
    void *replacement;
    void *found;
    unsigned char former[PATCHABLE_BYTES], jump[PATCHABLE_BYTES];
    void *original; /* the copy, or the function itself */
    bool put_back;  /* for each call */
};

static CUresult note_allocation(CUdeviceptr *address, size_t bytes);
static CUresult note_free(CUdeviceptr address);
static struct function allocation = {.name = "cuMemAlloc_v2",
                                     .replacement = (void *)note_allocation};
static struct function release = {.name = "cuMemFree_v2", .replacement = (void *)note_free};

const struct patched *patch_seen(void)
{
    return &seen;
}

static bool write_code(void *place, const void *code)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)place & ~(page - 1);
    size_t bytes = (uintptr_t)place + PATCHABLE_BYTES - begin;
    if (mprotect((void *)begin, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return false;
    memcpy(place, code, PATCHABLE_BYTES);
    __builtin___clear_cache((char *)place, (char *)place + PATCHABLE_BYTES);
    return mprotect((void *)begin, bytes, PROT_READ | PROT_EXEC) == 0;
}

static void begin_call(const struct function *function)
{
    if (function->put_back && !write_code(function->found, function->former))
        abort();
}

static void end_call(const struct function *function)
{
    if (function->put_back && !write_code(function->found, function->jump))
        abort();
}

static CUresult note_allocation(CUdeviceptr *address, size_t bytes)
{
    begin_call(&allocation);
    CUresult result = ((CUresult(*)(CUdeviceptr *, size_t))allocation.original)(address, bytes);
    end_call(&allocation);
    if (result == CUDA_SUCCESS)
        seen.allocations++;
    return result;
}

/* The size is asked for before the free, while there is one. */
static CUresult note_free(CUdeviceptr address)
{
    CUdeviceptr base = 0;
    seen.frees++;
    if (cuMemGetAddressRange_v2(&base, &seen.last_freed_bytes, address) != CUDA_SUCCESS ||
        base != address)
        seen.unknown++;
    begin_call(&release);
    CUresult result = ((CUresult(*)(CUdeviceptr))release.original)(address);
    end_call(&release);
    return result;
}

/* ---- code ---- */

#if defined(__x86_64__)
/* Only these: push and pop, mov %rsp to %rbp, sub from %rsp, mov of a register to a place beside
 * %rsp, mov of a number to a register. 0: another. */
static size_t length_of(const unsigned char *code)
{
    if ((code[0] & 0xf0) == 0x50)
        return 1;
    if (code[0] == 0x41 && (code[1] & 0xf0) == 0x50)
        return 2;
    if ((code[0] & 0xf8) == 0xb8)
        return 5;
    if (code[0] == 0x48 && code[1] == 0x81 && code[2] == 0xec)
        return 7;
    if (code[0] != 0x48 || code[1] != 0x89)
        return 0;
    if (code[2] == 0xe5)
        return 3;
    if ((code[2] & 7) != 4 || code[2] >> 6 == 0 || code[2] >> 6 == 3)
        return 0;
    return code[2] >> 6 == 1 ? 5 : 8;
}

/* mov $to, %rax; jmp *%rax */
static void make_jump(unsigned char *jump, const void *to)
{
    const unsigned char move[] = {0x48, 0xb8}, leave[] = {0xff, 0xe0};
    memcpy(jump, move, sizeof move);
    memcpy(jump + sizeof move, &to, sizeof to);
    memcpy(jump + sizeof move + sizeof to, leave, sizeof leave);
}
#elif defined(__aarch64__)
/* Only mov of a number to a register. */
static size_t length_of(const unsigned char *code)
{
    unsigned int instruction;
    memcpy(&instruction, code, sizeof instruction);
    return (instruction & 0x7f800000) == 0x52800000 ? sizeof instruction : 0;
}

/* ldr x15, of what follows after br x15 */
static void make_jump(unsigned char *jump, const void *to)
{
    const unsigned int code[] = {0x5800004f, 0xd61f01e0};
    memcpy(jump, code, sizeof code);
    memcpy(jump + sizeof code, &to, sizeof to);
}
#endif

size_t patch_known_bytes(const void *function)
{
    const unsigned char *code = function;
    size_t known = 0, length;
    while (known < PATCHABLE_BYTES && (length = length_of(code + known)) != 0)
        known += length;
    return known;
}

/* The function's beginning and a jump to what follows it. NULL where it has instructions that are
 * not known. */
static void *copy_beginning(void *function)
{
    size_t known = patch_known_bytes(function);
    unsigned char *copy =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (known < PATCHABLE_BYTES || copy == MAP_FAILED)
        return NULL;
    memcpy(copy, function, known);
    make_jump(copy + known, (unsigned char *)function + known);
    __builtin___clear_cache((char *)copy, (char *)copy + 4096);
    return copy;
}

static void *find(const char *name, enum patch_lookup lookup)
{
    Dl_info self;
    void *found = NULL, *handle;
    if (lookup == PATCH_NEXT)
        return dlsym(RTLD_NEXT, name);
    if (dladdr((void *)find, &self) != 0 && (handle = dlopen(self.dli_fname, RTLD_LAZY)) != NULL)
        found = dlsym(handle, name);
    return found;
}

static bool patch_one(struct function *function, enum patch_lookup lookup, bool put_back)
{
    function->found = find(function->name, lookup);
    if (function->found == NULL)
        return false;
    function->put_back = put_back;
    function->original = put_back ? function->found : copy_beginning(function->found);
    if (function->original == NULL)
        return false;
    memcpy(function->former, function->found, PATCHABLE_BYTES);
    make_jump(function->jump, function->replacement);
    return write_code(function->found, function->jump);
}

static bool patch_both(enum patch_lookup lookup, bool put_back)
{
    bool patched =
        patch_one(&allocation, lookup, put_back) && patch_one(&release, lookup, put_back);
    seen.allocate = allocation.found;
    seen.release = release.found;
    return patched;
}

bool patch_code(enum patch_lookup lookup)
{
    return patch_both(lookup, false);
}

bool patch_code_for_calls(enum patch_lookup lookup)
{
    return patch_both(lookup, true);
}

/* ---- relocations ---- */

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * jumps, *others;
    size_t jumps_bytes, others_bytes;
};

static struct tables tables_of(const ElfW(Dyn) * dynamic)
{
    struct tables tables = {0};
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            tables.symbols = (const ElfW(Sym) *)value;
            break;
        case DT_STRTAB:
            tables.names = (const char *)value;
            break;
        case DT_JMPREL:
            tables.jumps = (const ElfW(Rela) *)value;
            break;
        case DT_PLTRELSZ:
            tables.jumps_bytes = value;
            break;
        case DT_RELA:
            tables.others = (const ElfW(Rela) *)value;
            break;
        case DT_RELASZ:
            tables.others_bytes = value;
            break;
        default:
            break;
        }
    }
    return tables;
}

static void write_place(void **place, void *value)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (mprotect((void *)((uintptr_t)place & ~(page - 1)), page, PROT_READ | PROT_WRITE) != 0)
        abort();
    *place = value;
}

static unsigned patch_table(const struct tables *tables, const ElfW(Rela) * table, size_t bytes,
                            uintptr_t base, const struct function *function)
{
    unsigned places = 0;
    for (size_t i = 0; table != NULL && i < bytes / sizeof *table; i++) {
        size_t symbol = ELF64_R_SYM(table[i].r_info);
        if (strcmp(tables->names + tables->symbols[symbol].st_name, function->name) != 0)
            continue;
        write_place((void **)(base + table[i].r_offset), function->replacement);
        places++;
    }
    return places;
}

static int patch_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    const struct function *function = argument;
    const ElfW(Dyn) *dynamic = NULL;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (dynamic == NULL || strstr(info->dlpi_name, "vdso") != NULL)
        return 0;
    struct tables tables = tables_of(dynamic);
    if (tables.symbols == NULL || tables.names == NULL)
        return 0;
    unsigned places =
        patch_table(&tables, tables.jumps, tables.jumps_bytes, info->dlpi_addr, function) +
        patch_table(&tables, tables.others, tables.others_bytes, info->dlpi_addr, function);
    seen.places += places;
    if (strstr(info->dlpi_name, "libcudapool_preload.so") != NULL)
        seen.places_in_preload += places;
    return 0;
}

bool patch_relocations(enum patch_lookup lookup)
{
    struct function *functions[] = {&allocation, &release};
    for (int i = 0; i < 2; i++) {
        functions[i]->original = functions[i]->found = find(functions[i]->name, lookup);
        if (functions[i]->found == NULL)
            return false;
        dl_iterate_phdr(patch_object, functions[i]);
    }
    seen.allocate = allocation.found;
    seen.release = release.found;
    return true;
}
