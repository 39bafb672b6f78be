// Leaving rows in the forms that their readers want (see ops.h). Needs simd.h and ops.h.

namespace hasten::HASTEN_ISA {

// The place of one row in a laid-out buffer.
struct RowPlace {
  int block;   // first row of its block
  int height;  // rows of the block
  int lane;    // the row within it
};

// The height of a step's blocks of rows (the last may be lower). It changes no result. Blocks are as
// equal as possible for few rows; for many, the height that leaves least of a low last block, which
// takes as long as one of kShortTile rows.
inline int tile_height(int num_rows) {
  if (num_rows <= kUnpackRows) {
    const int blocks = round_up(num_rows, kTallTile) / kTallTile;
    return blocks > 0 ? round_up(num_rows, blocks) / blocks : 1;
  }
  int best = kRowTile, least = num_rows + kRowTile;
  for (int height = kRowTile; height >= kShortTile; --height) {
    const int rest = num_rows % height;
    const int cost = rest == 0 || rest > kShortTile ? num_rows : num_rows - rest + kShortTile;
    if (cost < least) {
      best = height;
      least = cost;
    }
  }
  return best;
}

HASTEN_INLINE RowPlace place_of(int row, int num_rows) {
  const int height = tile_height(num_rows);
  const int block = row / height * height;
  const int left = num_rows - block;
  return {block, left < height ? left : height, row - block};
}

// One block of int8 rows, `height` rows of it in use.
struct Int8Block {
  int32_t* words;    // [width / 4][height], four int8 each
  float* scales;     // [groups][height]
  float* sums;       // [groups][height], scale times the sum of the group's integers
  int32_t* isums;    // [groups][height], that sum itself
  int32_t* pairs;    // [groups][height], see unpacked.h: -(sum of 120 y - 8 x + x y)

  HASTEN_INLINE Int8Block(const Buffer& b, int block, int height) {
    uint8_t* base = b.int8 + static_cast<size_t>(block) * b.int8_row_bytes();
    const size_t span = static_cast<size_t>(height) * b.groups();
    words = reinterpret_cast<int32_t*>(base);
    scales = reinterpret_cast<float*>(base + static_cast<size_t>(height) * b.padded_width());
    sums = scales + span;
    isums = reinterpret_cast<int32_t*>(sums + span);
    pairs = isums + span;
  }
};

// Quantises 32 values to q = round(x / s), s = max |x| / kActivationMax. A group that holds NaN or
// infinity gets the scale NaN, so that it stays visible instead of turning into ordinary integers.
HASTEN_INLINE void emit_int8_group(const Int8Block& to, int group, int height, int lane,
                                   const float* values) {
  const F16x a = load(values);
  const F16x b = load(values + kLanes);
  const I16x magnitude = isplat(0x7FFFFFFF);
  const int32_t top = reduce_imax(imax(as_int(a) & magnitude, as_int(b) & magnitude));
  float largest;
  std::memcpy(&largest, &top, sizeof largest);
  const bool is_finite = top < 0x7F800000;
  // Below 2^-100 the inverse would overflow; such a group is zero for every purpose.
  const float inverse = is_finite && largest > 1e-30f ? kActivationMax / largest : 0.0f;
  alignas(64) int8_t q[kGroup];
  int32_t sum = 0, pairs = 0;
  if (inverse != 0.0f) {
    const I16x x = to_int(a * splat(inverse));
    const I16x y = to_int(b * splat(inverse));
    store_i8(q, x);
    store_i8(q + kLanes, y);
    sum = reduce_iadd(x + y);
    const F16x fx = to_float(x), fy = to_float(y);
    pairs = reduce_iadd(to_int(splat(8.0f) * fx - fy * (fx + splat(kActivationMax))));
  } else {
    std::memset(q, 0, sizeof q);
  }
  for (int i = 0; i < kGroup / 4; ++i) {
    std::memcpy(&to.words[(group * (kGroup / 4) + i) * height + lane], q + 4 * i, 4);
  }
  const float scale = is_finite ? largest * (1.0f / kActivationMax) : __builtin_nanf("");
  to.scales[group * height + lane] = scale;
  to.sums[group * height + lane] = scale * static_cast<float>(sum);
  to.isums[group * height + lane] = sum;
  to.pairs[group * height + lane] = pairs;
}

HASTEN_INLINE void emit_words(uint8_t* base, size_t row_bytes, const RowPlace& at, int first_word,
                              const void* words, int count) {
  auto* to = reinterpret_cast<uint32_t*>(base + static_cast<size_t>(at.block) * row_bytes);
  for (int i = 0; i < count; ++i) {
    std::memcpy(&to[(first_word + i) * at.height + at.lane],
                static_cast<const uint8_t*>(words) + 4 * i, 4);
  }
}

// Leaves 32 columns from `column` on, a multiple of 32, in the laid-out forms.
HASTEN_INLINE void emit_group(const Output& out, const RowPlace& at, int column,
                              const float* values) {
  const Buffer& b = *out.buffer;
  if (out.forms & kInt8) {
    emit_int8_group(Int8Block(b, at.block, at.height), column / kGroup, at.height, at.lane, values);
  }
  if (out.forms & kBf16) {
    alignas(64) uint16_t halves[kGroup];
    store_bf16(halves, load(values));
    store_bf16(halves + kLanes, load(values + kLanes));
    emit_words(b.bf16, b.bf16_row_bytes(), at, column / 2, halves, kGroup / 2);
  }
  if (out.forms & kF32) emit_words(b.f32, b.f32_row_bytes(), at, column, values, kGroup);
}

HASTEN_INLINE bool is_laid_out(const Output& out) {
  return (out.forms & ~static_cast<unsigned>(kPlain)) != 0;
}

// Leaves columns [begin, begin + count) of a row. `begin` is a multiple of 32, and so is `count`
// unless the columns reach the end of the row.
HASTEN_INLINE void emit_at(const Output& out, const RowPlace& at, int begin, const float* values,
                           int count) {
  const Buffer& b = *out.buffer;
  if (out.forms & kPlain) {
    float* to = b.plain + static_cast<size_t>(at.block + at.lane) * b.width + begin;
    if (to != values) {
      int i = 0;
      for (; i + kLanes <= count; i += kLanes) store(to + i, load(values + i));
      if (i < count) std::memcpy(to + i, values + i, sizeof(float) * static_cast<size_t>(count - i));
    }
  }
  if (!is_laid_out(out)) return;
  for (int i = 0; i < count; i += kGroup) {
    alignas(64) float padded[kGroup];
    const float* group = values + i;
    if (count - i < kGroup) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, group, sizeof(float) * static_cast<size_t>(count - i));
      group = padded;
    }
    emit_group(out, at, begin + i, group);
  }
}

inline void emit(const Output& out, int row, int num_rows, int begin, const float* values,
                 int count) {
  const RowPlace at = is_laid_out(out) ? place_of(row, num_rows) : RowPlace{row, 1, 0};
  emit_at(out, at, begin, values, count);
}

inline float* plain_row(const Buffer& b, int row) {
  return b.plain + static_cast<size_t>(row) * b.width;
}

}  // namespace hasten::HASTEN_ISA
