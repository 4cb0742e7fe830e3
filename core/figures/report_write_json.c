/*
 * Writes files of reports (report_json.h).
 *
 * The commands and the preload object use the same code. In a process that ends,
 * cudapool_report_write has jansson take its memory from scratch.h, so that malloc is not called.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "core/base/scratch.h"
#include "core/base/writing.h"
#include "core/settings/document_json.h"
#include "report_file_json.h"
#include "report_json.h"

/* The reports as text that ends with a newline; the caller frees it with scratch_free. NULL where
 * memory is short. */
static char *reports_to_text(const struct report *reports, size_t count, size_t *bytes)
{
    /* 15 digits print 1.15 as 1.15. ASCII prevents a name from sending control characters to a
     * terminal. */
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(15) | JSON_ENSURE_ASCII;
    json_t *root = reports_to_json(reports, count);
    size_t length = root == NULL ? 0 : json_dumpb(root, NULL, 0, flags);
    char *text = length == 0 ? NULL : scratch_malloc(length + 1);

    if (text != NULL) {
        json_dumpb(root, text, length, flags);
        text[length] = '\n';
        *bytes = length + 1;
    }
    json_decref(root);
    return text;
}

static int write_reports(const struct report *reports, size_t count, const char *path,
                         uint64_t deadline, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    char buffer[32];
    size_t bytes;
    char *text = reports_to_text(reports, count, &bytes);

    if (text == NULL)
        return document_fail(&document, NULL, "the report does not fit in memory");
    int status = report_file_write(path, text, bytes, deadline);
    if (status != 0)
        document_fail(&document, NULL, "the report cannot be written: %s",
                      error_text(errno, buffer));
    scratch_free(text);
    return status;
}

int reports_write_json(const struct report *reports, size_t count, const char *path, char *error,
                       size_t error_bytes)
{
    return write_reports(reports, count, path, writing_deadline(WRITING_PATIENCE), error,
                         error_bytes);
}

int report_write_json(const struct report *report, const char *path, char *error,
                      size_t error_bytes)
{
    return reports_write_json(report, 1, path, error, error_bytes);
}

/* ---- at the end of a process ----
 * The program may use this copy of jansson, too, and other threads may be in it now. They must get
 * memory from jansson's previous functions: the program's malloc may differ from another
 * library's. */

static json_malloc_t malloc_before;
static json_free_t free_before;

static void *take(size_t bytes)
{
    return scratch_is_mine() ? scratch_malloc(bytes) : malloc_before(bytes);
}

static void give_back(void *memory)
{
    if (!scratch_has(memory))
        free_before(memory);
}

__attribute__((visibility("default"))) int cudapool_report_write(const struct report *report,
                                                                 const char *path,
                                                                 uint64_t deadline, char *error,
                                                                 size_t error_bytes)
{
    if (!scratch_begin()) {
        snprintf(error, error_bytes, "%s: the report is being written already", path);
        return -1;
    }
    json_get_alloc_funcs(&malloc_before, &free_before);
    json_set_alloc_funcs(take, give_back);
    int status = write_reports(report, 1, path, deadline, error, error_bytes);
    json_set_alloc_funcs(malloc_before, free_before);
    scratch_end();
    return status;
}
