/*
 * cudapool report: the readable table, from the JSON that a process wrote when it ended.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/report.h"
#include "core/report_json.h"
#include "tool.h"

static int print_file(const char *path)
{
    struct report report;
    char error[ERROR_BYTES];

    if (report_read_json(path, &report, error, sizeof(error)) != 0)
        return complain("%s", error);
    report_print_table(&report, stdout);
    report_free(&report);
    return 0;
}

/* Every file is printed, also after a bad one. */
static int report(int argc, char **argv)
{
    int status = 0;

    if (argc < 2)
        return complain("report: no file given; usage: cudapool report FILE...");
    for (int i = 1; i < argc; i++) {
        int file_status = print_file(argv[i]);
        if (file_status != 0)
            status = file_status;
    }
    return finish_output(status);
}

const struct command report_command = {
    .name = "report",
    .summary = "print the table of reports in JSON",
    .help = "usage: cudapool report FILE...\n"
            "\n"
            "Prints the table that a process prints when it ends, from reports in JSON (written\n"
            "with CUDAPOOL_REPORT=FILE, or the settings report.at_exit and report.file).\n"
            "\n"
            "  requests   allocations, failed ones included\n"
            "  hits       the share of them that the pool answered, by what each needed:\n"
            "  clean      a block that nothing on the GPU could still be using\n"
            "  queried    a block whose fence turned out to be completed\n"
            "  barrier    a block behind a context barrier\n"
            "  waited     a block whose fence was waited for\n"
            "  misses     allocations that the driver answered\n"
            "  peak       the most that the blocks took, in use and free together\n"
            "  evicted    free blocks given back: over a cap, unused, or memory ran out\n"
            "  driver     time in driver calls made for the bucket\n"
            "  saved      time that the same number of driver calls would have taken\n",
    .run = report,
};
