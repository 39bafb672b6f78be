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

// A head in bfloat16; the last vector is rounded with zeros behind it.
HASTEN_INLINE void head_to_bf16(const float* head, int size, uint16_t* to) {
  for_vectors(size, [&](int i, int count) { store_bf16(to + i, load_upto(head + i, count)); });
}

HASTEN_INLINE void store_k(uint8_t* tile, int token, const float* k, int size, bool is_bf16) {
  if (is_bf16) {
    alignas(64) uint16_t halves[kMaxHeadSize];
    head_to_bf16(k, size, halves);
    auto* to = reinterpret_cast<uint32_t*>(tile) + token;
    for (int d = 0; d < size; d += 2) std::memcpy(&to[d / 2 * kKVTile], halves + d, 4);
  } else {
    auto* to = reinterpret_cast<float*>(tile);
    for (int d = 0; d < size; ++d) to[d * kKVTile + token] = k[d];
  }
}

HASTEN_INLINE void store_v(uint8_t* tile, int token, const float* v, int size, int padded,
                           bool is_bf16) {
  if (is_bf16) {
    alignas(64) uint16_t halves[kMaxHeadSize];
    head_to_bf16(v, size, halves);
    auto* to = reinterpret_cast<uint16_t*>(tile) + token / 2 * padded * 2 + token % 2;
    for (int d = 0; d < size; ++d) to[2 * d] = halves[d];
  } else {
    std::memcpy(reinterpret_cast<float*>(tile) + token * padded, v,
                sizeof(float) * static_cast<size_t>(size));
  }
}

inline void rope_store_kv(const RopeStoreOp& op, const Step& step, const Share& share) {
  const KVGroup& kv = step.kv[op.group_id];
  const int32_t* slots = step.groups[op.group_id].slot_mapping;
  const int size = op.head_size, half = op.rotary_dim / 2;
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    const float* cos = op.cos + static_cast<size_t>(step.positions[t]) * half;
    const float* sin = op.sin + static_cast<size_t>(step.positions[t]) * half;
    float* head = plain_row(*op.qkv, t);
    for (int h = 0; h < op.num_heads; ++h, head += size) {
      if (op.q_norm != nullptr) normalize(head, op.q_norm, size, op.norm_eps, head);
      rotate(head, cos, sin, half);
    }
    const int block = slots[t] / kv.block_size, offset = slots[t] % kv.block_size;
    const int tile = offset / kKVTile, token = offset % kKVTile;
    for (int h = 0; h < op.num_kv_heads; ++h, head += size) {
      if (op.k_norm != nullptr) normalize(head, op.k_norm, size, op.norm_eps, head);
      rotate(head, cos, sin, half);
      const float* v = head + op.num_kv_heads * size;
      store_k(kv.k_tile(op.layer_idx, h, block, tile), token, head, size, kv.is_bf16);
      store_v(kv.v_tile(op.layer_idx, h, block, tile), token, v, size, kv.head_size, kv.is_bf16);
    }
  }
}

}  // namespace hasten::HASTEN_ISA
