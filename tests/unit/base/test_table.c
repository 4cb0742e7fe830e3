/*
 * Tables on terminals: what is left out where they are narrow, and that everything is there where
 * the output goes elsewhere. Long times and dates, as people read them.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/readable.h"
#include "core/base/table.h"
#include "core/figures/report.h"

#define CELL 16

static const struct table_column columns[] = {
    {"name", 0}, {"first", 1}, {"second", 2}, {"third", 3}, {"zero", 1}};
#define COLUMNS ((int)(sizeof(columns) / sizeof(columns[0])))

static const char rows[2][sizeof(columns) / sizeof(columns[0])][CELL] = {
    {"one", "11", "222", "3333", "0"},
    {"another", "1", "2", "3", "0 B"},
};

static char output[4096];

static const char *print(const struct look *look)
{
    struct table table;
    FILE *out = fmemopen(output, sizeof(output), "w");

    table_begin(&table, columns, COLUMNS, CELL, look);
    for (int i = 0; i < 2; i++)
        table_measure(&table, rows[i][0]);
    table_fit(&table);
    table_print_headings(&table, out);
    for (int i = 0; i < 2; i++) {
        fputc('\n', out);
        table_print(&table, rows[i][0], NULL, out);
    }
    fclose(out);
    return output;
}

Test(table, output_that_is_no_terminal_is_whole)
{
    cr_assert_str_eq(print(&look_of_files), "     name  first  second  third  zero\n"
                                            "      one     11     222   3333     0\n"
                                            "  another      1       2      3   0 B");
}

Test(table, on_a_terminal_what_is_zero_goes_and_then_what_does_not_fit)
{
    struct look look = {.width = 31};

    cr_expect_str_eq(print(&look), "     name  first  second  third\n"
                                   "      one     11     222   3333\n"
                                   "  another      1       2      3");
    look.width = 30;
    cr_expect_str_eq(print(&look), "     name  first  second\n"
                                   "      one     11     222\n"
                                   "  another      1       2");
    look.width = 1;
    cr_expect_str_eq(print(&look), "     name\n      one\n  another");
    look.all = true;
    cr_expect_not_null(strstr(print(&look), "zero"));
}

Test(table, colours_take_no_room)
{
    struct look look = {.width = 100, .colour = true};

    cr_expect_not_null(strstr(print(&look), "  \x1b[1mfirst\x1b[0m"));
    cr_expect_eq(text_width("\x1b[1mfirst\x1b[0m"), 5);
    cr_expect_eq(text_width("gr\xc3\xb6\xc3\x9f"
                            "e"),
                 5);
}

/* The text as it comes out of a fold at this width. */
static const char *fold(const char *text, int width)
{
    struct look look = {.width = width};
    FILE *out = fmemopen(output, sizeof(output), "w");

    print_folded(text, &look, out);
    fclose(out);
    return output;
}

Test(table, lines_are_folded_at_spaces)
{
    static const char text[] = "  one two three four five six\n\nseven\n";

    cr_expect_str_eq(fold(text, 0), text);
    cr_expect_str_eq(fold(text, 80), text);
    cr_expect_str_eq(fold(text, 20), "  one two three four\n      five six\n\nseven\n");
    cr_expect_str_eq(fold("abcdefghijklmnopqrstuvwxyz\n", 20), "abcdefghijklmnopqrstuvwxyz\n");
    cr_expect_str_eq(fold("\x1b[1maaaaaaaaaa bbbbbbbbb\x1b[0m c\n", 20),
                     "\x1b[1maaaaaaaaaa bbbbbbbbb\x1b[0m\n    c\n");
}

static const char *cut_off(const char *text, int width)
{
    FILE *out = fmemopen(output, sizeof(output), "w");

    memset(output, 0, sizeof(output));
    print_cut_off(text, width, out);
    fclose(out);
    return output;
}

Test(table, columns_that_are_left_out_for_width_are_told)
{
    static const struct {
        int width;
        const char *left_out;
    } cases[] = {
        {0, NULL}, {40, NULL}, {25, "third"}, {20, "second, third"}, {10, "first, second, third"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct look look = {.width = cases[i].width, .more = "--all"};
        char names[TABLE_NAMES_BYTES];
        struct table table;
        print(&look);
        table_begin(&table, columns, COLUMNS, CELL, &look);
        for (int j = 0; j < 2; j++)
            table_measure(&table, rows[j][0]);
        table_fit(&table);
        cr_expect_eq(table_left_out(&table, names, sizeof(names)), cases[i].left_out != NULL);
        cr_expect_str_eq(names, cases[i].left_out == NULL ? "" : cases[i].left_out);
    }
}

Test(table, text_is_cut_off_with_an_ellipsis)
{
    cr_expect_str_eq(cut_off("abcdef", 6), "abcdef");
    cr_expect_str_eq(cut_off("abcdefg", 6), "abc...");
    cr_expect_str_eq(cut_off("\xc3\xb6\xc3\xb6\xc3\xb6\xc3\xb6\xc3\xb6", 4), "\xc3\xb6...");
    cr_expect_str_eq(cut_off("\x1b\x1b\x1b", 8), "\\x1b...");
    cr_expect_str_eq(cut_off("a\x1b[31mb", 80), "a\\x1b[31mb");
}

Test(table, long_times_have_days_and_hours)
{
    static const struct {
        uint64_t seconds;
        const char *text;
    } times[] = {{1, "1.0 s"},     {59, "59.0 s"},       {60, "1m 0s"},      {754, "12m 34s"},
                 {3600, "1h 0m"},  {11520, "3h 12m"},    {86399, "23h 59m"}, {86400, "1d 0h"},
                 {93784, "1d 2h"}, {31536000, "365d 0h"}};
    char text[READABLE_BYTES];

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        readable_time(times[i].seconds * 1000000000, text);
        cr_expect_str_eq(text, times[i].text);
    }
    readable_time(UINT64_MAX, text);
    cr_expect_str_eq(text, "213503d 23h");
}

Test(table, dates_are_those_of_the_calendar)
{
    static const struct {
        uint64_t seconds;
        const char *text;
    } dates[] = {
        {0, "1970-01-01 00:00:00 UTC"},          {951782400, "2000-02-29 00:00:00 UTC"},
        {951868799, "2000-02-29 23:59:59 UTC"},  {1795348453, "2026-11-22 11:54:13 UTC"},
        {4107542400, "2100-03-01 00:00:00 UTC"}, {18446744073, "2554-07-21 23:34:33 UTC"},
    };
    char text[READABLE_BYTES];

    for (size_t i = 0; i < sizeof(dates) / sizeof(dates[0]); i++) {
        readable_date(dates[i].seconds * 1000000000, text);
        cr_expect_str_eq(text, dates[i].text);
    }
}

/* --- where a report comes from ------------------------------------------------------------------
 */

Test(table, the_release_of_the_driver_is_found_in_what_the_kernel_says)
{
    char release[32];

    report_driver_release("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 "
                          "18:56:32 UTC 2023\nGCC version:  gcc version 12.2.0\n",
                          release, sizeof(release));
    cr_expect_str_eq(release, "535.129.03");
    report_driver_release("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  "
                          "Release Build  (dvs-builder)\n",
                          release, sizeof(release));
    cr_expect_str_eq(release, "580.159.04");
    report_driver_release("", release, sizeof(release));
    cr_expect_str_eq(release, "");
    report_driver_release("no release 1 in 2023 here", release, sizeof(release));
    cr_expect_str_eq(release, "");
    report_driver_release("1234.5678901234567890123456789012345", release, sizeof(release));
    cr_expect_str_eq(release, "");
}

Test(table, an_origin_is_what_is_known_of_it)
{
    struct report_versions versions = {.cudapool = "0.1.0", .driver = "580.1", .cuda = 13010};
    char text[REPORT_ORIGIN_BYTES];

    report_describe_origin(&versions, UINT64_C(1795348453000000000), text);
    cr_expect_str_eq(text, "cudapool 0.1.0, driver 580.1 (CUDA 13.1), 2026-11-22 11:54:13 UTC");
    versions.driver[0] = '\0';
    report_describe_origin(&versions, 0, text);
    cr_expect_str_eq(text, "cudapool 0.1.0, CUDA 13.1");
    report_describe_origin(&(struct report_versions){.cudapool = "\x1b"}, 0, text);
    cr_expect_str_eq(text, "cudapool \\x1b");
    report_describe_origin(&(struct report_versions){.cuda = 0}, 0, text);
    cr_expect_str_eq(text, "");
}
