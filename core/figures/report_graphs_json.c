/*
 * The report's counters of memory that graphs keep, as JSON (report_graphs_json.h). One table, made
 * of graph_counts.def, serves writing and reading.
 */
#include "report_graphs_json.h"

#include <stddef.h>

#include "core/settings/document_json.h"
#include "report_counters_json.h"

/* All counters, in the order of the document. */
static const struct {
    const char *key;
    size_t offset;
} counts[] = {
#define COUNT(name, merged) {#name, offsetof(struct report_graphs, name)},
#include "graph_counts.def"
#undef COUNT
};
#define COUNTS (sizeof counts / sizeof *counts)

int report_add_graphs(json_t *root, const struct report_graphs *graphs)
{
    if (!graphs->told)
        return 0;
    json_t *object = json_object();
    int status = 0;
    for (size_t i = 0; i < COUNTS; i++) {
        const uint64_t *count = (const void *)((const char *)graphs + counts[i].offset);
        status |= json_object_set_new(object, counts[i].key, report_count_to_json(*count));
    }
    return json_object_set_new(root, "graphs", json_unless_failed(object, status));
}

int report_read_graphs(const struct object *root, struct report_graphs *graphs)
{
    static const char *known[COUNTS + 1];
    struct object entered;

    if (object_leaves_out(root, "graphs", true))
        return 0;
    for (size_t i = 0; i < COUNTS; i++)
        known[i] = counts[i].key;
    if (object_enter(root, "graphs", &entered) != 0 ||
        object_refuse_unknown_keys(&entered, known) != 0)
        return -1;
    for (size_t i = 0; i < COUNTS; i++)
        if (object_read_count(&entered, counts[i].key,
                              (uint64_t *)(void *)((char *)graphs + counts[i].offset)) != 0)
            return -1;
    graphs->told = true;
    return 0;
}
