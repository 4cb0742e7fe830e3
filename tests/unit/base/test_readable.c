/*
 * Numbers with units, for people. All rounding is down.
 */
#include <criterion/criterion.h>

#include "core/base/readable.h"

Test(readable, bytes_are_rounded_down_to_a_tenth)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1126, "1.0 KiB"},
        {1127, "1.1 KiB"},
        {2047, "1.9 KiB"},
        {(UINT64_C(1) << 20) + 104857, "1.0 MiB"},
        {(UINT64_C(1) << 20) + 104858, "1.1 MiB"},
        {(UINT64_C(1) << 40) - 1, "1023.9 GiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cell[READABLE_BYTES];
        readable_bytes(cases[i].bytes, cell);
        cr_expect_str_eq(cell, cases[i].text, "%s, not %s", cell, cases[i].text);
    }
}
