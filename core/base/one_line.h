/*
 * Text from outside, in a message of one line.
 *
 * A key, a file name or a variable may hold anything; a terminal or a log shall see one line of it
 * and no control sequences. Any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_ONE_LINE_H
#define CUDAPOOL_CORE_ONE_LINE_H

static inline void replace_control_characters(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

#endif
