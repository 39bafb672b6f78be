// Weights into the tile layouts that the linear kernels read (ops.h, PackedWeight).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops.h"

namespace hasten {

// Integers of [rows, width] with a scale (and offset) per group of `group_size` inputs, a multiple
// of 32; the scales are float16 bits or float32. `q` is [rows, width / 2] for four bits, even
// inputs in the low halves, and [rows, width] int8 for eight.
struct IntegerSource {
  const uint8_t* q;
  const void* scales;   // [rows, width / group_size]
  const void* offsets;  // like `scales`, or null
  int rows;
  int width;
  int group_size;
};

void pack_integers(const IntegerSource& from, const PackedWeight& shape, uint8_t* to);

// float32 numbers of [rows, width], into bfloat16 or float32 tiles.
void pack_dense(const float* from, int rows, int width, const PackedWeight& shape, uint8_t* to);

}  // namespace hasten
