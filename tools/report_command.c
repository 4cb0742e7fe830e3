/*
 * cudapool report: what reports in JSON say, in the format that is asked for.
 *
 * Files are read one after another; what is kept of each is what the format needs.
 */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/report.h"
#include "core/report_json.h"
#include "formats.h"
#include "progress.h"
#include "report_files.h"
#include "tool.h"

enum format { TABLE, JSON, CSV, HTML, PROMETHEUS, FORMATS };

static const char *const format_names[FORMATS] = {"table", "json", "csv", "html", "prometheus"};

struct options {
    enum format format;
    bool merge;
    bool compare;
    char **files;
    size_t count;
};

/* --- reading ------------------------------------------------------------------------------------
 */

/* What has been read: reports as they are, or summaries of one or of all of them. */
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

/* 0, or the exit status after an error: a report that is missing from a sum makes it wrong. */
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
    (void)context;
    return print_report_table(report, stdout);
}

/* Every file is printed, also after a bad one. */
static int print_tables(const struct options *options)
{
    char error[ERROR_BYTES];
    int status = 0;

    for (size_t i = 0; i < options->count; i++)
        if (report_files_read(options->files[i], print_one_table, NULL, error, sizeof(error)) != 0)
            status = complain("%s", error);
    return status;
}

static int print_reports_as_json(const struct options *options, struct gathered *gathered)
{
    int status = read_files(options->files, options->count, keep_report, gathered);

    if (status != 0)
        return status;
    if (print_json(reports_to_json(gathered->reports, gathered->report_count), stdout) != 0)
        return complain("memory is short");
    return 0;
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

/* Prometheus takes no two samples with the same labels. */
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
        print_csv(summaries, gathered->summary_count, per_process, stdout);
    else if (options->format == PROMETHEUS)
        print_prometheus(summaries, gathered->summary_count, per_process, stdout);
    else if (options->format == TABLE)
        print_summary_table(&summaries[0], stdout);
    else if (options->format == HTML)
        return print_html(&summaries[0], stdout);
    else
        return print_json(summary_to_json(&summaries[0]), stdout);
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
    const struct summary *a = &gathered->summaries[0], *b = &gathered->summaries[1];
    if (options->format == TABLE)
        print_comparison_table(a, b, stdout);
    else if (options->format == CSV)
        print_comparison_csv(a, b, stdout);
    else if (print_json(comparison_to_json(a, b), stdout) != 0)
        return complain("memory is short");
    return 0;
}

/* --- the command line ---------------------------------------------------------------------------
 */

static int choose_format(const char *name, enum format *format)
{
    for (*format = 0; *format < FORMATS; ++*format)
        if (strcmp(format_names[*format], name) == 0)
            return 0;
    return complain("report: --format: found \"%s\", allowed is table, json, csv, html or "
                    "prometheus",
                    name);
}

/* Whether what was asked for goes together. */
static int check_options(const struct options *options)
{
    if (options->count == 0)
        return complain("report: no file given; usage: cudapool report [--format FORMAT] "
                        "[--merge] FILE...");
    if (!options->compare)
        return 0;
    if (options->count != 2)
        return complain("report: --compare: found %zu files, allowed are two", options->count);
    if (options->format == HTML || options->format == PROMETHEUS)
        return complain("report: --compare: found --format %s, allowed is table, json or csv",
                        format_names[options->format]);
    return 0;
}

static int read_options(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {{"format", required_argument, NULL, 'f'},
                                          {"merge", no_argument, NULL, 'm'},
                                          {"compare", no_argument, NULL, 'c'},
                                          {0}};
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, ":", known, NULL)) != -1) {
        if (option == 'f')
            status = choose_format(optarg, &options->format);
        else if (option == 'm')
            options->merge = true;
        else if (option == 'c')
            options->compare = true;
        else
            status = complain("report: %s %s; allowed are --format FORMAT, --merge and --compare",
                              option == ':' ? "a value is missing after" : "unknown option",
                              argv[optind - 1]);
    }
    options->files = argv + optind;
    options->count = (size_t)(argc - optind);
    return status != 0 ? status : check_options(options);
}

static int report(int argc, char **argv)
{
    struct options options = {0};
    struct gathered gathered = {0};
    int status = read_options(argc, argv, &options);

    if (status != 0)
        return status;
    if (options.compare)
        status = print_comparison(&options, &gathered);
    else if (options.format == TABLE && !options.merge)
        status = print_tables(&options);
    else if (options.format == JSON && !options.merge)
        status = print_reports_as_json(&options, &gathered);
    else
        status = print_summarized(&options, &gathered);
    free_gathered(&gathered);
    return finish_output(status);
}

const struct command report_command = {
    .name = "report",
    .summary = "show what reports in JSON say: as a table, a page, and more",
    .help =
        "usage: cudapool report [--format FORMAT] [--merge] FILE...\n"
        "       cudapool report [--format FORMAT] --compare A B\n"
        "\n"
        "Shows reports in JSON (written by `cudapool run --report FILE`, with "
        "CUDAPOOL_REPORT=FILE,\n"
        "or the settings report.at_exit and report.file), which may hold several processes, and "
        "files\n"
        "of figures, which processes keep while they run and leave when they are killed.\n"
        "\n"
        "  --format table       as a process prints it when it ends (the default)\n"
        "           json        the reports as they are in files; merged or compared, see\n"
        "                       report.schema.json\n"
        "           csv         a line for each bucket (RFC 4180); bytes and nanoseconds\n"
        "           html        one page, of all files together, with advice on the settings\n"
        "           prometheus  for node_exporter's textfile collector\n"
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
        "  saved at least  hits times what an undisturbed allocation and free of that size took\n"
        "\n"
        "Exit status: 0; 1 where the output cannot be written; 2 for bad input. As a table "
        "without\n"
        "--merge, the files after a bad one are shown as well.\n",
    .run = report,
};
