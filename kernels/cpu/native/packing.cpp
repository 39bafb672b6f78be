#include "packing.h"

#include <cstring>

#include "bf16.h"

namespace hasten {
namespace {

void pack_int4_row(const uint8_t* q, uint8_t* to) {
  // Byte j of step s: input 4 s + j in the low half, input 16 + 4 s + j in the high one.
  for (int i = 0; i < kGroup / 2; ++i) {
    const int low = (q[i / 2] >> (i % 2 * 4)) & 15;
    const int high = (q[kGroup / 4 + i / 2] >> (i % 2 * 4)) & 15;
    to[i / 4 * 4 * kTileCols + i % 4] = static_cast<uint8_t>(low | high << 4);
  }
}

void pack_int8_row(const uint8_t* q, uint8_t* to) {
  for (int i = 0; i < kGroup; ++i) {
    to[i / 4 * 4 * kTileCols + i % 4] = static_cast<uint8_t>(q[i] ^ 0x80);
  }
}

}  // namespace

void pack_integers(const IntegerSource& from, const PackedWeight& shape, uint8_t* to) {
  const bool is_int4 = shape.format == WeightFormat::kInt4;
  const size_t row_bytes = static_cast<size_t>(is_int4 ? from.width / 2 : from.width);
  const size_t quants = static_cast<size_t>(kTileCols * (is_int4 ? kGroup / 2 : kGroup));
  const size_t item = shape.scale_bytes();
  const size_t scales_per_row = static_cast<size_t>(from.width / from.group_size);
  const auto* scales = static_cast<const uint8_t*>(from.scales);
  const auto* offsets = static_cast<const uint8_t*>(from.offsets);
  for (int row = 0; row < from.rows; ++row) {
    const size_t lane = static_cast<size_t>(row % kTileCols);
    uint8_t* group = to + static_cast<size_t>(row / kTileCols) * shape.tile_bytes();
    const uint8_t* q = from.q + static_cast<size_t>(row) * row_bytes;
    for (int g = 0; g < shape.groups(); ++g, group += shape.group_bytes()) {
      const size_t at = static_cast<size_t>(row) * scales_per_row +
                        static_cast<size_t>(g * kGroup / from.group_size);
      if (is_int4) {
        pack_int4_row(q + g * kGroup / 2, group + 4 * lane);
      } else {
        pack_int8_row(q + g * kGroup, group + 4 * lane);
      }
      std::memcpy(group + quants + lane * item, scales + at * item, item);
      if (offsets != nullptr) {
        std::memcpy(group + quants + (kTileCols + lane) * item, offsets + at * item, item);
      }
    }
  }
}

void pack_dense(const float* from, int rows, int width, const PackedWeight& shape, uint8_t* to) {
  const bool is_bf16 = shape.format == WeightFormat::kBf16;
  for (int row = 0; row < rows; ++row) {
    uint8_t* tile = to + static_cast<size_t>(row / kTileCols) * shape.tile_bytes();
    const float* values = from + static_cast<size_t>(row) * static_cast<size_t>(width);
    for (int k = 0; k < width; ++k) {
      if (is_bf16) {
        const uint16_t bits = round_to_bf16(values[k]);
        std::memcpy(tile + (k / 2 * kTileCols + row % kTileCols) * 4 + k % 2 * 2, &bits, 2);
      } else {
        std::memcpy(tile + (k * kTileCols + row % kTileCols) * 4, &values[k], 4);
      }
    }
  }
}

}  // namespace hasten
