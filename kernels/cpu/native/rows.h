// Ops that work row by row: embed, rms_norm, act_mul, gather_rows, and leaving rows in more forms.

namespace hasten::HASTEN_ISA {

// Input `k` of output row `lane` of a tile, dequantised.
template <bool kScalesF16>
HASTEN_INLINE float scale_at(const uint8_t* p, int lane) {
  if (!kScalesF16) return reinterpret_cast<const float*>(p)[lane];
  alignas(64) float t[kLanes];
  store(t, load_f16(reinterpret_cast<const uint16_t*>(p) + lane / kLanes * kLanes));
  return t[lane % kLanes];
}

template <bool kScalesF16>
void dequantize_row(const PackedWeight& w, int row, float* out) {
  const int lane = row % kTileCols;
  const bool is_int4 = w.format == WeightFormat::kInt4;
  const bool has_offset = w.format != WeightFormat::kInt8;
  const int bytes = kTileCols * (is_int4 ? kGroup / 2 : kGroup);
  const uint8_t* group = w.data + static_cast<size_t>(row / kTileCols) * w.tile_bytes();
  for (int g = 0; g < w.groups(); ++g, group += w.group_bytes(), out += kGroup) {
    const float scale = scale_at<kScalesF16>(group + bytes, lane);
    const size_t scale_span = kTileCols * w.scale_bytes();
    const float offset =
        has_offset ? scale_at<kScalesF16>(group + bytes + scale_span, lane) : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const int step = is_int4 ? k / 4 % 4 : k / 4;
      const uint8_t byte = group[128 * step + 4 * lane + k % 4];
      const int q = is_int4 ? (k < kGroup / 2 ? byte & 15 : byte >> 4) : byte - 128;
      out[k] = scale * static_cast<float>(q) + offset;
    }
  }
}

inline void dense_row(const PackedWeight& w, int row, float* out) {
  const bool is_bf16 = w.format == WeightFormat::kBf16;
  const uint8_t* tile = w.data + static_cast<size_t>(row / kTileCols) * w.tile_bytes();
  const auto* words = reinterpret_cast<const uint32_t*>(tile) + row % kTileCols;
  for (int k = 0; k < w.width; ++k) {
    uint32_t bits = words[(is_bf16 ? k / 2 : k) * kTileCols];
    if (is_bf16) bits = k % 2 ? bits & 0xFFFF0000u : bits << 16;
    std::memcpy(&out[k], &bits, sizeof bits);
  }
}

inline void weight_row(const PackedWeight& w, int row, float* out) {
  if (w.format == WeightFormat::kFp8) {
    fp8_row(w, row, out);
  } else if (w.format == WeightFormat::kBf16 || w.format == WeightFormat::kF32) {
    dense_row(w, row, out);
  } else if (w.scales == ScaleType::kF16) {
    dequantize_row<true>(w, row, out);
  } else {
    dequantize_row<false>(w, row, out);
  }
}

inline void embed(const EmbedOp& op, const Step& step, const Share& share) {
  auto* row = reinterpret_cast<float*>(share.scratch);
  const int width = op.out.buffer->width;
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    weight_row(op.table, step.token_ids[t], row);
    if (op.scale != 1.0f) {
      for (int i = 0; i < width; ++i) row[i] *= op.scale;
    }
    emit(op.out, t, share.num_rows, 0, row, width);
  }
}

HASTEN_INLINE float mean_square(const float* x, int width) {
  F16x sum = zero();
  for_vectors(width, [&](int i, int count) {
    const F16x v = load_upto(x + i, count);
    sum = fma(v, v, sum);
  });
  return reduce_add(sum) / static_cast<float>(width);
}

HASTEN_INLINE void scale_columns(const float* x, const float* weight, int width, float scale,
                                 float* y) {
  for_vectors(width, [&](int i, int count) {
    store_upto(y + i, load_upto(x + i, count) * splat(scale) * load_upto(weight + i, count), count);
  });
}

HASTEN_INLINE float inverse_norm(const float* x, int width, float eps) {
  return 1.0f / __builtin_sqrtf(mean_square(x, width) + eps);
}

HASTEN_INLINE void normalize(const float* x, const float* weight, int width, float eps, float* y) {
  scale_columns(x, weight, width, inverse_norm(x, width, eps), y);
}

// Few rows: every thread computes all norms, and leaves its columns. If threads shared the rows, they
// would write the same lines of the laid-out forms, where words of neighbouring rows lie together.
inline void rms_norm_by_columns(const RmsNormOp& op, const Share& share) {
  auto* normed = reinterpret_cast<float*>(share.scratch);
  const int width = op.x->width;
  int begin, end;
  share.columns(width, begin, end);
  for (int t = share.first_row; t < share.num_rows; ++t) {
    const float* x = plain_row(*op.x, t);
    const float inverse = inverse_norm(x, width, op.eps);
    scale_columns(x + begin, op.weight + begin, end - begin, inverse, normed);
    emit(op.out, t, share.num_rows, begin, normed, end - begin);
  }
}

inline void rms_norm(const RmsNormOp& op, const Step&, const Share& share) {
  const bool changes_x = op.residual != nullptr || op.out.buffer == op.x;
  if (!changes_x && share.has_few_rows(kTallTile)) return rms_norm_by_columns(op, share);
  auto* normed = reinterpret_cast<float*>(share.scratch);
  const int width = op.x->width;
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    const float* x = plain_row(*op.x, t);
    if (op.residual != nullptr) {
      float* residual = plain_row(*op.residual, t);
      for_vectors(width, [&](int i, int count) {
        store_upto(residual + i, load_upto(residual + i, count) + load_upto(x + i, count), count);
      });
      x = residual;
    }
    normalize(x, op.weight, width, op.eps, normed);
    emit(op.out, t, share.num_rows, 0, normed, width);
  }
}

inline void act_mul(const ActMulOp& op, const Step&, const Share& share) {
  auto* row = reinterpret_cast<float*>(share.scratch);
  const int width = op.out.buffer->width;
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    const float* gate = plain_row(*op.x, t);
    for_vectors(width, [&](int i, int count) {
      const F16x g = activate(op.activation, load_upto(gate + i, count));
      store_upto(row + i, g * load_upto(gate + width + i, count), count);
    });
    emit(op.out, t, share.num_rows, 0, row, width);
  }
}

inline void gather_rows(const GatherOp& op, const Step& step, const Share& share) {
  int begin, end;
  share.rows(begin, end);
  for (int l = begin; l < end; ++l) {
    const int row = step.logit_rows[step.slice_begin + l];
    emit(op.out, l, share.num_rows, 0, plain_row(*op.x, row), op.x->width);
  }
}

inline void form(const FormOp& op, const Step&, const Share& share) {
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    emit(op.out, t, share.num_rows, 0, plain_row(*op.x, t), op.x->width);
  }
}

}  // namespace hasten::HASTEN_ISA
