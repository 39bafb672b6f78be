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

// Scales and offsets of a group, which stand behind its bytes.
template <class Packed>
HASTEN_INLINE void store_scales(const uint8_t* from, uint8_t* to) {
  auto* scales = reinterpret_cast<float*>(to + kTileCols * kGroup);
  for (int half = 0; half < 2; ++half) {
    store(scales + half * kLanes, Packed::scale(from, half));
    store(scales + kTileCols + half * kLanes, Packed::offset(from, half));
  }
}

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

// Unpacks a tile and multiplies it with the first block of rows, as storing keeps units busy that
// products leave idle.
template <bool kScalesF16, int R>
void first_block_kernel(const TileInput& x, const uint8_t* from, int groups, uint8_t* to,
                        float* out) {
  using Packed = Int4<kScalesF16>;
  F16x sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
  const uint32_t* words = x.words;
  for (int g = 0; g < groups;
       ++g, from += Packed::kStride, to += PairedInt4::kStride, words += 8 * R) {
    x.weight.fetch(g);
    x.keys.fetch(g);
    I16x acc[R][2], products[2] = {izero(), izero()};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = isplat(x.pairs[g * R + r]);
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      I16x low[2], high[2];
      for (int half = 0; half < 2; ++half) {
        low[half] = add_bytes(Packed::low(from, step, half), isplat_byte(-8));
        high[half] = add_bytes(Packed::high(from, step, half), isplat_byte(kActivationMax));
        istore(to + 64 * (2 * step + half), low[half]);
        istore(to + 64 * (2 * (step + 4) + half), high[half]);
        products[half] = dot_bytes(products[half], high[half], low[half]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const I16x a = isplat(static_cast<int32_t>(words[step * R + r]));
        const I16x b = isplat(static_cast<int32_t>(words[(step + 4) * R + r]));
        for (int half = 0; half < 2; ++half) {
          acc[r][half] =
              dot_bytes(acc[r][half], add_bytes(high[half], a), add_bytes(low[half], b));
        }
      }
    }
    for (int half = 0; half < 2; ++half) {
      const I16x start = izero() - products[half];
      istore(to + PairedInt4::kStart + 64 * half, start);
      for (int r = 0; r < R; ++r) acc[r][half] = acc[r][half] + start;
    }
    store_scales<Packed>(from, to);
    add_group<PairedInt4, R>(x, to, g, acc, sum);
  }
  store_tile<R>(sum, out);
}

#else

using ManyRows = UnpackedInt4;
constexpr TileKernels many_rows_kernels() { return integer_kernels<UnpackedInt4>(); }

template <bool kScalesF16, int R>
void first_block_kernel(const TileInput& x, const uint8_t* from, int groups, uint8_t* to,
                        float* out) {
  using Packed = Int4<kScalesF16>;
  uint8_t* group = to;
  for (int g = 0; g < groups; ++g, from += Packed::kStride, group += ManyRows::kStride) {
    for (int half = 0; half < 2; ++half) {
      for (int step = 0; step < 4; ++step) {
        istore(group + 64 * (2 * step + half), Packed::low(from, step, half));
        istore(group + 64 * (2 * (step + 4) + half), Packed::high(from, step, half));
      }
    }
    store_scales<Packed>(from, group);
  }
  integer_tile<UnpackedInt4, R>(x, to, groups, out);
}

#endif

// By height, as TileKernels.
struct FirstBlockKernels {
  void (*of[kTallTile])(const TileInput&, const uint8_t* from, int groups, uint8_t* to, float* out);
};
template <bool kScalesF16, int R = kTallTile>
constexpr void fill_first_block(FirstBlockKernels& table) {
  table.of[R - 1] = first_block_kernel<kScalesF16, R>;
  if constexpr (R > 1) fill_first_block<kScalesF16, R - 1>(table);
}
template <bool kScalesF16>
constexpr FirstBlockKernels first_block_kernels() {
  FirstBlockKernels table{};
  fill_first_block<kScalesF16>(table);
  return table;
}

}  // namespace hasten::HASTEN_ISA
