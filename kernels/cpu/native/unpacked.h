// Int4 tiles unpacked to bytes for many rows, scales and offsets in float32.
//
// Where bytes are multiplied by an unsigned-signed dot product (AVX-512), one product does the work
// of two: with h, l the weights of inputs i + 16 and i, and y, x these inputs (Winograd, "A new
// algorithm for inner product", 1968),
//
//     h y + l x  =  (h + 120 + x) (l - 8 + y)  -  (h + 120) (l - 8)  -  (120 y - 8 x + x y)
//
// Both factors fit a byte, the first unsigned, the second signed, since h, l are 0..15 and |x|, |y|
// at most kActivationMax = 120. The second product depends on the weights alone, the last term on
// the inputs alone (Int8Block::pairs). The sum is the same integer that tiles.h computes: adding
// bytes costs nothing here, as it keeps units busy that multiplication leaves idle (2 x 512 outputs
// and rows in the first-level cache: 85 % of the multipliers' peak, against 70 %).

namespace hasten::HASTEN_ISA {

struct UnpackedInt4 : Bytes<false, true> {
  static HASTEN_INLINE I16x start(int32_t) { return izero(); }
  static HASTEN_INLINE I16x dot(I16x acc, I16x w, I16x x) { return dot_u4(acc, w, x); }
};

#if defined(__AVX512VNNI__)

// A group: h + 120 and l - 8 in the places of h and l, scales, offsets, -(sum of (h + 120) (l - 8)).
struct PairedInt4 : UnpackedInt4 {
  static constexpr size_t kStart = UnpackedInt4::kStride;
  static constexpr size_t kStride = kStart + kTileCols * sizeof(int32_t);
};

template <int R>
HASTEN_INLINE void paired_tile(const TileInput& x, const uint8_t* w, int groups, float* out) {
  F16x sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
  const uint32_t* words = x.words;
  for (int g = 0; g < groups; ++g, w += PairedInt4::kStride, words += 8 * R) {
    x.weight.fetch(g);
    x.keys.fetch(g);
    I16x acc[R][2];
    const I16x start0 = iload(w + PairedInt4::kStart), start1 = iload(w + PairedInt4::kStart + 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I16x start = isplat(x.pairs[g * R + r]);
      acc[r][0] = start0 + start;
      acc[r][1] = start1 + start;
    }
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const I16x low0 = PairedInt4::low(w, step, 0), low1 = PairedInt4::low(w, step, 1);
      const I16x high0 = PairedInt4::high(w, step, 0), high1 = PairedInt4::high(w, step, 1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const I16x a = isplat(static_cast<int32_t>(words[step * R + r]));
        const I16x b = isplat(static_cast<int32_t>(words[(step + 4) * R + r]));
        acc[r][0] = dot_bytes(acc[r][0], add_bytes(high0, a), add_bytes(low0, b));
        acc[r][1] = dot_bytes(acc[r][1], add_bytes(high1, a), add_bytes(low1, b));
      }
    }
    add_group<PairedInt4, R>(x, w, g, acc, sum);
  }
  store_tile<R>(sum, out);
}

template <int R>
void paired_kernel(const TileInput& x, const uint8_t* w, int groups, float* out) {
  paired_tile<R>(x, w, groups, out);
}

template <int R = kTallTile>
constexpr void fill_paired(TileKernels& table) {
  table.of[R - 1] = paired_kernel<R>;
  if constexpr (R > 1) fill_paired<R - 1>(table);
}

using ManyRows = PairedInt4;
constexpr TileKernels many_rows_kernels() {
  TileKernels table{};
  fill_paired(table);
  return table;
}

// Step `step` of half `half` of a group; adds what it takes from the start.
HASTEN_INLINE void store_unpacked(uint8_t* to, int step, int half, I16x low, I16x high,
                                  I16x& product) {
  low = add_bytes(low, isplat_byte(-8));
  high = add_bytes(high, isplat_byte(kActivationMax));
  istore(to + 64 * (2 * step + half), low);
  istore(to + 64 * (2 * (step + 4) + half), high);
  product = dot_bytes(product, high, low);
}
HASTEN_INLINE void store_start(uint8_t* to, int half, I16x product) {
  istore(to + PairedInt4::kStart + 64 * half, izero() - product);
}

#else

using ManyRows = UnpackedInt4;
constexpr TileKernels many_rows_kernels() { return integer_kernels<UnpackedInt4>(); }
HASTEN_INLINE void store_unpacked(uint8_t* to, int step, int half, I16x low, I16x high, I16x&) {
  istore(to + 64 * (2 * step + half), low);
  istore(to + 64 * (2 * (step + 4) + half), high);
}
HASTEN_INLINE void store_start(uint8_t*, int, I16x) {}

#endif

template <bool kScalesF16>
void unpack_int4_tile(const uint8_t* from, int groups, uint8_t* to) {
  using Packed = Int4<kScalesF16>;
  for (int g = 0; g < groups; ++g, from += Packed::kStride, to += ManyRows::kStride) {
    auto* scales = reinterpret_cast<float*>(to + kTileCols * kGroup);
    for (int half = 0; half < 2; ++half) {
      I16x product = izero();
      for (int step = 0; step < 4; ++step) {
        store_unpacked(to, step, half, Packed::low(from, step, half),
                       Packed::high(from, step, half), product);
      }
      store_start(to, half, product);
      store(scales + half * kLanes, Packed::scale(from, half));
      store(scales + kTileCols + half * kLanes, Packed::offset(from, half));
    }
  }
}

}  // namespace hasten::HASTEN_ISA
