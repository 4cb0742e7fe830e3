/*
 * Finds files of figures: those of all of this user's processes. The search covers the usual
 * directories only, so it misses files of processes whose settings name another directory.
 */
#ifndef CUDAPOOL_TOOLS_FIGURES_SEARCH_H
#define CUDAPOOL_TOOLS_FIGURES_SEARCH_H

/* Called with the path of each file. */
typedef void figures_visitor(const char *path, void *context);

/* Visits the files in the directories that core/figures/figures_file.h names, and in the
 * directories that `cudapool run` makes beside them. */
void figures_search(figures_visitor *visit, void *context);

/* Visits the files in one directory. Returns 0, or -1 with errno. */
int figures_search_in(const char *directory, figures_visitor *visit, void *context);

#endif
