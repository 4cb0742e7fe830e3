/*
 * The elements that the HTML pages of reports are made of (html.h).
 */
#include "html.h"

#include <inttypes.h>

#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "html_style.h"

void open_page(FILE *out, const char *title)
{
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" "
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            "<meta name=\"color-scheme\" content=\"light dark\">\n"
            "<title>%s</title>\n<style>\n",
            title);
    fputs(html_style, out);
    fputs("</style></head><body>\n", out);
}

void close_page(FILE *out)
{
    fputs("</main></body></html>\n", out);
}

void put_text(FILE *out, const char *text)
{
    char piece[PRINTABLE_BYTES];

    while (*text != '\0') {
        take_printable(&text, piece);
        if (*piece == '&')
            fputs("&amp;", out);
        else if (*piece == '<')
            fputs("&lt;", out);
        else if (*piece == '>')
            fputs("&gt;", out);
        else if (*piece == '"')
            fputs("&quot;", out);
        else
            fputs(piece, out);
    }
}

void put_head_cell(FILE *out, const char *text, bool is_number)
{
    fprintf(out, "<th scope=\"col\"%s>%s</th>", is_number ? " class=\"n\"" : "", text);
}

void put_head(FILE *out, const char *caption, size_t texts, const char *const *cells)
{
    fprintf(out, "<table><caption>%s</caption><thead><tr>", caption);
    for (size_t i = 0; cells[i] != NULL; i++)
        put_head_cell(out, cells[i], i >= texts);
    fputs("</tr></thead><tbody>\n", out);
}

void open_scroller(FILE *out, const char *label)
{
    fprintf(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">\n",
            label);
}

void close_scroller(FILE *out)
{
    fputs("</tbody></table></div>\n", out);
}

struct place place_of_kind(const struct report_kind *kind, const char *part)
{
    struct place place;

    snprintf(place.text, sizeof(place.text), "%.23s/%.30s", kind->kind, part);
    return place;
}

void put_number(FILE *out, const char *element, const struct place *place, const char *name,
                uint64_t value, const char *readable)
{
    fprintf(out, "<%s class=\"n\" data-key=\"", element);
    put_text(out, place->text);
    fprintf(out, "/%s\" data-value=\"%" PRIu64 "\">%s</%s>", name, value, readable, element);
}

void put_count(FILE *out, const struct place *place, const char *name, uint64_t value)
{
    char text[READABLE_BYTES];

    readable_count(value, text);
    put_number(out, "td", place, name, value, text);
}

void put_bytes(FILE *out, const struct place *place, const char *name, uint64_t value)
{
    char text[READABLE_BYTES];

    readable_bytes(value, text);
    put_number(out, "td", place, name, value, text);
}

void put_time(FILE *out, const struct place *place, const char *name, uint64_t value)
{
    char text[READABLE_BYTES];

    readable_time(value, text);
    put_number(out, "td", place, name, value, text);
}

/* Prints one part of a bar. The part is value / whole of the bar wide, rounded down to a tenth of a
 * percent. */
void put_part(FILE *out, const char *class, uint64_t value, uint64_t whole)
{
    unsigned permille =
        whole == 0 ? 0
                   : (unsigned)((unsigned __int128)(value > whole ? whole : value) * 1000 / whole);

    if (value > 0)
        fprintf(out, "<i class=\"%s\" style=\"width:%u.%u%%\"></i>", class, permille / 10,
                permille % 10);
}

void open_bar(FILE *out)
{
    fputs("<td><div class=\"bar\" aria-hidden=\"true\">", out);
}

void close_bar(FILE *out)
{
    fputs("</div></td>", out);
}

void put_legend(FILE *out, const char *const *classes, const char *const *names)
{
    fputs("<p class=\"legend\" aria-hidden=\"true\">", out);
    for (size_t i = 0; classes[i] != NULL; i++)
        fprintf(out, "<span><i class=\"%s\"></i>%s</span>", classes[i], names[i]);
    fputs("</p>\n", out);
}
