// linear: out = x W^T (+ bias), and the fused pair linear + act_mul.
//
// A tile is 32 outputs by up to kTallTile rows, held in registers over all inputs. Its sums run over
// the inputs from first to last (integers exactly within a group of 32, then float32 in group
// order), whatever the number of rows, so a row has the same bits in any company.
//
// For many rows, int4 tiles are unpacked to bytes once and used for up to kChunkRows rows.

namespace hasten::HASTEN_ISA {

struct TileInput {
  const uint32_t* words;  // [words][R]
  const float* scales;    // [groups][R], for integer weights, as the next two
  const float* sums;
  const int32_t* isums;
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

// Four-bit weights: byte j of lane o holds inputs 4 step + j (low half) and 16 more (high half).
template <bool kScalesF16>
struct Int4 : IntegerGroup<kTileCols * kGroup / 2, kScalesF16, true> {
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

// Int4 after `unpack_int4`: one byte each, scales and offsets in float32.
struct UnpackedInt4 : Bytes<false, true> {
  static HASTEN_INLINE I16x start(int32_t) { return izero(); }
  static HASTEN_INLINE I16x dot(I16x acc, I16x w, I16x x) { return dot_u4(acc, w, x); }
};

template <class W, int R>
HASTEN_INLINE void integer_tile(const TileInput& x, const uint8_t* w, int groups, float* out) {
  F16x sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
  const uint32_t* words = x.words;
  for (int g = 0; g < groups; ++g, w += W::kStride, words += 8 * R) {
    I16x acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = W::start(x.isums[g * R + r]);
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const I16x low0 = W::low(w, step, 0), low1 = W::low(w, step, 1);
      const I16x high0 = W::high(w, step, 0), high1 = W::high(w, step, 1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const I16x a = isplat(static_cast<int32_t>(words[step * R + r]));
        acc[r][0] = W::dot(acc[r][0], low0, a);
        acc[r][1] = W::dot(acc[r][1], low1, a);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const I16x a = isplat(static_cast<int32_t>(words[(step + 4) * R + r]));
        acc[r][0] = W::dot(acc[r][0], high0, a);
        acc[r][1] = W::dot(acc[r][1], high1, a);
      }
    }
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
  for (int r = 0; r < R; ++r) {
    store(out + r * kTileCols, sum[r][0]);
    store(out + r * kTileCols + kLanes, sum[r][1]);
  }
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
    const I16x w0 = iload(w), w1 = iload(w + 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      sum[r][0] = W::dot(sum[r][0], w0, words[r]);
      sum[r][1] = W::dot(sum[r][1], w1, words[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(out + r * kTileCols, sum[r][0]);
    store(out + r * kTileCols + kLanes, sum[r][1]);
  }
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

template <bool kScalesF16>
void unpack_int4_tile(const uint8_t* from, int groups, uint8_t* to) {
  using Packed = Int4<kScalesF16>;
  for (int g = 0; g < groups; ++g, from += Packed::kStride, to += UnpackedInt4::kStride) {
    for (int step = 0; step < 4; ++step) {
      for (int half = 0; half < 2; ++half) {
        istore(to + 64 * (2 * step + half), Packed::low(from, step, half));
        istore(to + 64 * (2 * (step + 4) + half), Packed::high(from, step, half));
      }
    }
    auto* scales = reinterpret_cast<float*>(to + kTileCols * kGroup);
    for (int half = 0; half < 2; ++half) {
      store(scales + half * kLanes, Packed::scale(from, half));
      store(scales + kTileCols + half * kLanes, Packed::offset(from, half));
    }
  }
}

inline TileInput tile_input(const Buffer& x, WeightFormat format, int block, int height) {
  const size_t row = static_cast<size_t>(block);
  if (format == WeightFormat::kBf16 || format == WeightFormat::kFp8) {
    return {reinterpret_cast<const uint32_t*>(x.bf16 + row * x.bf16_row_bytes()), nullptr, nullptr,
            nullptr};
  }
  if (format == WeightFormat::kF32) {
    return {reinterpret_cast<const uint32_t*>(x.f32 + row * x.f32_row_bytes()), nullptr, nullptr,
            nullptr};
  }
  const Int8Block b(x, block, height);
  return {reinterpret_cast<const uint32_t*>(b.words), b.scales, b.sums, b.isums};
}

HASTEN_INLINE F16x activate(Activation kind, F16x x) {
  if (kind == Activation::kSilu) return x / (splat(1.0f) + exp(zero() - x));
  const F16x cube = x * x * x;
  const F16x inner = splat(0.7978845608028654f) * fma(splat(0.044715f), cube, x);
  return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}

// One tile (with an activation: a pair of tiles) for one block of rows.
struct LinearTile {
  const LinearOp& op;
  const TileKernels& kernels;
  const uint8_t* weight;  // the tile, or the first of the pair
  size_t tile_bytes;
  int tile;

  HASTEN_INLINE void add_bias(float* values, int height, int which) const {
    if (op.bias == nullptr) return;
    const float* bias = op.bias + which * kTileCols;
    for (int r = 0; r < height; ++r) {
      for (int half = 0; half < kTileCols; half += kLanes) {
        float* to = values + r * kTileCols + half;
        store(to, load(to) + load(bias + half));
      }
    }
  }

  void run(const TileInput& x, int block, int height, int num_rows) const {
    alignas(64) float values[2][kTallTile * kTileCols];
    const TileKernel kernel = kernels.of[height - 1];
    kernel(x, weight, op.weight.groups(), values[0]);
    if (op.activation == Activation::kNone) {
      add_bias(values[0], height, tile);
    } else {
      kernel(x, weight + tile_bytes, op.weight.groups(), values[1]);
      add_bias(values[0], height, 2 * tile);
      add_bias(values[1], height, 2 * tile + 1);
      for (int i = 0; i < height * kTileCols; i += kLanes) {
        store(values[0] + i, activate(op.activation, load(values[0] + i)) * load(values[1] + i));
      }
    }
    const int outputs = op.activation == Activation::kNone ? op.weight.rows : op.weight.rows / 2;
    const int left = outputs - tile * kTileCols;
    const int count = left < kTileCols ? left : kTileCols;
    for (int r = 0; r < height; ++r) {
      emit(op.out, block + r, num_rows, op.out_begin + tile * kTileCols, values[0] + r * kTileCols,
           count);
    }
  }
};

// Fetches part `index` of `count` of what lies at `from`: done between the blocks of rows that use
// one tile, it brings the next tile while the processor computes. (With one or two blocks the tile is
// read as fast as it is used, and fetching ahead only gets in the way: measured, 17 % slower.)
HASTEN_INLINE void prefetch_part(const uint8_t* from, size_t bytes, int index, int count) {
  const size_t part = (bytes / static_cast<size_t>(count) + 63) / 64 * 64;
  const size_t begin = part * static_cast<size_t>(index);
  const size_t end = begin + part < bytes ? begin + part : bytes;
  for (size_t at = begin; at < end; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// How one thread goes about one op: the tiles as they are packed, or unpacked first.
class LinearRun {
 public:
  LinearRun(const LinearOp& op, const Share& share)
      : op_(op),
        share_(share),
        per_output_(op.activation == Activation::kNone ? 1 : 2),
        tiles_(op.weight.tiles() / per_output_),
        packed_bytes_(op.weight.tile_bytes()),
        is_fp8_(op.weight.format == WeightFormat::kFp8),
        unpacked_bytes_(is_fp8_ ? op.weight.unpacked_fp8_bytes()
                                : UnpackedInt4::kStride * static_cast<size_t>(op.weight.groups())),
        unpacks_(is_fp8_ || (op.weight.format == WeightFormat::kInt4 &&
                             share.num_rows - share.first_row > kUnpackRows &&
                             per_output_ * unpacked_bytes_ <= kScratchBytes)) {}

  void run() const {
    const int num_rows = share_.num_rows - share_.first_row;
    const int chunks = round_up(num_rows, kChunkRows) / kChunkRows;
    const int parts = 4 * share_.num_threads;
    const int grain = chunks > 1 ? 1 : round_up(tiles_, parts) / parts;
    int begin = 0, end = 0;
    while (share_.claim(tiles_ * chunks, grain, begin, end)) {
      for (int task = begin; task < end; ++task) {
        const int first = share_.first_row + task / tiles_ * kChunkRows;
        const int last = first + kChunkRows;
        run_tile(task % tiles_, first, last < share_.num_rows ? last : share_.num_rows);
      }
    }
  }

 private:
  static constexpr int kChunkRows = 64 * kRowTile;  // rows of a task, when there are more
  static constexpr int kUnpackRows = 2 * kTallTile;  // up to which unpacking does not pay

  void run_tile(int tile, int first, int last) const {
    const size_t bytes = packed_bytes_ * static_cast<size_t>(per_output_);
    const uint8_t* packed = op_.weight.data + bytes * static_cast<size_t>(tile);
    const uint8_t* next = tile + 1 < tiles_ ? packed + bytes : nullptr;
    const int most = tile_height(share_.num_rows);
    const int blocks = round_up(last - first, most) / most;
    const LinearTile job = unpacks_ ? unpacked_tile(packed, tile)
                                    : LinearTile{op_, tile_kernels(op_.weight), packed,
                                                 packed_bytes_, tile};
    for (int i = 0; i < blocks; ++i) {
      const int block = first + i * most;
      const int height = last - block < most ? last - block : most;
      if (next != nullptr && blocks > 2) prefetch_part(next, bytes, i, blocks);
      job.run(tile_input(*op_.x, op_.weight.format, block, height), block, height,
              share_.num_rows);
    }
  }

  LinearTile unpacked_tile(const uint8_t* packed, int tile) const {
    if (is_fp8_) {
      for (int i = 0; i < per_output_; ++i) {
        unpack_fp8_tile(op_.weight, packed + packed_bytes_ * static_cast<size_t>(i),
                        share_.scratch + unpacked_bytes_ * static_cast<size_t>(i));
      }
      return {op_, tile_kernels(op_.weight), share_.scratch, unpacked_bytes_, tile};
    }
    static constexpr TileKernels kernels = integer_kernels<UnpackedInt4>();
    const auto unpack = op_.weight.scales == ScaleType::kF16 ? unpack_int4_tile<true>
                                                             : unpack_int4_tile<false>;
    for (int i = 0; i < per_output_; ++i) {
      unpack(packed + packed_bytes_ * static_cast<size_t>(i), op_.weight.groups(),
             share_.scratch + unpacked_bytes_ * static_cast<size_t>(i));
    }
    return {op_, kernels, share_.scratch, unpacked_bytes_, tile};
  }

  const LinearOp& op_;
  const Share& share_;
  const int per_output_;  // tiles: two with an activation
  const int tiles_;       // of the output
  const size_t packed_bytes_;
  const bool is_fp8_;
  const size_t unpacked_bytes_;
  const bool unpacks_;
};

inline void linear(const LinearOp& op, const Step&, const Share& share) {
  LinearRun(op, share).run();
}

}  // namespace hasten::HASTEN_ISA
