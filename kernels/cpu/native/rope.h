// rope_store_kv: optional norms and rotation of q and k, then k and v into the cache.

namespace hasten::HASTEN_ISA {

HASTEN_INLINE void rotate(float* head, const float* cos, const float* sin, int half) {
  for_vectors(half, [&](int i, int count) {
    const F16x a = load_upto(head + i, count), b = load_upto(head + half + i, count);
    const F16x c = load_upto(cos + i, count), s = load_upto(sin + i, count);
    store_upto(head + i, a * c - b * s, count);
    store_upto(head + half + i, fma(b, c, a * s), count);
  });
}

// One token's K into its tile: `Item`s side by side in twos (or singly) and across tokens.
template <int kPack, class Item>
HASTEN_INLINE void scatter_k(uint8_t* tile, int tile_len, int token, const Item* k, int size) {
  auto* to = reinterpret_cast<Item*>(tile) + token * kPack;
  for (int d = 0; d < size; d += kPack) {
    std::memcpy(to + d * tile_len, k + d, sizeof(Item) * kPack);
  }
}

template <int kPack, class Item>
HASTEN_INLINE void scatter_v(uint8_t* tile, int padded, int token, const Item* v, int size) {
  auto* to = reinterpret_cast<Item*>(tile) + token / kPack * padded * kPack + token % kPack;
  for (int d = 0; d < size; ++d) to[kPack * d] = v[d];
}

// The last vector is rounded with zeros behind it.
HASTEN_INLINE void head_to_bf16(const float* head, int size, uint16_t* to) {
  for_vectors(size, [&](int i, int count) { store_bf16(to + i, load_upto(head + i, count)); });
}

// max |x|, or NaN where a number is not finite.
HASTEN_INLINE float largest_magnitude(const float* x, int size) {
  I16x top = izero();
  for_vectors(size, [&](int i, int count) {
    top = imax(top, as_int(load_upto(x + i, count)) & isplat(0x7FFFFFFF));
  });
  const int32_t bits = reduce_imax(top);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  return bits < 0x7F800000 ? largest : __builtin_nanf("");
}

// Codes of one head and, returned in bfloat16, their scale: `given`, or max |x| / 448 (1 for 0).
HASTEN_INLINE uint16_t head_to_fp8(const float* head, int size, float given, bool is_bf16,
                                   uint8_t* codes) {
  alignas(64) float values[kMaxHeadSize];
  std::memcpy(values, head, sizeof(float) * static_cast<size_t>(size));
  if (is_bf16) {
    alignas(64) uint16_t halves[kMaxHeadSize];
    head_to_bf16(head, size, halves);
    for (int i = 0; i < size; ++i) values[i] = from_bf16(halves[i]);
  }
  uint16_t stored = to_bf16(given > 0.0f ? given : largest_magnitude(values, size) / kE4m3Max);
  if (stored == 0) stored = to_bf16(1.0f);
  const F16x scale = splat(from_bf16(stored));
  for_vectors(size, [&](int i, int count) {
    store_i8(reinterpret_cast<int8_t*>(codes) + i, encode_e4m3(load_upto(values + i, count) / scale));
  });
  return stored;
}

// K and V of one token and head into the cache.
class KVWriter {
 public:
  KVWriter(const RopeStoreOp& op, const KVGroup& kv, int slot)
      : op_(op),
        kv_(kv),
        block_(slot / kv.block_size),
        tile_(slot % kv.block_size / kv.tile_len()),
        token_(slot % kv.block_size % kv.tile_len()) {}

  void write(int head, const float* k, const float* v) const {
    uint8_t* k_tile = kv_.k_tile(op_.layer_idx, head, block_, tile_);
    uint8_t* v_tile = kv_.v_tile(op_.layer_idx, head, block_, tile_);
    if (kv_.type == KVType::kF32) {
      scatter<1>(k_tile, v_tile, k, v);
    } else if (kv_.type == KVType::kBf16) {
      alignas(64) uint16_t k_halves[kMaxHeadSize], v_halves[kMaxHeadSize];
      head_to_bf16(k, op_.head_size, k_halves);
      head_to_bf16(v, op_.head_size, v_halves);
      scatter<2>(k_tile, v_tile, k_halves, v_halves);
    } else {
      alignas(64) uint8_t k_codes[kMaxHeadSize], v_codes[kMaxHeadSize];
      set_scale(k_tile, head_to_fp8(k, op_.head_size, op_.k_scale, op_.is_bf16, k_codes));
      set_scale(v_tile, head_to_fp8(v, op_.head_size, op_.v_scale, op_.is_bf16, v_codes));
      scatter<2>(k_tile, v_tile, k_codes, v_codes);
    }
  }

 private:
  template <int kPack, class Item>
  HASTEN_INLINE void scatter(uint8_t* k_tile, uint8_t* v_tile, const Item* k, const Item* v) const {
    scatter_k<kPack>(k_tile, kv_.tile_len(), token_, k, op_.head_size);
    scatter_v<kPack>(v_tile, kv_.head_size, token_, v, op_.head_size);
  }
  void set_scale(uint8_t* tile, uint16_t scale) const {
    reinterpret_cast<uint16_t*>(tile + kv_.scales_begin())[token_] = scale;
  }

  const RopeStoreOp& op_;
  const KVGroup& kv_;
  const int block_;
  const int tile_;
  const int token_;
};

class Roper {
 public:
  Roper(const RopeStoreOp& op, const Step& step)
      : op_(op),
        step_(step),
        kv_(step.kv[op.group_id]),
        slots_(step.groups[op.group_id].slot_mapping),
        half_(op.rotary_dim / 2) {}

  // Head `h` of row `t`, of queries.
  HASTEN_INLINE void query(int t, int h) const { turn(head(t, h), t, op_.q_norm); }
  // The same of keys, and of values.
  HASTEN_INLINE void key_value(int t, int h, const KVWriter& writer) const {
    float* key = head(t, op_.num_heads + h);
    turn(key, t, op_.k_norm);
    writer.write(h, key, key + op_.num_kv_heads * op_.head_size);
  }
  HASTEN_INLINE KVWriter writer(int t) const { return KVWriter(op_, kv_, slots_[t]); }

 private:
  HASTEN_INLINE float* head(int t, int h) const { return plain_row(*op_.qkv, t) + h * op_.head_size; }
  HASTEN_INLINE void turn(float* head, int t, const float* norm) const {
    if (norm != nullptr) normalize(head, norm, op_.head_size, op_.norm_eps, head);
    const size_t at = static_cast<size_t>(step_.positions[t]) * static_cast<size_t>(half_);
    rotate(head, op_.cos + at, op_.sin + at, half_);
  }

  const RopeStoreOp& op_;
  const Step& step_;
  const KVGroup& kv_;
  const int32_t* slots_;
  const int half_;
};

constexpr int kFewRotated = 32;

inline void rope_store_kv(const RopeStoreOp& op, const Step& step, const Share& share) {
  const Roper roper(op, step);
  if (share.has_few_rows(kFewRotated)) {
    // By heads: neighbouring tokens of a head share lines of the cache. The longest tasks go first.
    int task, end;
    while (share.claim(op.num_kv_heads + op.num_heads, 1, task, end)) {
      for (int t = share.first_row; t < share.num_rows; ++t) {
        if (task < op.num_kv_heads) {
          roper.key_value(t, task, roper.writer(t));
        } else {
          roper.query(t, task - op.num_kv_heads);
        }
      }
    }
    return;
  }
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    for (int h = 0; h < op.num_heads; ++h) roper.query(t, h);
    const KVWriter writer = roper.writer(t);
    for (int h = 0; h < op.num_kv_heads; ++h) roper.key_value(t, h, writer);
  }
}

}  // namespace hasten::HASTEN_ISA
