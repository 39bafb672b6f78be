// Tiles of queries against one split of keys and values: scores, probabilities, weighted values.
// Needs kv_split.h.

namespace hasten::HASTEN_ISA {

constexpr int kMostQueryRows = 16;  // of a tile

constexpr float kNoKey = -1e30f;  // the maximum of a row without keys; e^(-inf - kNoKey) is 0

// A split's result for one row, or several splits merged: softmax numerators relative to `max`.
struct RowState {
  float* max;   // [rows]
  float* sum;   // [rows]
  float* acc;   // [rows, head_size]
};

// Scores of R rows with `N` adjacent tiles of 16 keys.
template <class KV, int R, int N>
HASTEN_INLINE void score_tiles(const uint32_t* q, int words, const uint8_t* const* k,
                               F16x (&s)[R][N]) {
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) s[r][n] = zero();
  for (int d = 0; d < words; ++d) {
    I16x key[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) key[n] = iload(k[n] + 64 * d);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const uint32_t word = q[r * words + d];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) s[r][n] = KV::dot(s[r][n], key[n], word);
    }
  }
}

// The first and last key (positions) that each row of a tile may read.
struct RowLimits {
  int first[kMostQueryRows];
  int last[kMostQueryRows];
  int max_first;
  int min_last;
};

// Some rows: what becomes of their scores.
template <class KV>
struct ScoredRows {
  const AttentionOp& op;
  const uint32_t* q;  // [rows, words]
  int words;
  int head_size;
  const RowLimits& limits;
  float (*scores)[kSplitLen];   // [rows]
  uint32_t (*probs)[kSplitLen];  // [rows] words

  // The scores of 16 keys from products, and -infinity for those that the row may not read.
  HASTEN_INLINE F16x finish_score(F16x s, const SplitKeys& keys, int tile, int r) const {
    s = s * (keys.k_scales ? splat(op.scale) * load(keys.k_scales + tile * kKVTile) : splat(op.scale));
    if (op.softcap > 0.0f) s = splat(op.softcap) * tanh(s / splat(op.softcap));
    const int position = keys.origin + tile * kKVTile;
    if (position >= limits.max_first && position + kKVTile - 1 <= limits.min_last) return s;
    const F16x none = splat(-__builtin_inff());
    const I16x places = isplat(position) + lane_ids();
    s = select_less(places, isplat(limits.last[r] + 1), s, none);
    return select_less(places, isplat(limits.first[r]), none, s);
  }

  // Probabilities of a row's keys, relative to the largest, and their sum.
  HASTEN_INLINE void soften(const SplitKeys& keys, int r, F16x top, const RowState& to) const {
    const float largest = reduce_max(top);
    const F16x shift = splat(largest);
    F16x sum = zero();
    for (int t = keys.first_tile(); t < keys.end_tile(); ++t) {
      F16x p = exp(load(scores[r] + t * kKVTile) - shift);
      sum = sum + p;
      if (keys.v_scales) p = p * load(keys.v_scales + t * kKVTile);
      KV::store_words(probs[r] + t * kKVTile / KV::kPack, p);
    }
    to.max[r] = largest;
    to.sum[r] = reduce_add(sum);
  }
};

// R rows in vector registers.
template <class KV, int R>
struct RowTile {
  const ScoredRows<KV>& rows;

  template <int N>
  HASTEN_INLINE void score(const SplitKeys& keys, int tile, F16x (&top)[R]) const {
    F16x s[R][N];
    score_tiles<KV, R, N>(rows.q, rows.words, keys.k + tile, s);
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) {
        const F16x value = rows.finish_score(s[r][n], keys, tile + n, r);
        top[r] = max(top[r], value);
        store(rows.scores[r] + (tile + n) * kKVTile, value);
      }
    }
  }

  template <int N>
  HASTEN_INLINE void weigh(const SplitKeys& keys, int dim, float* acc) const {
    F16x sum[R][N];
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sum[r][n] = zero();
    const int begin = keys.begin / KV::kPack, end = (keys.end + KV::kPack - 1) / KV::kPack;
    for (int w = begin; w < end; ++w) {
      const int per_tile = kKVTile / KV::kPack;
      const uint8_t* v = keys.v[w / per_tile] + 4 * (w % per_tile * rows.head_size + dim);
      I16x value[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) value[n] = keys.keep_own<KV::kPack>(w, iload(v + 64 * n));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sum[r][n] = KV::dot(sum[r][n], value[n], rows.probs[r][w]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) store(acc + r * rows.head_size + dim + n * kLanes, sum[r][n]);
  }

  void run(const SplitKeys& keys, const RowState& to) const {
    F16x top[R];
    for (int r = 0; r < R; ++r) top[r] = splat(kNoKey);
    int tile = keys.first_tile();
    for (; tile + 2 <= keys.end_tile(); tile += 2) score<2>(keys, tile, top);
    if (tile < keys.end_tile()) score<1>(keys, tile, top);
    for (int r = 0; r < R; ++r) rows.soften(keys, r, top[r], to);
    int dim = 0;
    for (; dim + 4 * kLanes <= rows.head_size; dim += 4 * kLanes) weigh<4>(keys, dim, to.acc);
    for (; dim < rows.head_size; dim += kLanes) weigh<1>(keys, dim, to.acc);
  }
};

// Tiles in vector registers, up to kRows high.
template <class KeyValues>
struct VectorTile {
  using KV = KeyValues;
  static constexpr int kRows = kQueryTile;

  template <int R = kRows>
  static void run(const ScoredRows<KV>& rows, int count, const SplitKeys& keys, const RowState& to) {
    if constexpr (R > 1) {
      if (count < R) return run<R - 1>(rows, count, keys, to);
    }
    RowTile<KV, R>{rows}.run(keys, to);
  }
};

}  // namespace hasten::HASTEN_ISA
