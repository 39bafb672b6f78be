// Tiles of queries in the matrix unit, 16 rows high. Needs matrix_tiles.h and query_tiles.h.
//
// A tile of keys, [head_size / 2][16][2], and one of values, [8][head_size][2], lie in the cache as
// the unit reads them. A product of the unit sums even and odd inputs apart from the first to the
// last, then adds both to what there was; denormal numbers are zero. Vectors can do the same, in the
// same bits, and do for few rows, which take the unit almost as long as 16.

namespace hasten::HASTEN_ISA {

constexpr int kPartDims = 32;  // of a head, in one register of queries or keys
constexpr int kPairs = kKVTile / 2;

HASTEN_INLINE F16x load_bf16(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return as_float(shift_left<16>(I16x{_mm512_cvtepu16_epi32(halves)}));
}

constexpr int kFewQueries = 3;

// So few rows, in vector registers with the sums of the unit.
template <int R>
class FewQueries {
 public:
  FewQueries(const ScoredRows<KvBf16>& rows, const SplitKeys& keys) : rows_(rows), keys_(keys) {}

  void run(const RowState& to) {
    widen(rows_.q, rows_.words, 0, rows_.words);
    F16x top[R];
    for (int r = 0; r < R; ++r) top[r] = splat(kNoKey);
    int tile = keys_.first_tile();
    for (; tile + kSide <= keys_.end_tile(); tile += kSide) score<kSide>(tile, top);
    for (; tile < keys_.end_tile(); ++tile) score<1>(tile, top);
    for (int r = 0; r < R; ++r) rows_.soften(keys_, r, top[r], to);
    widen(rows_.probs[0], kSplitLen, keys_.first_tile() * kPairs, keys_.end_tile() * kPairs);
    for (int dim = 0; dim < rows_.head_size; dim += kSide * kLanes) weigh(dim, to.acc);
  }

 private:
  static constexpr int kSide = 2;  // vectors side by side, with three sums of each for a row

  // Words `first` to `last` of each row, a row every `stride` words, in float32.
  void widen(const uint32_t* words, int stride, int first, int last) {
    for (int r = 0; r < R; ++r) {
      const auto* halves = reinterpret_cast<const uint16_t*>(words + r * stride);
      for (int i = 2 * first; i < 2 * last; i += kLanes) store(left_[r] + i, load_bf16(halves + i));
    }
  }

  template <int N>
  HASTEN_INLINE void score(int tile, F16x (&top)[R]) const {
    F16x sum[R][N];
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sum[r][n] = zero();
    for (int part = 0; part < rows_.words; part += kPartDims / 2) {
      add_products<N, kPartDims / 2>(
          2 * part, [&](int word, int n) { return iload(keys_.k[tile + n] + 64 * (part + word)); }, sum);
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) {
        const F16x value = rows_.finish_score(sum[r][n], keys_, tile + n, r);
        top[r] = max(top[r], value);
        store(rows_.scores[r] + (tile + n) * kKVTile, value);
      }
    }
  }

  HASTEN_INLINE void weigh(int dim, float* acc) const {
    F16x sum[R][kSide];
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < kSide; ++n) sum[r][n] = zero();
    for (int tile = keys_.first_tile(); tile < keys_.end_tile(); ++tile) {
      const uint8_t* values = keys_.v[tile] + 4 * dim;
      add_products<kSide, kPairs>(
          tile * kKVTile,
          [&](int word, int n) {
            const I16x value = iload(values + 4 * word * rows_.head_size + 64 * n);
            return keys_.keep_own<KvBf16::kPack>(tile * kPairs + word, value);
          },
          sum);
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < kSide; ++n) {
        store(acc + r * rows_.head_size + dim + n * kLanes, sum[r][n]);
      }
    }
  }

  // One product of the unit: `W` words of N right vectors with what is on the left from `first` on.
  template <int N, int W, class Right>
  HASTEN_INLINE void add_products(int first, Right&& right, F16x (&sum)[R][N]) const {
    F16x even[R][N], odd[R][N];
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) even[r][n] = odd[r][n] = zero();
    for (int word = 0; word < W; ++word) {
      F16x low[N], high[N];
      for (int n = 0; n < N; ++n) {
        const I16x pair = right(word, n);
        low[n] = as_float(shift_left<16>(pair));
        high[n] = as_float(pair & isplat(static_cast<int32_t>(0xFFFF0000u)));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F16x x = splat(left_[r][first + 2 * word]), y = splat(left_[r][first + 2 * word + 1]);
        for (int n = 0; n < N; ++n) {
          even[r][n] = fma(x, low[n], even[r][n]);
          odd[r][n] = fma(y, high[n], odd[r][n]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sum[r][n] = sum[r][n] + (even[r][n] + odd[r][n]);
  }

  const ScoredRows<KvBf16>& rows_;
  const SplitKeys& keys_;
  // Queries, then probabilities.
  alignas(64) float left_[R][kSplitLen > kMaxHeadSize ? kSplitLen : kMaxHeadSize];
};

// A tile in the unit.
class MatrixTile {
 public:
  using KV = KvBf16;
  static constexpr int kRows = kMatrixRows;

  static bool takes(int head_size) { return head_size % kPartDims == 0; }

  static void run(const ScoredRows<KV>& rows, int count, const SplitKeys& keys, const RowState& to) {
    if (count > kFewQueries) return MatrixTile(rows, count, keys).run(to);
    run_few<kFewQueries>(rows, count, keys, to);
  }

 private:
  template <int R>
  static void run_few(const ScoredRows<KV>& rows, int count, const SplitKeys& keys,
                      const RowState& to) {
    if constexpr (R > 1) {
      if (count < R) return run_few<R - 1>(rows, count, keys, to);
    }
    FewQueries<R>(rows, keys).run(to);
  }

  MatrixTile(const ScoredRows<KV>& rows, int count, const SplitKeys& keys)
      : rows_(rows), count_(count), keys_(keys), parts_(rows.head_size / kPartDims) {}

  void run(const RowState& to) const {
    shape(64, kKVTile);
    if (parts_ <= 2) load_queries<0>(0);
    if (parts_ == 2) load_queries<1>(1);
    int tile = keys_.first_tile();
    for (; tile + 2 <= keys_.end_tile(); tile += 2) score<2>(tile);
    if (tile < keys_.end_tile()) score<1>(tile);
    for (int r = 0; r < count_; ++r) rows_.soften(keys_, r, finish_scores(r), to);
    shape(4 * kPairs, kPairs);
    for (int dim = 0; dim < rows_.head_size; dim += kPartDims) weigh(dim, to.acc);
  }

  // Registers: 0 and 1 for sums; then, each for even and odd parts, as one that is read must not be
  // loaded before that is over: 2 + parity for queries or probabilities, 4 + 2 n + parity for keys
  // or values of sum n.
  HASTEN_INLINE void shape(int left_bytes, int right_rows) const {
    MatrixShapes shapes;
    shapes.set<0>(count_, 64);
    shapes.set<1>(count_, 64);
    shapes.set<2>(count_, left_bytes);
    shapes.set<3>(count_, left_bytes);
    shapes.set<4>(right_rows, 64);
    shapes.set<5>(right_rows, 64);
    shapes.set<6>(right_rows, 64);
    shapes.set<7>(right_rows, 64);
    shapes.load();
  }

  template <int kParity>
  HASTEN_INLINE void load_queries(int part) const {
    matrix_load<2 + kParity>(rows_.q + part * kPartDims / 2, 4 * static_cast<size_t>(rows_.words));
  }

  // Products of the queries with N adjacent tiles of keys.
  template <int N>
  HASTEN_INLINE void score(int tile) const {
    matrix_clear<0>();
    if constexpr (N == 2) matrix_clear<1>();
    for (int part = 0; part < parts_; part += 2) {
      score_part<0, N>(tile, part);
      if (part + 1 < parts_) score_part<1, N>(tile, part + 1);
    }
    float* to = rows_.scores[0] + tile * kKVTile;
    matrix_store<0>(to, sizeof(float) * kSplitLen);
    if constexpr (N == 2) matrix_store<1>(to + kKVTile, sizeof(float) * kSplitLen);
  }

  template <int kParity, int N>
  HASTEN_INLINE void score_part(int tile, int part) const {
    if (parts_ > 2) load_queries<kParity>(part);
    const size_t at = 64 * static_cast<size_t>(kKVTile) * static_cast<size_t>(part);
    matrix_load<4 + kParity>(keys_.k[tile] + at, 64);
    matrix_multiply<0, 2 + kParity, 4 + kParity>();
    if constexpr (N == 2) {
      matrix_load<6 + kParity>(keys_.k[tile + 1] + at, 64);
      matrix_multiply<1, 2 + kParity, 6 + kParity>();
    }
  }

  HASTEN_INLINE F16x finish_scores(int r) const {
    F16x top = splat(kNoKey);
    for (int tile = keys_.first_tile(); tile < keys_.end_tile(); ++tile) {
      float* scores = rows_.scores[r] + tile * kKVTile;
      const F16x value = rows_.finish_score(load(scores), keys_, tile, r);
      top = max(top, value);
      store(scores, value);
    }
    return top;
  }

  // Weighted sums of kPartDims dimensions of the values.
  HASTEN_INLINE void weigh(int dim, float* acc) const {
    matrix_clear<0>();
    matrix_clear<1>();
    int tile = keys_.first_tile();
    for (; tile + 2 <= keys_.end_tile(); tile += 2) {
      weigh_tile<0>(tile, dim);
      weigh_tile<1>(tile + 1, dim);
    }
    if (tile < keys_.end_tile()) weigh_tile<0>(tile, dim);
    const size_t stride = sizeof(float) * static_cast<size_t>(rows_.head_size);
    matrix_store<0>(acc + dim, stride);
    matrix_store<1>(acc + dim + kLanes, stride);
  }

  template <int kParity>
  HASTEN_INLINE void weigh_tile(int tile, int dim) const {
    const uint8_t* values = keys_.v[tile] + 4 * dim;
    size_t stride = 4 * static_cast<size_t>(rows_.head_size);
    alignas(64) uint8_t own[kPairs * 128];
    if (tile * kKVTile < keys_.begin || (tile + 1) * kKVTile > keys_.end) {
      keep_own(tile, values, stride, own);
      values = own;
      stride = 128;
    }
    matrix_load<2 + kParity>(rows_.probs[0] + tile * kPairs, sizeof(uint32_t) * kSplitLen);
    matrix_load<4 + kParity>(values, stride);
    matrix_multiply<0, 2 + kParity, 4 + kParity>();
    matrix_load<6 + kParity>(values + 64, stride);
    matrix_multiply<1, 2 + kParity, 6 + kParity>();
  }

  // 32 dimensions of the values of a tile's own keys, zeros for the others.
  void keep_own(int tile, const uint8_t* values, size_t stride, uint8_t* own) const {
    for (int pair = 0; pair < kPairs; ++pair) {
      const int word = tile * kPairs + pair;
      const uint8_t* from = values + static_cast<size_t>(pair) * stride;
      for (int at = 128 * pair; at < 128 * (pair + 1); at += 64, from += 64) {
        istore(own + at, keys_.keep_own<KV::kPack>(word, iload(from)));
      }
    }
  }

  const ScoredRows<KV>& rows_;
  const int count_;
  const SplitKeys& keys_;
  const int parts_;
};

}  // namespace hasten::HASTEN_ISA
