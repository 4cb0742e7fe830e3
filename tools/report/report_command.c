/*
 * cudapool report: shows what reports in JSON and files of figures say, in the chosen format.
 *
 * Files are read one after another. Only what the format needs of each file stays in memory.
 */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/figures/report.h"
#include "core/figures/report_json.h"
#include "formats.h"
#include "report_formats.h"
#include "tools/command/command_line.h"
#include "tools/command/output.h"
#include "tools/command/progress.h"
#include "tools/command/terminal.h"
#include "tools/command/tool.h"
#include "tools/summary/report_files.h"

struct options {
    enum report_format format;
    bool has_format;  /* the user chose one */
    const char *file; /* -o; NULL: stdout */
    FILE *out;
    bool merge;
    bool compare;
    bool all;
    struct look look; /* of tables */
    char **files;
    size_t count;
};

/* --- reading ------------------------------------------------------------------------------------
 */

/* What has been read: reports as they are, or one summary for each report, or one summary of
 * all. */
struct gathered {
    struct report *reports;
    size_t report_count;
    struct summary *summaries;
    size_t summary_count;
};

static int keep_report(struct report *report, void *context)
{
    struct gathered *gathered = context;
    struct report *reports =
        realloc(gathered->reports, (gathered->report_count + 1) * sizeof(*reports));

    if (reports == NULL)
        return -1;
    gathered->reports = reports;
    reports[gathered->report_count++] = *report;
    report->devices = NULL;
    report->device_count = 0;
    return 0;
}

static int start_summary(struct gathered *gathered)
{
    struct summary *summaries =
        realloc(gathered->summaries, (gathered->summary_count + 1) * sizeof(*summaries));

    if (summaries == NULL)
        return -1;
    gathered->summaries = summaries;
    memset(&summaries[gathered->summary_count++], 0, sizeof(*summaries));
    return 0;
}

static int add_to_last_summary(struct report *report, void *context)
{
    struct gathered *gathered = context;

    return summary_add(&gathered->summaries[gathered->summary_count - 1], report);
}

static int summarize_alone(struct report *report, void *context)
{
    return start_summary(context) != 0 ? -1 : add_to_last_summary(report, context);
}

static void free_gathered(struct gathered *gathered)
{
    for (size_t i = 0; i < gathered->report_count; i++)
        report_free(&gathered->reports[i]);
    for (size_t i = 0; i < gathered->summary_count; i++)
        summary_free(&gathered->summaries[i]);
    free(gathered->reports);
    free(gathered->summaries);
}

/* Reads the files and stops at the first error, because a sum without one of its reports is wrong.
 * Returns 0, or the exit status after a complaint. */
static int read_files(char **files, size_t count, report_visitor *visit, struct gathered *gathered)
{
    char error[ERROR_BYTES];
    struct progress progress;
    int status = 0;

    progress_start(&progress);
    for (size_t i = 0; i < count && status == 0; i++) {
        progress_step(&progress, i, count);
        status = report_files_read(files[i], visit, gathered, error, sizeof(error));
    }
    progress_end(&progress);
    return status == 0 ? 0 : complain("%s", error);
}

static int finish_summaries(struct gathered *gathered)
{
    for (size_t i = 0; i < gathered->summary_count; i++)
        if (summary_finish(&gathered->summaries[i]) != 0)
            return complain("memory is short");
    return 0;
}

/* --- printing -----------------------------------------------------------------------------------
 */

static int print_one_table(struct report *report, void *context)
{
    const struct options *options = context;
    int status = print_report_table(report, &options->look, options->out);

    /* output_close complains of write errors. */
    return ferror(options->out) ? 0 : status;
}

/* Prints the table of each file, also of those after a bad one. */
static int print_tables(struct options *options)
{
    char error[ERROR_BYTES];
    int status = 0;

    for (size_t i = 0; i < options->count; i++)
        if (report_files_read(options->files[i], print_one_table, options, error, sizeof(error)) !=
            0)
            status = complain("%s", error);
    return status;
}

/* Prints the reports one by one, without merging them. */
static int print_reports(const struct options *options, struct gathered *gathered)
{
    int status = read_files(options->files, options->count, keep_report, gathered);
    const struct report *reports = gathered->reports;
    size_t count = gathered->report_count;

    if (status != 0)
        return status;
    status = options->format == TRACE ? print_trace(reports, count, options->out)
                                      : print_json(reports_to_json(reports, count), options->out);
    return status == 0 ? 0 : complain("memory is short");
}

static int compare_processes(const void *one, const void *other)
{
    const struct summary_process *a = ((const struct summary *)one)->processes;
    const struct summary_process *b = ((const struct summary *)other)->processes;
    int order = strcmp(a->host, b->host);

    if (order == 0)
        order = (a->pid > b->pid) - (a->pid < b->pid);
    return order != 0 ? order : strcmp(a->rank, b->rank);
}

/* Prometheus accepts no two samples with the same labels. */
static int refuse_the_same_process(const struct gathered *gathered)
{
    qsort(gathered->summaries, gathered->summary_count, sizeof(*gathered->summaries),
          compare_processes);
    for (size_t i = 1; i < gathered->summary_count; i++)
        if (compare_processes(&gathered->summaries[i - 1], &gathered->summaries[i]) == 0)
            return complain("report: two reports are of process %lld on %s; --merge adds them up",
                            (long long)gathered->summaries[i].processes[0].pid,
                            gathered->summaries[i].processes[0].host);
    return 0;
}

static int print_summaries(const struct options *options, const struct gathered *gathered)
{
    const struct summary *summaries = gathered->summaries;
    bool per_process = !options->merge;

    if (options->format == CSV)
        print_csv(summaries, gathered->summary_count, per_process, options->out);
    else if (options->format == PROMETHEUS)
        print_prometheus(summaries, gathered->summary_count, per_process, options->out);
    else if (options->format == TABLE)
        print_summary_table(&summaries[0], &options->look, options->out);
    else if (options->format == HTML)
        return print_html(&summaries[0], options->out);
    else
        return print_json(summary_to_json(&summaries[0]), options->out);
    return 0;
}

static int print_summarized(const struct options *options, struct gathered *gathered)
{
    bool one = options->merge || options->format == HTML;
    int status = one && start_summary(gathered) != 0 ? complain("memory is short") : 0;

    if (status == 0)
        status = read_files(options->files, options->count,
                            one ? add_to_last_summary : summarize_alone, gathered);
    if (status == 0)
        status = finish_summaries(gathered);
    if (status == 0 && options->format == PROMETHEUS && !one)
        status = refuse_the_same_process(gathered);
    if (status == 0 && print_summaries(options, gathered) != 0)
        status = complain("memory is short");
    return status;
}

/* Prints the comparison. Returns 0, or -1 if memory is short. */
static int print_two(const struct options *options, const struct summary *a,
                     const struct summary *b)
{
    switch (options->format) {
    case TABLE:
        return print_comparison_table(a, b, &options->look, options->out);
    case HTML:
        return print_comparison_html(a, b, options->out);
    case CSV:
        print_comparison_csv(a, b, options->out);
        return 0;
    default:
        return print_json(comparison_to_json(a, b), options->out);
    }
}

static int print_comparison(const struct options *options, struct gathered *gathered)
{
    for (size_t i = 0; i < 2; i++) {
        if (start_summary(gathered) != 0)
            return complain("memory is short");
        int status = read_files(&options->files[i], 1, add_to_last_summary, gathered);
        if (status != 0)
            return status;
    }
    int status = finish_summaries(gathered);
    if (status != 0)
        return status;
    if (print_two(options, &gathered->summaries[0], &gathered->summaries[1]) != 0)
        return complain("memory is short");
    return 0;
}

/* --- the command line ---------------------------------------------------------------------------
 */

static int choose_format(const char *name, struct options *options)
{
    options->has_format = true;
    for (options->format = 0; options->format < FORMATS; ++options->format)
        if (strcmp(format_names[options->format], name) == 0)
            return 0;
    return complain("report: --format: found \"%s\", allowed is table, json, csv, html, prometheus "
                    "or trace",
                    name);
}

/* Chooses the format that the file name's suffix selects. */
static int choose_format_by_suffix(struct options *options)
{
    if (strcmp(options->file, "-") == 0 || format_of_file(options->file, &options->format))
        return 0;
    return complain(
        "report: -o: found \"%s\", whose end says no format; allowed are " FORMAT_SUFFIXES
        ", or another with --format",
        options->file);
}

static int check_comparison(const struct options *options)
{
    if (options->count != 2)
        return complain("report: --compare: found %zu files, allowed are two", options->count);
    if (options->format == PROMETHEUS || options->format == TRACE)
        return complain("report: --compare: found --format %s, allowed is table, json, csv or html",
                        format_names[options->format]);
    return 0;
}

/* Checks that the options do not contradict each other. */
static int check_options(struct options *options)
{
    if (options->count == 0)
        return complain("report: no file given; usage: cudapool report [--format FORMAT] "
                        "[-o FILE] [--merge] FILE...");
    if (options->file != NULL && !options->has_format && choose_format_by_suffix(options) != 0)
        return EXIT_BAD_INPUT;
    if (options->merge && options->format == TRACE)
        return complain("report: --merge: found --format trace, in which each process has counters "
                        "of its own; allowed are the other formats");
    return options->compare ? check_comparison(options) : 0;
}

static const struct option known_options[] = {
    {"format", required_argument, NULL, 'f'}, {"output", required_argument, NULL, 'o'},
    {"merge", no_argument, NULL, 'm'},        {"compare", no_argument, NULL, 'c'},
    {"all", no_argument, NULL, 'a'},          {0}};

/* Returns 0, or the exit status. */
static int take_option(int option, const char *word, struct options *options)
{
    switch (option) {
    case 'f':
        return choose_format(optarg, options);
    case 'o':
        options->file = optarg;
        return 0;
    case 'm':
        options->merge = true;
        return 0;
    case 'c':
        options->compare = true;
        return 0;
    case 'a':
        options->all = true;
        return 0;
    default:
        return refuse_option("report", known_options, option, word,
                             "allowed are --format FORMAT, -o FILE, --merge, --compare and --all");
    }
}

static int read_options(int argc, char **argv, struct options *options)
{
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, ":o:", known_options, NULL)) != -1)
        status = take_option(option, argv[optind - 1], options);
    options->files = argv + optind;
    options->count = (size_t)(argc - optind);
    return status != 0 ? status : check_options(options);
}

static int print(struct options *options)
{
    struct gathered gathered = {0};
    int status;

    if (options->compare)
        status = print_comparison(options, &gathered);
    else if (options->format == TABLE && !options->merge)
        status = print_tables(options);
    else if (options->format == TRACE || (options->format == JSON && !options->merge))
        status = print_reports(options, &gathered);
    else
        status = print_summarized(options, &gathered);
    free_gathered(&gathered);
    return status;
}

static int report(int argc, char **argv)
{
    struct options options = {0};
    struct output output;
    int status = read_options(argc, argv, &options);

    if (status == 0)
        status = output_open(&output, options.file);
    if (status != 0)
        return status;
    options.out = output.out;
    options.look =
        terminal_look_of(output.sink.fd >= 0 ? output.sink.fd : fileno(output.out), options.all);
    return output_close(&output, print(&options));
}

const struct command report_command = {
    .name = "report",
    .summary = "show what reports in JSON say: as a table, a page, and more",
    .help =
        "usage: cudapool report [--format FORMAT] [-o FILE] [--merge] [--all] FILE...\n"
        "       cudapool report [--format FORMAT] [-o FILE] [--all] --compare A B\n"
        "\n"
        "Shows reports in JSON (written by `cudapool run --report FILE`, with "
        "CUDAPOOL_REPORT=FILE,\n"
        "or the settings report.at_exit and report.file), which may hold several processes, and "
        "files\n"
        "of figures, which processes keep while they run and leave when they are killed. - is "
        "stdin.\n"
        "\n"
        "  --format table       as a process prints it when it ends (the default)\n"
        "           json        the reports as they are in files; merged or compared, see\n"
        "                       report.schema.json\n"
        "           csv         a line for each bucket (RFC 4180); bytes and nanoseconds\n"
        "           html        one page, of all files together, with advice on the settings\n"
        "           prometheus  for node_exporter's textfile collector\n"
        "           trace       memory and requests over time, for https://ui.perfetto.dev and\n"
        "                       chrome://tracing\n"
        "  -o, --output FILE    writes there, by default in the format that the name's end says:\n"
        "                       .txt, .json, .csv, .html, .prom, .trace\n"
        "  --all                of tables on a terminal all rows and columns, and not only the "
        "ten\n"
        "                       busiest buckets and what fits\n"
        "  --merge              all files as one: counters are summed. The peak of a device is "
        "the\n"
        "                       sum of its processes' peaks, which is the most it can have been;\n"
        "                       that of all devices is the largest device's.\n"
        "  --compare            two runs, each with its processes merged, side by side\n"
        "\n"
        "In the table:\n"
        "  requests        allocations: hits, misses and failures\n"
        "  hits            the share of them that the pool answered, by what each needed:\n"
        "  clean           a block that nothing on the GPU could still be using\n"
        "  queried         a block whose fence turned out to be completed\n"
        "  barrier         a block behind a context barrier\n"
        "  waited          a block whose fence was waited for\n"
        "  misses          allocations that the driver met\n"
        "  failed          allocations that nobody met\n"
        "  given back      blocks that went back to the driver, for whatever reason\n"
        "  live            blocks in the program's hands at the end\n"
        "  peak            the most that the blocks took, in use and free together\n"
        "  driver          time in driver calls made for the bucket\n"
        "  wait            time that allocations and frees waited for the GPU\n"
        "  free waits      frees that did\n"
        "  saved at least  hits times what an undisturbed allocation and free of that size took\n"
        "\n"
        "Exit status: 0; 1 where the output cannot be written; 2 for bad input. As a table "
        "without\n"
        "--merge, the files after a bad one are shown as well.\n",
    .run = report,
};
