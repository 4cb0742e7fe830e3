/*
 * Reading a settings file (config_json.h).
 */
#include "config_json.h"

#include "document_json.h"
#include "settings_json.h"

int config_read_file(const char *path, struct settings *settings, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    json_t *root = document_load(&document, SETTINGS_FILE_MAX);

    if (root == NULL)
        return -1;
    int status = settings_from_json(&document, "", root, settings);
    json_decref(root);
    return status;
}

__attribute__((visibility("default"))) int
cudapool_config_read(const char *path, struct settings *settings, char *error, size_t error_bytes)
{
    return config_read_file(path, settings, error, error_bytes);
}
