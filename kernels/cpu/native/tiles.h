// Tiles of products: 32 outputs of a packed weight by up to kTallTile rows, in registers over all
// inputs. The sums run over the inputs from first to last (integers exactly within a group of 32,
// then float32 in group order), whatever the number of rows, so a row has the same bits in any
// company.

namespace hasten::HASTEN_ISA {

// Memory to fetch while a tile computes, a part with each group, as bursts would stop it. For few rows
// even ten lines at once are one: they take a line with each word of inputs (1 row 4 % faster, 4 rows 7).
struct Ahead {
  const uint8_t* from = nullptr;
  size_t part = 0;  // bytes

  static HASTEN_INLINE Ahead of(const uint8_t* from, size_t bytes, int groups) {
    const size_t count = static_cast<size_t>(groups);
    return {from, (bytes + 64 * count - 1) / (64 * count) * 64};
  }
  HASTEN_INLINE void fetch(int group) const {
    const uint8_t* begin = from + static_cast<size_t>(group) * part;
    for (size_t at = 0; at < part; at += 64) __builtin_prefetch(begin + at, 0, 2);
  }
  // The lines for one of the group's eight words.
  HASTEN_INLINE void fetch(int group, int word) const {
    const uint8_t* begin = from + static_cast<size_t>(group) * part;
    for (size_t at = 64 * static_cast<size_t>(word); at < part; at += 8 * 64) {
      __builtin_prefetch(begin + at, 0, 2);
    }
  }
};

struct TileInput {
  const uint32_t* words;  // [words][R]
  const float* scales;    // [groups][R], for integer weights, as the next two
  const float* sums;
  const int32_t* isums;
  const int32_t* pairs;  // for unpacked.h
  Ahead weight{};  // the next tile's
  Ahead keys{};    // and values
};

HASTEN_INLINE F16x load_scales(const uint8_t* p, int lanes, bool is_f16) {
  return is_f16 ? load_f16(reinterpret_cast<const uint16_t*>(p) + lanes)
                : load(reinterpret_cast<const float*>(p) + lanes);
}

// Where the scales of a group of 32 outputs by 32 inputs stand: after its integers.
template <int kBytes, bool kScalesF16, bool kOffset>
struct IntegerGroup {
  static constexpr bool kHasOffset = kOffset;
  static constexpr size_t kScaleBytes = kTileCols * (kScalesF16 ? 2 : 4);
  static constexpr size_t kStride = kBytes + kScaleBytes * (kOffset ? 2 : 1);
  static HASTEN_INLINE F16x scale(const uint8_t* w, int half) {
    return load_scales(w + kBytes, half * kLanes, kScalesF16);
  }
  static HASTEN_INLINE F16x offset(const uint8_t* w, int half) {
    return load_scales(w + kBytes + kScaleBytes, half * kLanes, kScalesF16);
  }
};

// A group is computed word by word, a word being four inputs, in the order in which weights lie in
// memory: out of order, memory gives a third less than it could.

// Four-bit weights: byte j of lane o holds inputs 4 step + j (low half) and 16 more (high half).
template <bool kScalesF16>
struct Int4 : IntegerGroup<kTileCols * kGroup / 2, kScalesF16, true> {
  static constexpr int word(int i) { return i / 2 + (i % 2) * 4; }
  static HASTEN_INLINE I16x low(const uint8_t* w, int step, int half) {
    return iload(w + 64 * (2 * step + half)) & isplat(0x0F0F0F0F);
  }
  static HASTEN_INLINE I16x high(const uint8_t* w, int step, int half) {
    return shift_right<4>(iload(w + 64 * (2 * step + half))) & isplat(0x0F0F0F0F);
  }
  static HASTEN_INLINE I16x start(int32_t) { return izero(); }
  static HASTEN_INLINE I16x dot(I16x acc, I16x w, I16x x) { return dot_u4(acc, w, x); }
};

template <bool kScalesF16, bool kOffset>
struct Bytes : IntegerGroup<kTileCols * kGroup, kScalesF16, kOffset> {
  static constexpr int word(int i) { return i; }
  static HASTEN_INLINE I16x low(const uint8_t* w, int step, int half) {
    return iload(w + 64 * (2 * step + half));
  }
  static HASTEN_INLINE I16x high(const uint8_t* w, int step, int half) {
    return iload(w + 64 * (2 * (step + 4) + half));
  }
};

// Eight-bit weights, sign bit flipped.
template <bool kScalesF16, bool kOffset>
struct Int8 : Bytes<kScalesF16, kOffset> {
  static HASTEN_INLINE I16x start(int32_t sum) { return dot_s8_start(sum); }
  static HASTEN_INLINE I16x dot(I16x acc, I16x w, I16x x) { return dot_s8(acc, w, x); }
};

// Adds the products of one group, integers so far, to the sums.
template <class W, int R>
HASTEN_INLINE void add_group(const TileInput& x, const uint8_t* w, int g, const I16x (&acc)[R][2],
                             F16x (&sum)[R][2]) {
  for (int half = 0; half < 2; ++half) {
    const F16x scale = W::scale(w, half);
    F16x offset = zero();
    if constexpr (W::kHasOffset) offset = W::offset(w, half);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      F16x& s = sum[r][half];
      s = fma(to_float(acc[r][half]) * scale, splat(x.scales[g * R + r]), s);
      if constexpr (W::kHasOffset) s = fma(offset, splat(x.sums[g * R + r]), s);
    }
  }
}

template <int R>
HASTEN_INLINE void store_tile(const F16x (&sum)[R][2], float* out) {
  for (int r = 0; r < R; ++r) {
    store(out + r * kTileCols, sum[r][0]);
    store(out + r * kTileCols + kLanes, sum[r][1]);
  }
}

template <class W, int R>
HASTEN_INLINE void integer_tile(const TileInput& x, const uint8_t* w, int groups, float* out) {
  F16x sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
  const uint32_t* words = x.words;
  for (int g = 0; g < groups; ++g, w += W::kStride, words += 8 * R) {
    x.keys.fetch(g);
    I16x acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = W::start(x.isums[g * R + r]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      x.weight.fetch(g, i);
      const int word = W::word(i), step = word % 4;
      const I16x w0 = word < 4 ? W::low(w, step, 0) : W::high(w, step, 0);
      const I16x w1 = word < 4 ? W::low(w, step, 1) : W::high(w, step, 1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const I16x a = isplat(static_cast<int32_t>(words[word * R + r]));
        acc[r][0] = W::dot(acc[r][0], w0, a);
        acc[r][1] = W::dot(acc[r][1], w1, a);
      }
    }
    add_group<W, R>(x, w, g, acc, sum);
  }
  store_tile<R>(sum, out);
}

// Plain weights; a word is two bfloat16 (Bf16) or one float32 (F32) inputs.
struct DenseBf16 {
  static constexpr int kWords = kGroup / 2;
  static HASTEN_INLINE F16x dot(F16x acc, I16x w, uint32_t x) {
    return dot_bf16(acc, w, isplat(static_cast<int32_t>(x)));
  }
};
struct DenseF32 {
  static constexpr int kWords = kGroup;
  static HASTEN_INLINE F16x dot(F16x acc, I16x w, uint32_t x) {
    return fma(as_float(w), as_float(isplat(static_cast<int32_t>(x))), acc);
  }
};

template <class W, int R>
HASTEN_INLINE void dense_tile(const TileInput& x, const uint8_t* w, int groups, float* out) {
  F16x sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
  const uint32_t* words = x.words;
  for (int k = 0; k < groups * W::kWords; ++k, w += 128, words += R) {
    if (k % W::kWords == 0) {
      x.weight.fetch(k / W::kWords);
      x.keys.fetch(k / W::kWords);
    }
    const I16x w0 = iload(w), w1 = iload(w + 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      sum[r][0] = W::dot(sum[r][0], w0, words[r]);
      sum[r][1] = W::dot(sum[r][1], w1, words[r]);
    }
  }
  store_tile<R>(sum, out);
}

using TileKernel = void (*)(const TileInput&, const uint8_t*, int, float*);

template <class W, int R>
void integer_kernel(const TileInput& x, const uint8_t* w, int groups, float* out) {
  integer_tile<W, R>(x, w, groups, out);
}
template <class W, int R>
void dense_kernel(const TileInput& x, const uint8_t* w, int groups, float* out) {
  dense_tile<W, R>(x, w, groups, out);
}

// Kernels by height, 1 to kTallTile.
struct TileKernels {
  TileKernel of[kTallTile];
};
template <class W, int R = kTallTile>
constexpr void fill_integer(TileKernels& table) {
  table.of[R - 1] = integer_kernel<W, R>;
  if constexpr (R > 1) fill_integer<W, R - 1>(table);
}
template <class W, int R = kTallTile>
constexpr void fill_dense(TileKernels& table) {
  table.of[R - 1] = dense_kernel<W, R>;
  if constexpr (R > 1) fill_dense<W, R - 1>(table);
}
template <class W>
constexpr TileKernels integer_kernels() {
  TileKernels table{};
  fill_integer<W>(table);
  return table;
}
template <class W>
constexpr TileKernels dense_kernels() {
  TileKernels table{};
  fill_dense<W>(table);
  return table;
}

inline const TileKernels& fp8_tile_kernels();
inline void unpack_fp8_tile(const PackedWeight& w, const uint8_t* from, uint8_t* to);

inline const TileKernels& tile_kernels(const PackedWeight& w) {
  static constexpr TileKernels int4[] = {integer_kernels<Int4<true>>(),
                                         integer_kernels<Int4<false>>()};
  static constexpr TileKernels int8[] = {integer_kernels<Int8<true, false>>(),
                                         integer_kernels<Int8<false, false>>()};
  static constexpr TileKernels int8_offset[] = {integer_kernels<Int8<true, true>>(),
                                                integer_kernels<Int8<false, true>>()};
  static constexpr TileKernels bf16 = dense_kernels<DenseBf16>();
  static constexpr TileKernels f32 = dense_kernels<DenseF32>();
  const int scales = static_cast<int>(w.scales);
  switch (w.format) {
    case WeightFormat::kInt4: return int4[scales];
    case WeightFormat::kInt8: return int8[scales];
    case WeightFormat::kInt8Offset: return int8_offset[scales];
    case WeightFormat::kBf16: return bf16;
    case WeightFormat::kFp8: return fp8_tile_kernels();  // for unpacked tiles
    case WeightFormat::kF32: break;
  }
  return f32;
}

inline TileInput tile_input(const Buffer& x, WeightFormat format, int block, int height) {
  const size_t row = static_cast<size_t>(block);
  if (format == WeightFormat::kBf16 || format == WeightFormat::kFp8) {
    return {reinterpret_cast<const uint32_t*>(x.bf16 + row * x.bf16_row_bytes()), nullptr, nullptr,
            nullptr, nullptr, {}, {}};
  }
  if (format == WeightFormat::kF32) {
    return {reinterpret_cast<const uint32_t*>(x.f32 + row * x.f32_row_bytes()), nullptr, nullptr,
            nullptr, nullptr, {}, {}};
  }
  const Int8Block b(x, block, height);
  return {reinterpret_cast<const uint32_t*>(b.words), b.scales, b.sums, b.isums, b.pairs,
          {}, {}};
}

}  // namespace hasten::HASTEN_ISA
