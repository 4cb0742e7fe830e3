#include "array_bytes.h"

#include <stdbool.h>
#include <stddef.h>

#include "core/base/numbers.h"

#define ROW_UNIT    UINT64_C(64)
#define BLOCK_ROWS  UINT64_C(8)
#define MOST_ROWS   UINT64_C(128) /* in a block */
#define MOST_SLICES UINT64_C(16)
#define ARRAY_UNIT  (UINT64_C(64) << 10)
#define PAGE_BYTES  (UINT64_C(2) << 20)

/* Arrays of up to that many bytes share pages. */
#define SHARED_BYTES (UINT64_C(1) << 20)

/* Arrays whose memory the program maps itself. */
#define MAPPED_LATER (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

/* The bytes of one texel of a channel, or of a block of texels. */
struct format {
    unsigned first, last; /* of CUarray_format */
    unsigned bytes;
    unsigned side;      /* texels in a row, and in a column, of a block */
    bool whole_element; /* all channels are in it */
};

static const struct format *format_of(CUarray_format format)
{
    static const struct format formats[] = {
        {0x01, 0x01, 1, 1, false}, {0x02, 0x02, 2, 1, false}, {0x03, 0x03, 4, 1, false},
        {0x08, 0x08, 1, 1, false}, {0x09, 0x09, 2, 1, false}, {0x0a, 0x0a, 4, 1, false},
        {0x10, 0x10, 2, 1, false}, {0x20, 0x20, 4, 1, false}, /* half, float */
        {0x50, 0x50, 4, 1, true},                             /* 10, 10, 10 and 2 bits */
        {0x91, 0x92, 8, 4, true},  {0x93, 0x96, 16, 4, true}, /* BC1; BC2 and BC3 */
        {0x97, 0x98, 8, 4, true},  {0x99, 0x9e, 16, 4, true}, /* BC4; BC5 to BC7 */
        {0xc0, 0xc0, 1, 1, true},  {0xc1, 0xc1, 2, 1, true},  {0xc2, 0xc2, 4, 1, true},
        {0xc3, 0xc3, 2, 1, true},  {0xc4, 0xc4, 4, 1, true},  {0xc5, 0xc5, 8, 1, true},
        {0xc6, 0xc6, 1, 1, true},  {0xc7, 0xc7, 2, 1, true},  {0xc8, 0xc8, 4, 1, true},
        {0xc9, 0xc9, 2, 1, true},  {0xca, 0xca, 4, 1, true},  {0xcb, 0xcb, 8, 1, true},
    };
    for (unsigned i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].first <= format && format <= formats[i].last)
            return &formats[i];
    return NULL;
}

/* The product of two numbers, or UINT64_MAX. */
static uint64_t times(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

static uint64_t units(uint64_t number, uint64_t unit)
{
    return number / unit + (number % unit != 0);
}

static uint64_t padded(uint64_t number, uint64_t unit)
{
    return times(units(number, unit), unit);
}

/* The least of unit, 2 * unit, 4 * unit ... that is at least the number; most at most. */
static uint64_t block_for(uint64_t number, uint64_t unit, uint64_t most)
{
    while (unit < number && unit < most)
        unit *= 2;
    return unit;
}

/* Of one level, and all of its layers. */
static uint64_t level_bytes(const struct format *format, const CUDA_ARRAY3D_DESCRIPTOR *array,
                            unsigned level)
{
    bool layered = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    bool deep = array->Depth > 0 && !layered;
    uint64_t element =
        format->whole_element ? format->bytes : (uint64_t)format->bytes * array->NumChannels;
    uint64_t width = units(larger_of(array->Width >> level, 1), format->side);
    uint64_t rows = units(larger_of(array->Height >> level, 1), format->side);
    uint64_t slices = larger_of(deep ? array->Depth >> level : array->Depth, 1);
    uint64_t row_bytes = padded(times(width, element), ROW_UNIT);
    rows = padded(rows, deep ? BLOCK_ROWS : block_for(rows, BLOCK_ROWS, MOST_ROWS));
    slices = deep ? padded(slices, block_for(slices, 1, MOST_SLICES)) : slices;
    return times(times(row_bytes, rows), slices);
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    const struct format *format = format_of(array->Format);
    uint64_t most = array->Width | array->Height | array->Depth, bytes = 0;
    if (!format || (array->Flags & MAPPED_LATER) || array->NumChannels == 3 ||
        array->NumChannels > 4)
        return 0;
    for (unsigned level = 0; level < levels || level == 0; level++) {
        if (level >= 64 || (level > 0 && most >> level == 0))
            break;
        bytes = saturating_sum(bytes, level_bytes(format, array, level));
    }
    bytes = padded(bytes, ARRAY_UNIT);
    return bytes <= SHARED_BYTES ? bytes : padded(bytes, PAGE_BYTES);
}
