/*
 * The worker's main: opens the device and the allocator, reads commands, answers. worker.h says
 * how it is used; the main thread alone is in this file, fail_at excepted.
 */
#include <ctype.h>

#include "worker.h"

#include "../../kernels.h"

struct bench bench;

/* The answers' own descriptor: what a library prints on standard output is no answer. */
static FILE *answers;

void fail_at(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    char text[400];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(answers, "{\"error\": \"%s:%d: %s\"}\n", file, line, text);
    fflush(answers);
    _exit(1);
}

void answer(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputc('{', answers);
    vfprintf(answers, format, arguments);
    fputs("}\n", answers);
    fflush(answers);
    va_end(arguments);
}

void refuse(const char *format, ...)
{
    va_list arguments;
    char text[400];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    answer("\"error\": \"%s\"", text);
}

const char *word(const struct command *command, const char *key, const char *otherwise)
{
    size_t length = strlen(key);
    for (unsigned int i = 0; i < command->count; i++)
        if (strncmp(command->words[i], key, length) == 0 && command->words[i][length] == '=')
            return command->words[i] + length + 1;
    return otherwise;
}

unsigned long number(const struct command *command, const char *key, unsigned long otherwise)
{
    const char *text = word(command, key, NULL);
    char *end;
    if (text == NULL)
        return otherwise;
    unsigned long value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0')
        FAIL("%s=%s: must be a number", key, text);
    return value;
}

static int by_value(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

double median_of(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, by_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

CUstream *shared_streams(unsigned int count)
{
    static CUstream streams[MAX_STREAMS];
    static unsigned int made;
    if (count > MAX_STREAMS)
        FAIL("%u streams: must be at most %d", count, MAX_STREAMS);
    for (; made < count; made++) {
        CU(cuStreamCreate(&streams[made], CU_STREAM_NON_BLOCKING));
        launch_nothing(streams[made]);
        CU(cuStreamSynchronize(streams[made]));
    }
    return streams;
}

/* What the allocator is and where it runs. */
static void introduce(const struct command *command)
{
    char device[100] = "";
    int driver = 0;
    (void)command;
    CU(cuDeviceGetName(device, sizeof device, bench.device));
    CU(cuDriverGetVersion(&driver));
    answer("\"allocator\": \"%s\", \"device\": \"%s\", \"driver_version\": %d, \"processors\": %ld",
           bench.allocator->name, device, driver, sysconf(_SC_NPROCESSORS_ONLN));
}

static const struct {
    const char *name;
    void (*run)(const struct command *command);
} commands[] = {
    {"introduce", introduce},     {"pairs", measure_pairs},
    {"cross", measure_cross},     {"short_threads", measure_short_threads},
    {"live", hold_live_blocks},   {"launch", measure_launch},
    {"overlap", measure_overlap}, {"replay", measure_replay},
    {"calls", count_calls},
};

static void obey(char *line)
{
    struct command command = {.count = 0};
    char *rest = NULL;
    command.name = strtok_r(line, " \n", &rest);
    if (command.name == NULL)
        return;
    for (char *next = strtok_r(NULL, " \n", &rest); next != NULL && command.count < 32;
         next = strtok_r(NULL, " \n", &rest))
        command.words[command.count++] = next;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, command.name) == 0) {
            commands[i].run(&command);
            return;
        }
    refuse("%s: no such command", command.name);
}

static void keep_answers_apart(void)
{
    int copy = dup(STDOUT_FILENO);
    answers = copy >= 0 ? fdopen(copy, "w") : NULL;
    if (answers == NULL || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        perror("worker: standard output");
        exit(1);
    }
}

static void open_device(void)
{
    CUmodule module;
    CU(cuInit(0));
    CU(cuDeviceGet(&bench.device, 0));
    CU(cuDevicePrimaryCtxRetain(&bench.context, bench.device));
    CU(cuCtxSetCurrent(bench.context));
    CU(cuModuleLoadData(&module, KERNELS_PTX));
    CU(cuModuleGetFunction(&bench.spin, module, "spin"));
}

int main(int argc, char **argv)
{
    char line[4096];
    if (argc != 2) {
        fprintf(stderr, "usage: worker ALLOCATOR\n");
        return 2;
    }
    keep_answers_apart();
    open_device();
    bench.allocator = allocator_named(argv[1]);
    bench.allocator->thread_starts();
    while (fgets(line, sizeof line, stdin) != NULL)
        obey(line);
    return 0;
}
