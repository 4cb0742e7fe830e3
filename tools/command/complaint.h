/*
 * Error messages on stderr, the exit statuses that go with them, and write errors of stdout.
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

/* A document_complaint (document_json.h): complains of a line that another module made. */
void complain_of(const char *line, void *context);

/* Makes stdout remember why a write failed, unless it is a terminal. To be called first. */
void begin_output(void);

/* Flushes stdout. Returns the given exit status, or EXIT_FAILURE if that is 0 and a write failed,
 * after a complaint. */
int finish_output(int status);

#endif
