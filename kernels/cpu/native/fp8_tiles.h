// Tiles of fp8 weights: 32 outputs by all inputs, in e4m3 with a scale per output and stretch of
// inputs. A tile's codes are unpacked to bfloat16, which holds them exactly, into the thread's own
// memory, and multiplied from there. Each stretch is summed from zero, scaled in float32, and added
// in order, whatever the number of rows. Needs linear.h's tiles and fp8.h.

namespace hasten::HASTEN_ISA {

// An unpacked tile: groups per stretch (int32, padded to 64 bytes), scales, words of two inputs.
inline void unpack_fp8_tile(const PackedWeight& w, const uint8_t* from, uint8_t* to) {
  std::memcpy(to, &w.scale_groups, sizeof w.scale_groups);
  std::memcpy(to + 64, from, w.fp8_scale_bytes());
  from += w.fp8_scale_bytes();
  to += 64 + w.fp8_scale_bytes();
  for (int i = 0; i < w.groups() * kGroup; ++i, from += 32, to += 64) {
    istore(to, decode_to_bf16(from));
  }
}

template <int R>
void fp8_kernel(const TileInput& x, const uint8_t* w, int groups, float* out) {
  int32_t scale_groups;
  std::memcpy(&scale_groups, w, sizeof scale_groups);
  const auto* scales = reinterpret_cast<const float*>(w + 64);
  const int stretches = (groups + scale_groups - 1) / scale_groups;
  w += 64 + sizeof(float) * kTileCols * static_cast<size_t>(stretches);
  F16x total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = zero();
  const uint32_t* words = x.words;
  for (int left = groups; left > 0; left -= scale_groups, scales += kTileCols) {
    F16x sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    const int count = (left < scale_groups ? left : scale_groups) * DenseBf16::kWords;
    for (int k = 0; k < count; ++k, w += 128, words += R) {
      const I16x w0 = iload(w), w1 = iload(w + 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sum[r][0] = DenseBf16::dot(sum[r][0], w0, words[r]);
        sum[r][1] = DenseBf16::dot(sum[r][1], w1, words[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      total[r][0] = fma(sum[r][0], load(scales), total[r][0]);
      total[r][1] = fma(sum[r][1], load(scales + kLanes), total[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(out + r * kTileCols, total[r][0]);
    store(out + r * kTileCols + kLanes, total[r][1]);
  }
}

template <int R = kTallTile>
constexpr void fill_fp8(TileKernels& table) {
  table.of[R - 1] = fp8_kernel<R>;
  if constexpr (R > 1) fill_fp8<R - 1>(table);
}

constexpr TileKernels make_fp8_kernels() {
  TileKernels table{};
  fill_fp8(table);
  return table;
}

// For unpacked tiles.
inline const TileKernels& fp8_tile_kernels() {
  static constexpr TileKernels kernels = make_fp8_kernels();
  return kernels;
}

// One output's weights as numbers.
inline void fp8_row(const PackedWeight& w, int row, float* out) {
  const uint8_t* tile = w.data + static_cast<size_t>(row / kTileCols) * w.tile_bytes();
  const auto* scales = reinterpret_cast<const float*>(tile) + row % kTileCols;
  const uint8_t* codes = tile + w.fp8_scale_bytes() + 2 * (row % kTileCols);
  for (int k = 0; k < w.width; k += kLanes) {
    int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = codes[(k + i) / 2 * 2 * kTileCols + i % 2];
    const float scale = scales[k / kGroup / w.scale_groups * kTileCols];
    store(out + k, decode_e4m3(iload(lanes)) * splat(scale));
  }
}

}  // namespace hasten::HASTEN_ISA
