/*
 * Repeats recorded lookups: those listed as replaced must answer with the preload object's function
 * of that name, all others with the very address (or the error) that the driver gives.
 *
 * usage: interposition_lookups REPLACED_LIST LOOKUPS...
 */
#include "interposition.h"

#define LINE_BYTES 256
#define MOST_LINES 1000

typedef CUresult get_proc_address(const char *symbol, void **function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult *status);
typedef CUresult old_get_proc_address(const char *symbol, void **function, int version,
                                      cuuint64_t flags);

#define NO_STATUS 77u

struct replaced {
    char line[LINE_BYTES]; /* as it stands in the recording */
    char hook[LINE_BYTES]; /* the exported name that must answer */
};

struct replay {
    void *driver;
    void *preload;
    lookup_function *real_dlsym;
    get_proc_address *real_lookup; /* NULL where the driver has only the old one */
    get_proc_address *lookup;
    old_get_proc_address *real_old_lookup;
    old_get_proc_address *old_lookup;
    struct replaced replaced[MOST_LINES];
    size_t replaced_count;
    unsigned long replayed, answered_by_us;
};

static void read_replaced(struct replay *replay, const char *line)
{
    struct replaced *replaced = &replay->replaced[replay->replaced_count];
    const char *last_space = strrchr(line, ' ');
    if (line[0] == '#')
        return;
    CHECK(replay->replaced_count < MOST_LINES && last_space != NULL);
    bool by_dlsym = strncmp(line, "dlsym ", 6) == 0;
    int recorded = by_dlsym ? (int)strlen(line) : (int)(last_space - line);
    snprintf(replaced->line, LINE_BYTES, "%.*s", recorded, line);
    snprintf(replaced->hook, LINE_BYTES, "%s", last_space + 1);
    replay->replaced_count++;
}

/* The hook that must answer, or NULL. */
static void *expected_hook(const struct replay *replay, const char *line)
{
    for (size_t i = 0; i < replay->replaced_count; i++) {
        if (strcmp(replay->replaced[i].line, line) == 0) {
            void *hook = replay->real_dlsym(replay->preload, replay->replaced[i].hook);
            if (hook == NULL || !is_ours(hook))
                FAIL("%s is not exported", replay->replaced[i].hook);
            return hook;
        }
    }
    return NULL;
}

static void compare(struct replay *replay, const char *line, const void *real, const void *answer)
{
    const void *expected = real == NULL ? NULL : expected_hook(replay, line);
    if (expected == NULL)
        expected = real;
    else
        replay->answered_by_us++;
    if (answer != expected)
        FAIL("\"%s\" answered %p in %s, should be %p in %s", line, answer, object_of(answer),
             expected, object_of(expected));
}

static void replay_dlsym(struct replay *replay, const char *line, const char *name)
{
    void *real = replay->real_dlsym(replay->driver, name);
    void *answer = dlsym(replay->driver, name);
    bool error = dlerror() != NULL;
    compare(replay, line, real, answer);
    if (error != (real == NULL))
        FAIL("\"%s\" left %s", line, error ? "an error behind" : "no error");
}

struct answer {
    CUresult result;
    CUdriverProcAddressQueryResult status;
    void *function;
};

static struct answer ask(get_proc_address *lookup, const char *name, int version, cuuint64_t flags)
{
    struct answer answer = {.status = NO_STATUS};
    answer.result = lookup(name, &answer.function, version, flags, &answer.status);
    return answer;
}

static struct answer ask_old(old_get_proc_address *lookup, const char *name, int version,
                             cuuint64_t flags)
{
    struct answer answer = {.status = NO_STATUS};
    answer.result = lookup(name, &answer.function, version, flags);
    return answer;
}

static void compare_answers(struct replay *replay, const char *line, struct answer real,
                            struct answer ours)
{
    compare(replay, line, real.function, ours.function);
    if (ours.result != real.result || ours.status != real.status)
        FAIL("\"%s\" answered error %u, status %u; the driver %u and %u", line, ours.result,
             ours.status, real.result, real.status);
}

static void replay_get_proc_address(struct replay *replay, const char *line)
{
    char name[LINE_BYTES];
    int version;
    unsigned long flags;
    if (sscanf(line, "cuGetProcAddress %100s %d %lu", name, &version, &flags) != 3)
        FAIL("cannot read \"%s\"", line);
    if (replay->real_lookup != NULL)
        compare_answers(replay, line, ask(replay->real_lookup, name, version, flags),
                        ask(replay->lookup, name, version, flags));
    compare_answers(replay, line, ask_old(replay->real_old_lookup, name, version, flags),
                    ask_old(replay->old_lookup, name, version, flags));
}

static void replay_line(struct replay *replay, const char *line)
{
    char name[LINE_BYTES];
    if (sscanf(line, "dlsym %100s", name) == 1)
        replay_dlsym(replay, line, name);
    else
        replay_get_proc_address(replay, line);
    replay->replayed++;
}

static void for_each_line(struct replay *replay, const char *path,
                          void (*use)(struct replay *, const char *line))
{
    char line[LINE_BYTES];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        FAIL("cannot open %s", path);
    for (int n = 0; n < 2 * MOST_LINES && fgets(line, sizeof line, file) != NULL; n++) {
        line[strcspn(line, "\n")] = '\0';
        use(replay, line);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    static struct replay replay;
    replay.driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    replay.preload = open_library(PRELOAD_OBJECT, RTLD_NOW | RTLD_NOLOAD);
    replay.real_dlsym = glibc_dlsym();
    replay.real_lookup =
        (get_proc_address *)replay.real_dlsym(replay.driver, "cuGetProcAddress_v2");
    replay.real_old_lookup =
        (old_get_proc_address *)replay.real_dlsym(replay.driver, "cuGetProcAddress");
    if (replay.real_lookup != NULL)
        replay.lookup = (get_proc_address *)function_of(replay.driver, "cuGetProcAddress_v2");
    replay.old_lookup = (old_get_proc_address *)function_of(replay.driver, "cuGetProcAddress");
    CHECK(is_the_drivers((void *)replay.real_old_lookup) && is_ours((void *)replay.old_lookup));
    CHECK(argc > 2);
    for_each_line(&replay, argv[1], read_replaced);
    for (int i = 2; i < argc; i++)
        for_each_line(&replay, argv[i], replay_line);
    if (replay.replayed < 1000 || replay.answered_by_us < 200)
        FAIL("only %lu lines replayed, %lu answered by us", replay.replayed, replay.answered_by_us);
    return 0;
}
