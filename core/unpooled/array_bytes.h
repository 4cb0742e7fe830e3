/*
 * How much device memory an array takes. The driver tells that only of arrays whose memory is
 * mapped later. To ask about another one of the same shape, and destroy it, would wait for the GPU.
 * So it is computed, after the layout that rows of tests/conformance hold every driver to:
 *
 * - Elements lie in rows, which are padded to 64 bytes. Compressed formats have rows of 4 x 4
 *   texels.
 * - Rows are padded to blocks of 8, 16, 32, 64 or 128: the fewest that hold all rows, 128 at most.
 * - An array with depth has blocks of 8 rows and of 1, 2, 4, 8 or 16 slices. Layers are padded as
 *   arrays without depth.
 * - Levels of a mipmapped array follow each other. The whole is padded to 64 KiB, and to pages of
 *   2 MiB if it is more than 1 MiB.
 */
#ifndef CUDAPOOL_CORE_ARRAY_BYTES_H
#define CUDAPOOL_CORE_ARRAY_BYTES_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"

/* Bytes of an array of this shape. levels: of a mipmapped array; 0: no such array. 0 where the
 * program maps the array's memory itself, and for planes of video. UINT64_MAX past 64 bits. */
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels);

#endif
