// The keys and values of one split as attention multiplies them: where they lie, or copied from tiles
// that cannot be multiplied (fp8 codes, tiles of 8 tokens). Needs linear.h's products and fp8.h.

namespace hasten::HASTEN_ISA {

constexpr int kSplitTiles = kSplitLen / kKVTile;

// The keys of one split that rows of a task may read.
struct SplitKeys {
  const uint8_t* k[kSplitTiles];
  const uint8_t* v[kSplitTiles];
  int origin;  // position of the split's first key
  int begin;   // positions, within the split
  int end;
  // Of an fp8 cache, by position; null where keys and values are themselves.
  const float* k_scales;
  const float* v_scales;

  HASTEN_INLINE int first_tile() const { return begin / kKVTile; }
  HASTEN_INLINE int end_tile() const { return (end + kKVTile - 1) / kKVTile; }
  // Word `w` of values, of `kPack` tokens; zero for what is another request's, which may be anything,
  // NaN too.
  template <int kPack>
  HASTEN_INLINE I16x keep_own(int w, I16x value) const {
    const int first = kPack * w, last = first + kPack - 1;
    if (first >= begin && last < end) return value;
    uint32_t mask = first >= begin && first < end ? 0xFFFFu : 0u;
    if (last >= begin && last < end) mask |= 0xFFFF0000u;
    return value & isplat(static_cast<int32_t>(mask));
  }
};

HASTEN_INLINE void store_lanes(uint32_t* to, I16x a, int lanes) {
  if (lanes == kLanes) return istore(to, a);
  alignas(64) uint32_t words[kLanes];
  istore(words, a);
  std::memcpy(to, words, sizeof(uint32_t) * static_cast<size_t>(lanes));
}

struct KvBf16 : DenseBf16 {
  static constexpr int kPack = 2;
  static HASTEN_INLINE void store_words(uint32_t* to, F16x a) {
    store_bf16(reinterpret_cast<uint16_t*>(to), a);
  }
  // Pairs of e4m3 codes as words: one row of them, or a second one `span` later.
  static HASTEN_INLINE void store_codes(uint32_t* to, int, int lanes, const uint8_t* codes) {
    store_lanes(to, decode_to_bf16(codes), lanes);
  }
};
struct KvF32 : DenseF32 {
  static constexpr int kPack = 1;
  static HASTEN_INLINE void store_words(uint32_t* to, F16x a) { istore(to, as_int(a)); }
  static HASTEN_INLINE void store_codes(uint32_t* to, int span, int lanes, const uint8_t* codes) {
    const I16x pairs = load_pairs(codes);
    store_lanes(to, as_int(decode_e4m3(pairs & isplat(0xFF))), lanes);
    store_lanes(to + span, as_int(decode_e4m3(shift_right<8>(pairs))), lanes);
  }
};

// A split's keys and values copied into tiles that can be multiplied: fp8 codes become numbers,
// exactly, and tiles of 8 tokens are joined.
template <class KV>
class StagedSplit {
 public:
  StagedSplit() = default;
  StagedSplit(const KVGroup& kv, uint8_t* memory) : kv_(&kv), words_(kv.head_size / KV::kPack) {
    k_ = reinterpret_cast<uint32_t*>(memory);
    v_ = k_ + static_cast<size_t>(kSplitLen) * words_;
    k_scales_ = reinterpret_cast<float*>(v_ + static_cast<size_t>(kSplitLen) * words_);
    v_scales_ = k_scales_ + kSplitLen;
  }

  // Tile `index` of those that the cache keeps.
  void add(int index, const uint8_t* k, const uint8_t* v) {
    const int first = index * kv_->tile_len();  // its first key
    uint32_t* k_to = k_ + first / kKVTile * kKVTile * words_ + first % kKVTile;
    uint32_t* v_to = v_ + static_cast<size_t>(first) * words_;
    if (kv_->type == KVType::kFp8) {
      decode_k(k, k_to);
      decode_v(v, v_to);
      load_scales(k, k_scales_ + first);
      load_scales(v, v_scales_ + first);
    } else {
      const size_t row = sizeof(uint32_t) * static_cast<size_t>(kv_->tile_len());
      for (int d = 0; d < words_; ++d) std::memcpy(k_to + d * kKVTile, k + d * row, row);
      std::memcpy(v_to, v, row * words_);
    }
  }

  // Points `keys` at what was added. Scales of positions outside them, which anybody may have
  // written, become zero.
  void finish(SplitKeys& keys) {
    for (int t = 0; t < kSplitTiles; ++t) {
      keys.k[t] = reinterpret_cast<const uint8_t*>(k_ + t * kKVTile * words_);
      keys.v[t] = reinterpret_cast<const uint8_t*>(v_ + t * kKVTile * words_);
    }
    if (kv_->type != KVType::kFp8) return;
    const int begin = keys.begin / kKVTile * kKVTile, end = round_up(keys.end, kKVTile);
    for (int i = begin; i < end; ++i) {
      if (i < keys.begin || i >= keys.end) k_scales_[i] = v_scales_[i] = 0.0f;
    }
    keys.k_scales = k_scales_;
    keys.v_scales = v_scales_;
  }

 private:
  void decode_k(const uint8_t* codes, uint32_t* to) const {
    const int len = kv_->tile_len();
    for (int d = 0; d < kv_->head_size / 2; ++d) {
      KV::store_codes(to + 2 / KV::kPack * d * kKVTile, kKVTile, len, codes + 2 * d * len);
    }
  }

  void decode_v(const uint8_t* codes, uint32_t* to) const {
    const int size = kv_->head_size;
    for (int w = 0; w < kv_->tile_len() / 2; ++w) {
      for (int d = 0; d < size; d += kLanes) {
        KV::store_codes(to + 2 / KV::kPack * w * size + d, size, kLanes, codes + 2 * (w * size + d));
      }
    }
  }

  void load_scales(const uint8_t* tile, float* to) const {
    const auto* scales = reinterpret_cast<const uint16_t*>(tile + kv_->scales_begin());
    for (int i = 0; i < kv_->tile_len(); ++i) to[i] = from_bf16(scales[i]);
  }

  const KVGroup* kv_ = nullptr;
  int words_ = 0;  // of one key
  uint32_t* k_ = nullptr;  // tiles as in KVGroup, of 16 tokens
  uint32_t* v_ = nullptr;
  float* k_scales_ = nullptr;  // [kSplitLen]
  float* v_scales_ = nullptr;
};

}  // namespace hasten::HASTEN_ISA
