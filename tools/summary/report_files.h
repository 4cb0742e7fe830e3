/*
 * Reads the files that `cudapool report` accepts: reports in JSON, of one process or of several,
 * and files of figures (core/figures/figures_file.h).
 */
#ifndef CUDAPOOL_TOOLS_REPORT_FILES_H
#define CUDAPOOL_TOOLS_REPORT_FILES_H

#include "core/figures/report_json.h"

/* Works like reports_read_json (core/figures/report_json.h): it also reads pipes, and "-" is stdin.
 * A path that `cudapool run` made to collect reports is removed from the report's settings. */
int report_files_read(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes);

#endif
