/*
 * Finding files of figures: those of all processes of this user, wherever they are unless the
 * settings name a directory.
 */
#ifndef CUDAPOOL_TOOLS_FIGURES_SEARCH_H
#define CUDAPOOL_TOOLS_FIGURES_SEARCH_H

/* Is given the path of a file. */
typedef void figures_visitor(const char *path, void *context);

/* Visits the files in the directories that core/figures/figures_file.h names, and in those that
 * `cudapool run` makes beside them. */
void figures_search(figures_visitor *visit, void *context);

/* Visits the files in one directory. 0, or -1 with errno. */
int figures_search_in(const char *directory, figures_visitor *visit, void *context);

#endif
