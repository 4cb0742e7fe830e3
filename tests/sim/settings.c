/*
 * The environment of the simulated driver: SIMCUDA_DEVICES, SIMCUDA_MEMORY, SIMCUDA_HOST_MEMORY,
 * SIMCUDA_OVERHEAD, SIMCUDA_SHARED, SIMCUDA_TIMING, SIMCUDA_STEPPED, SIMCUDA_LOG, SIMCUDA_RACES,
 * SIMCUDA_POISON and SIMCUDA_FAULTS. Called once in a process, before anything else is done.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "shared.h"
#include "sim.h"

static bool complain(const char *name, const char *value, const char *allowed)
{
    fprintf(stderr, "simulated CUDA driver: %s=%s: %s is allowed\n", name, value, allowed);
    return false;
}

/* A whole number at the start of the text; *end is what follows. */
static bool read_number(const char *text, uint64_t *number, const char **end)
{
    char *stop;
    errno = 0;
    *number = strtoull(text, &stop, 10);
    *end = stop;
    return text[0] >= '0' && text[0] <= '9' && errno == 0;
}

static bool read_count(const char *name, unsigned int most, unsigned int *count)
{
    const char *value = getenv(name), *end;
    char allowed[64];
    uint64_t number;
    if (value == NULL)
        return true;
    if (read_number(value, &number, &end) && *end == '\0' && number <= most) {
        *count = (unsigned int)number;
        return true;
    }
    snprintf(allowed, sizeof allowed, "a number from 0 to %u", most);
    return complain(name, value, allowed);
}

static bool read_switch(const char *name, bool *on)
{
    unsigned int number = *on;
    bool fine = read_count(name, 1, &number);
    *on = number != 0;
    return fine;
}

static bool read_bytes(const char *name, uint64_t *bytes)
{
    static const struct {
        const char *unit;
        unsigned int shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    const char *value = getenv(name), *end;
    uint64_t number;
    if (value == NULL)
        return true;
    if (read_number(value, &number, &end))
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcmp(end, units[i].unit) == 0 && number <= (4ull << 40) >> units[i].shift &&
                number << units[i].shift >= 4 * MIB) {
                *bytes = number << units[i].shift;
                return true;
            }
    return complain(name, value, "a size from 4MiB to 4TiB, such as 80GiB,");
}

static bool open_log(int *log)
{
    const char *name = getenv("SIMCUDA_LOG");
    if (name == NULL)
        return true;
    *log = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return *log >= 0 || complain("SIMCUDA_LOG", name, "a file that can be written");
}

static bool open_races(int *races)
{
    const char *name = getenv("SIMCUDA_RACES");
    if (name == NULL || strcmp(name, "0") == 0)
        return true;
    *races = strcmp(name, "1") == 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                                    : open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return *races >= 0 || complain("SIMCUDA_RACES", name, "0, 1 or a file that can be written");
}

/* Devices of this process's own are nobody else's: by their number, others see that. */
static bool open_shared(struct settings *settings)
{
    const char *name = getenv("SIMCUDA_SHARED");
    if (name == NULL)
        return getrandom(&settings->devices_id, sizeof settings->devices_id, 0) ==
               sizeof settings->devices_id;
    if (!shared_join(name, settings->memory))
        return false;
    settings->devices_id = shared_id();
    return true;
}

static bool read_faults(void)
{
    const char *text = getenv("SIMCUDA_FAULTS");
    return text == NULL || faults_read(text);
}

void settings_read(struct settings *settings)
{
    unsigned int devices = 1;
    uint64_t memory = 1024 * MIB;
    bool valid = read_count("SIMCUDA_DEVICES", MAX_DEVICES, &devices);
    valid &= read_bytes("SIMCUDA_MEMORY", &memory);
    settings->host_memory = UINT64_MAX;
    valid &= read_bytes("SIMCUDA_HOST_MEMORY", &settings->host_memory);
    valid &= read_bytes("SIMCUDA_OVERHEAD", &settings->overhead);
    valid &= read_switch("SIMCUDA_TIMING", &settings->timing);
    valid &= read_switch("SIMCUDA_STEPPED", &settings->stepped);
    valid &= read_switch("SIMCUDA_POISON", &settings->poison);
    valid &= open_log(&settings->log);
    valid &= open_races(&settings->races);
    valid &= read_faults();
    settings->devices = devices;
    settings->memory = memory / (2 * MIB) * (2 * MIB);
    settings->valid = valid && open_shared(settings);
}
