/*
 * Files that reports come from, whatever they are: JSON, of one process or several, or figures.
 */
#ifndef CUDAPOOL_TOOLS_REPORT_FILES_H
#define CUDAPOOL_TOOLS_REPORT_FILES_H

#include "core/figures/report_json.h"

/* As reports_read_json; pipes are read as well, and - is stdin. Paths that `cudapool run` made to
 * collect reports are not among the settings. */
int report_files_read(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes);

#endif
