/*
 * Spells values as a settings file does (advice_case.h).
 */
#include "advice_case.h"

#include <stdio.h>

#include "core/settings/quantity_json.h"

void spell_size(const struct byte_size *size, char text[64])
{
    if (size->unlimited)
        snprintf(text, 64, "null");
    else if (!(size->percent > 0) && size->bytes == 0)
        snprintf(text, 64, "0");
    else
        size_to_text(size, "", text);
}

void spell_bytes(uint64_t bytes, char text[64])
{
    bytes_to_text(bytes, "", text);
}
