/*
 * Memory in cache lines of its own (core/base/lines.h).
 */
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "core/base/lines.h"

Test(lines, bytes_are_rounded_up_to_whole_lines)
{
    cr_assert_eq(whole_lines(0), 0);
    cr_assert_eq(whole_lines(1), 64);
    cr_assert_eq(whole_lines(64), 64);
    cr_assert_eq(whole_lines(65), 128);
}

Test(lines, memory_is_aligned_and_zero_and_can_be_written_to_its_end)
{
    static const size_t sizes[] = {1, 63, 64, 65, 1000, 4096, 16512};
    for (size_t alignment = 8; alignment <= 128; alignment *= 2)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            unsigned char *memory = allocate_apart(alignment, sizes[i]);
            size_t whole = (sizes[i] + alignment - 1) / alignment * alignment;
            cr_assert_not_null(memory);
            cr_assert_eq((uintptr_t)memory % alignment, 0);
            for (size_t j = 0; j < whole; j++)
                cr_assert_eq(memory[j], 0);
            memset(memory, 0xff, whole);
            free_apart(memory);
        }
}

Test(lines, what_cannot_be_is_refused)
{
    cr_assert_null(allocate_apart(64, SIZE_MAX));
    cr_assert_null(allocate_apart(64, SIZE_MAX - 100));
    free_apart(NULL);
}
