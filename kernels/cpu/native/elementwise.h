// Ops that change rows in place: norm_columns, add_scaled, scale_logits. Needs rows.h.

namespace hasten::HASTEN_ISA {

inline void norm_columns(const NormColumnsOp& op, const Step&, const Share& share) {
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    float* columns = plain_row(*op.x, t) + op.begin;
    normalize(columns, op.weight, op.end - op.begin, op.eps, columns);
  }
}

inline void add_scaled(const AddScaledOp& op, const Step&, const Share& share) {
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    const float* x = plain_row(*op.x, t);
    float* out = plain_row(*op.out, t);
    for_vectors(op.x->width, [&](int i, int count) {
      const F16x sum = fma(load_upto(x + i, count), splat(op.scale), load_upto(out + i, count));
      store_upto(out + i, sum, count);
    });
  }
}

inline void scale_logits(const ScaleLogitsOp& op, const Step&, const Share& share) {
  int begin, end;
  share.rows(begin, end);
  for (int l = begin; l < end; ++l) {
    float* logits = plain_row(*op.logits, l);
    for_vectors(op.logits->width, [&](int i, int count) {
      F16x x = load_upto(logits + i, count) * splat(op.scale);
      if (op.softcap > 0.0f) x = splat(op.softcap) * tanh(x / splat(op.softcap));
      store_upto(logits + i, x, count);
    });
  }
}

}  // namespace hasten::HASTEN_ISA
