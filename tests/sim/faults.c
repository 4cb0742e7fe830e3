/*
 * SIMCUDA_FAULTS: driver calls that fail on demand. sim.h says what may be written there. Called
 * under sim.lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { MOST_FAULTS = 64 };

struct fault {
    enum entry entry;
    CUresult result;
    uint64_t first, last; /* calls that fail, counted from 1 */
    double percent;       /* instead: how many of 100 fail */
    uint64_t random;      /* the generator's state */
};

static struct fault faults[MOST_FAULTS];
static unsigned int fault_count;

static bool complain(const char *item, size_t length, const char *why)
{
    fprintf(stderr,
            "simulated CUDA driver: SIMCUDA_FAULTS: \"%.*s\": %s; allowed is NAME=CODE@N, "
            "NAME=CODE@N+ or NAME=CODE%%P:SEED\n",
            (int)length, item, why);
    return false;
}

static bool find_entry(const char *name, size_t length, enum entry *entry)
{
    for (int i = 0; i < ENTRIES; i++)
        if (strlen(entry_points[i].symbol) == length &&
            memcmp(entry_points[i].symbol, name, length) == 0) {
            *entry = (enum entry)i;
            return true;
        }
    return false;
}

static bool read_calls(const char *text, struct fault *fault)
{
    char *end;
    fault->first = strtoull(text, &end, 10);
    fault->last = *end == '+' ? UINT64_MAX : fault->first;
    end += *end == '+';
    return fault->first > 0 && *end == '\0';
}

static bool read_chance(const char *text, struct fault *fault)
{
    char *end;
    fault->percent = strtod(text, &end);
    if (end == text || *end != ':' || !(fault->percent > 0 && fault->percent <= 100))
        return false;
    text = end + 1;
    fault->random = strtoull(text, &end, 10);
    return end != text && *end == '\0';
}

static bool read_fault(const char *item, size_t length, struct fault *fault)
{
    char text[128];
    char *code, *when;
    int result;
    bool chance;
    if (length >= sizeof text)
        return complain(item, length, "too long");
    memcpy(text, item, length);
    text[length] = '\0';
    code = strchr(text, '=');
    when = code != NULL ? strpbrk(code, "@%") : NULL;
    if (when == NULL)
        return complain(item, length, "not understood");
    if (!find_entry(text, (size_t)(code - text), &fault->entry))
        return complain(item, length, "the driver exports no function of that name");
    code++;
    result = error_of_name(code, (size_t)(when - code));
    if (result <= 0)
        return complain(item, length, "no such error");
    fault->result = (CUresult)result;
    chance = *when == '%';
    if (chance ? !read_chance(when + 1, fault) : !read_calls(when + 1, fault))
        return complain(item, length, "not understood");
    return true;
}

bool faults_read(const char *text)
{
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        if (fault_count == MOST_FAULTS)
            return complain(text, length, "too many");
        if (!read_fault(text, length, &faults[fault_count]))
            return false;
        fault_count++;
        text += length + (text[length] == ',');
    }
    return true;
}

/* A number from 0 to 100, by splitmix64. */
static double next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * (100.0 / 9007199254740992.0);
}

static bool strikes(struct fault *fault, uint64_t nth_call)
{
    if (fault->percent > 0)
        return next_random(&fault->random) < fault->percent;
    return nth_call >= fault->first && nth_call <= fault->last;
}

CUresult fault_for(enum entry entry, uint64_t nth_call)
{
    for (unsigned int i = 0; i < fault_count; i++)
        if (faults[i].entry == entry && strikes(&faults[i], nth_call))
            return faults[i].result;
    return CUDA_SUCCESS;
}

bool error_sticks(CUresult result)
{
    return result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_TIMEOUT ||
           result == CUDA_ERROR_ASSERT ||
           (result >= CUDA_ERROR_HARDWARE_STACK_ERROR && result <= CUDA_ERROR_LAUNCH_FAILED);
}
