/*
 * What goes wrong, told on stderr; and the exit statuses that say so.
 */
#ifndef CUDAPOOL_TOOLS_COMPLAINT_H
#define CUDAPOOL_TOOLS_COMPLAINT_H

/* Exit statuses: the input is wrong; a program cannot be run; a program cannot be found. */
#define EXIT_BAD_INPUT  2
#define EXIT_CANNOT_RUN 126
#define EXIT_NOT_FOUND  127

/* Room for one error line. */
#define ERROR_BYTES 1024

/* Prints "cudapool: " and the message, as one line, on stderr. Returns EXIT_BAD_INPUT. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Complains of a line that another module has made: a document_complaint (document_json.h). */
void complain_of(const char *line, void *context);

/* Has stdout remember why writing failed, where it is no terminal. To be called first. */
void begin_output(void);

/* Writes what was printed on stdout. The exit status: the given one, or that of a failed write. */
int finish_output(int status);

#endif
