/*
 * Text from outside becomes one line that shows all there is in it; and which word a misspelt one
 * was meant to be.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/base/nearest.h"
#include "core/base/one_line.h"

static const struct {
    const char *text, *printable;
} texts[] = {
    {"", ""},
    {"./demo steps=20", "./demo steps=20"},
    {"a\nb\033[31m\x7f", "a\\x0ab\\x1b[31m\\x7f"},
    /* Letters of any script, and what stands on them. */
    {"\xc3\xa4 \xe6\x97\xa5 e\xcc\x81 \xf0\x9f\x98\x80",
     "\xc3\xa4 \xe6\x97\xa5 e\xcc\x81 \xf0\x9f\x98\x80"},
    /* C1: a control sequence introducer. */
    {"a\xc2\x9b[2Jb", "a\\u009b[2Jb"},
    /* NOLINTBEGIN(misc-misleading-bidirectional) */
    /* Bidi_Control, all of it. */
    {"\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f", "\\u061c\\u200e\\u200f"},
    {"\xe2\x80\xaa\xe2\x80\xab\xe2\x80\xac\xe2\x80\xad\xe2\x80\xae",
     "\\u202a\\u202b\\u202c\\u202d\\u202e"},
    {"\xe2\x81\xa6\xe2\x81\xa7\xe2\x81\xa8\xe2\x81\xa9", "\\u2066\\u2067\\u2068\\u2069"},
    /* NOLINTEND(misc-misleading-bidirectional) */
    /* Of no width, and ends of lines. */
    {"\xc2\xad\xe2\x80\x8b\xe2\x80\x8c\xe2\x80\x8d\xe2\x81\xa0\xef\xbb\xbf",
     "\\u00ad\\u200b\\u200c\\u200d\\u2060\\ufeff"},
    {"\xe2\x80\xa8\xe2\x80\xa9\xf3\xa0\x81\x81", "\\u2028\\u2029\\U000e0041"},
    /* No UTF-8: a lone byte, one too few, too long, a surrogate, past the last character. */
    {"a\xff", "a\\xff"},
    {"\xe2\x80", "\\xe2\\x80"},
    {"\xe2\x80 \xc3", "\\xe2\\x80 \\xc3"},
    {"\xc0\xaf\xe0\x80\xaf", "\\xc0\\xaf\\xe0\\x80\\xaf"},
    {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
    {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
};

Test(one_line, what_cannot_be_seen_is_escaped)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char text[256];
        char printed[256] = "";
        FILE *out = fmemopen(printed, sizeof(printed), "w");
        snprintf(text, sizeof(text), "%s", texts[i].text);
        make_printable(text, sizeof(text));
        cr_expect_str_eq(text, texts[i].printable);
        print_printable(texts[i].text, out);
        fclose(out);
        cr_expect_str_eq(printed, texts[i].printable);
        /* What was escaped stays as it is. */
        make_printable(text, sizeof(text));
        cr_expect_str_eq(text, texts[i].printable);
    }
}

Test(one_line, what_has_no_room_is_cut_off_between_characters)
{
    for (size_t bytes = 1; bytes < 40; bytes++) {
        char text[64];
        memset(text, 'x', sizeof(text));
        snprintf(text, bytes, "%s", "a\xc3\xa4\xc3\xa4");
        size_t before = strlen(text);
        make_printable(text, bytes);
        cr_expect_lt(strlen(text), bytes);
        cr_expect_geq(text[bytes], 'x', "written past %zu bytes", bytes);
        cr_expect(before < 2 || strncmp(text, "a", 1) == 0);
        memset(text, 'x', sizeof(text));
        snprintf(text, bytes, "%s", "\n\xc3\xa4\xc3\xa4\xc3\xa4");
        make_printable(text, bytes);
        cr_expect_eq(text[bytes], 'x', "written past %zu bytes", bytes);
    }
    char text[8] = "\n\xc3\xa4\xc3\xa4";
    make_printable(text, sizeof(text));
    cr_expect_str_eq(text, "\\x0a\xc3\xa4");
    cr_expect_eq(whole_characters("\xc3\xa4\xc3\xa4", 3), 2);
    cr_expect_eq(whole_characters("\xc3\xa4\xc3\xa4", 4), 4);
    cr_expect_eq(whole_characters("\xc3\xa4\xc3\xa4", 9), 4);
}

Test(nearest, a_misspelt_word_is_known)
{
    static const char *const words[] = {"run", "try", "report", "top", "trim", "check", "configs"};
    static const struct {
        const char *word, *meant;
    } cases[] = {{"repotr", "report"}, {"reprt", "report"},   {"rport", "report"},
                 {"tpo", "top"},       {"rn", "run"},         {"chek", "check"},
                 {"conf", "configs"},  {"config", "configs"}, {"bench", NULL},
                 {"", NULL},           {"x", NULL},           {"./solver", NULL}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *found = nearest_word(cases[i].word, words, sizeof(words) / sizeof(words[0]));
        cr_expect_str_eq(found == NULL ? "" : found, cases[i].meant == NULL ? "" : cases[i].meant,
                         "%s", cases[i].word);
    }
    cr_expect_null(nearest_word("run", words, 0));
}

Test(nearest, the_distance_counts_what_has_to_change)
{
    cr_expect_eq(edit_distance("", ""), 0);
    cr_expect_eq(edit_distance("abc", ""), 3);
    cr_expect_eq(edit_distance("", "abc"), 3);
    cr_expect_eq(edit_distance("abc", "abd"), 1);
    cr_expect_eq(edit_distance("abc", "acb"), 1);
    cr_expect_eq(edit_distance("abcd", "badc"), 2);
    cr_expect_eq(edit_distance("kitten", "sitting"), 3);
}
