/*
 * Stores and compares the outputs of runs (trial_output.h).
 */
#include "trial_output.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/one_line.h"
#include "tools/command/complaint.h"

/* --- keeping ------------------------------------------------------------------------------------
 */

static int complain_of_keeping(void)
{
    return complain("the program's output cannot be kept: %s", strerror(errno));
}

int outputs_append(struct outputs *outputs, FILE *from, struct output_span *kept)
{
    char buffer[65536];
    size_t got;

    if (outputs->file == NULL)
        outputs->file = tmpfile();
    if (outputs->file == NULL)
        return complain_of_keeping();
    *kept = (struct output_span){.at = outputs->bytes};
    rewind(from);
    while ((got = fread(buffer, 1, sizeof(buffer), from)) > 0) {
        if (fwrite(buffer, 1, got, outputs->file) != got)
            return complain_of_keeping();
        kept->bytes += got;
    }
    if (ferror(from) != 0 || fflush(outputs->file) != 0)
        return complain_of_keeping();
    outputs->bytes += kept->bytes;
    return 0;
}

void outputs_free(struct outputs *outputs)
{
    if (outputs->file != NULL)
        fclose(outputs->file);
    *outputs = (struct outputs){0};
}

/* --- lines --------------------------------------------------------------------------------------
 */

/* A line with its end of line. left is the number of bytes after it. */
struct line {
    const char *text;
    size_t length, left;
    bool is_there;
};

static struct line first_line(const char *all, const struct output_span *output)
{
    return (struct line){.text = all == NULL ? "" : all + output->at, .left = output->bytes};
}

static void read_line(struct line *line)
{
    line->text += line->length;
    line->is_there = line->left > 0;
    const char *end = line->is_there ? memchr(line->text, '\n', line->left) : NULL;
    line->length = end == NULL ? line->left : (size_t)(end - line->text) + 1;
    line->left -= line->length;
}

static bool is_same(const struct line *one, const struct line *other)
{
    return one->is_there == other->is_there && one->length == other->length &&
           (one->length == 0 || memcmp(one->text, other->text, one->length) == 0);
}

static bool is_digit(const struct line *line, size_t i)
{
    return i < line->length && line->text[i] >= '0' && line->text[i] <= '9';
}

/* Returns the index after the digits and points of a number. */
static size_t skip_number(const struct line *line, size_t i)
{
    while (is_digit(line, i) || (i < line->length && line->text[i] == '.'))
        i++;
    return i;
}

/* Whether the lines are the same without their numbers and spaces. Spaces align numbers in
 * columns. */
static bool is_same_without_numbers(const struct line *one, const struct line *other)
{
    size_t i = 0, j = 0;

    if (one->is_there != other->is_there)
        return false;
    while (i < one->length || j < other->length) {
        while (i < one->length && one->text[i] == ' ')
            i++;
        while (j < other->length && other->text[j] == ' ')
            j++;
        bool digits = is_digit(one, i) && is_digit(other, j);
        if (!digits && (i >= one->length || j >= other->length || one->text[i] != other->text[j]))
            return i >= one->length && j >= other->length;
        i = digits ? skip_number(one, i) : i + 1;
        j = digits ? skip_number(other, j) : j + 1;
    }
    return true;
}

static void cut_line(const struct line *line, char text[OUTPUT_LINE_BYTES])
{
    size_t copied = line->length < OUTPUT_LINE_BYTES - 1 ? line->length : OUTPUT_LINE_BYTES - 1;

    for (size_t i = 0; i < copied; i++)
        text[i] = (char)(line->text[i] == '\0' ? ' ' : line->text[i]);
    text[copied] = '\0';
    size_t kept = whole_characters(text, OUTPUT_LINE_BYTES - 4);
    while (kept > 0 && strchr(" \r\n", text[kept - 1]) != NULL)
        kept--;
    snprintf(text + kept, OUTPUT_LINE_BYTES - kept, "%s", line->length > kept + 4 ? "..." : "");
}

/* --- comparing ----------------------------------------------------------------------------------
 */

static size_t count_lines(const char *all, const struct output_span *output)
{
    struct line line = first_line(all, output);
    size_t count = 0;

    for (read_line(&line); line.is_there; read_line(&line))
        count++;
    return count;
}

int output_reference_make(const struct outputs *outputs, const struct output_span *output,
                          struct output_reference *reference)
{
    *reference = (struct output_reference){.output = *output, .mapped_bytes = outputs->bytes};
    if (outputs->bytes > 0) {
        void *all = mmap(NULL, outputs->bytes, PROT_READ, MAP_PRIVATE, fileno(outputs->file), 0);
        if (all == MAP_FAILED)
            return complain_of_keeping();
        reference->all = all;
    }
    reference->varies = calloc(count_lines(reference->all, output) + 1, sizeof(bool));
    return reference->varies == NULL ? complain("out of memory") : 0;
}

void output_reference_free(struct output_reference *reference)
{
    if (reference->all != NULL)
        munmap((void *)(uintptr_t)reference->all, reference->mapped_bytes);
    free(reference->varies);
    *reference = (struct output_reference){0};
}

/* Whether the lines differ. Numbers are ignored unless numbers_count is set. */
static bool lines_differ(const struct line *one, const struct line *other, bool numbers_count)
{
    return !is_same(one, other) && (numbers_count || !is_same_without_numbers(one, other));
}

static bool find_difference(const struct output_reference *reference,
                            const struct output_span *output, bool alike,
                            struct output_difference *difference)
{
    struct line one = first_line(reference->all, &reference->output);
    struct line other = first_line(reference->all, output);
    bool differ = false;

    for (difference->line = 0; !differ; difference->line++) {
        read_line(&one);
        read_line(&other);
        if (!one.is_there && !other.is_there)
            return false;
        bool varies = alike || (one.is_there && reference->varies[difference->line]);
        differ = lines_differ(&one, &other, !varies);
    }
    difference->is_there[0] = one.is_there;
    difference->is_there[1] = other.is_there;
    cut_line(&one, difference->text[0]);
    cut_line(&other, difference->text[1]);
    return true;
}

static void note_what_varies(struct output_reference *reference, const struct output_span *output)
{
    struct line one = first_line(reference->all, &reference->output);
    struct line other = first_line(reference->all, output);
    size_t number = 0;

    for (read_line(&one), read_line(&other); one.is_there; read_line(&one), read_line(&other))
        reference->varies[number++] |= !is_same(&one, &other);
}

bool output_differs(struct output_reference *reference, const struct output_span *output,
                    bool alike, struct output_difference *difference)
{
    if (find_difference(reference, output, alike, difference))
        return true;
    if (alike)
        note_what_varies(reference, output);
    return false;
}
