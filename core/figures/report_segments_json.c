/*
 * Writes and reads the segments of a device as JSON (report_segments_json.h).
 */
#include "report_segments_json.h"

#include "report_json.h"

int report_add_segments_to_json(json_t *device, const struct report_segments *segments)
{
    json_t *object;
    int status = 0;

    if (segments->cuts == 0)
        return 0;
    object = json_object();
    status |= json_object_set_new(object, "count", report_count_to_json(segments->count));
    status |= json_object_set_new(object, "bytes", report_count_to_json(segments->bytes));
    status |=
        json_object_set_new(object, "spare_bytes", report_count_to_json(segments->spare_bytes));
    status |= json_object_set_new(object, "cuts", report_count_to_json(segments->cuts));
    status |= json_object_set_new(object, "refused_exports",
                                  report_count_to_json(segments->refused_exports));
    return status | json_object_set_new(device, "segments", object);
}

int report_read_segments(const struct object *device, struct report_segments *segments)
{
    static const char *const known[] = {"count", "bytes",           "spare_bytes",
                                        "cuts",  "refused_exports", NULL};
    struct object object;

    if (json_object_get(device->value, "segments") == NULL)
        return 0;
    if (object_enter(device, "segments", &object) != 0 ||
        object_refuse_unknown_keys(&object, known) != 0 ||
        object_read_count(&object, "count", &segments->count) != 0 ||
        object_read_count(&object, "bytes", &segments->bytes) != 0 ||
        object_read_count(&object, "spare_bytes", &segments->spare_bytes) != 0 ||
        object_read_count(&object, "cuts", &segments->cuts) != 0)
        return -1;
    return object_read_count(&object, "refused_exports", &segments->refused_exports);
}
