// A mixture of experts: route, then for each product sort_experts, gather_experts, grouped_linear,
// at last combine_experts. Needs forms.h, linear.h and rows.h.
//
// An entry is one (token, rank) pair. Entries are sorted by expert, their inputs laid out in that
// order in blocks of rows that share an expert, and multiplied tile by tile as in linear.h. A row's
// sums do not depend on who shares its block.

namespace hasten::HASTEN_ISA {

// Ranks the experts of one row by their logits: the first of equals first; NaN last.
inline void rank_experts(const float* logits, int count, int num_active, float* ids) {
  for (int rank = 0; rank < num_active; ++rank) {
    int best = -1;
    for (int e = 0; e < count; ++e) {
      bool is_taken = false;
      for (int r = 0; r < rank; ++r) is_taken = is_taken || ids[r] == static_cast<float>(e);
      if (!is_taken && (best < 0 || logits[e] > logits[best])) best = e;
    }
    ids[rank] = static_cast<float>(best);
  }
}

inline void route(const RouteOp& op, const Step&, const Share& share) {
  const int count = op.logits->width, active = op.num_active;
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    const float* logits = plain_row(*op.logits, t);
    float* ids = plain_row(*op.out, t);
    float* weights = ids + active;
    rank_experts(logits, count, active, ids);
    const F16x top = splat(logits[static_cast<int>(ids[0])]);
    F16x sum = zero();
    for_vectors(count, [&](int i, int lanes) {
      alignas(64) float likely[kLanes] = {};
      store_upto(likely, exp(load_upto(logits + i, lanes) - top), lanes);
      sum = sum + load(likely);
    });
    float total = reduce_add(sum), chosen = 0.0f;
    for (int r = 0; r < active; ++r) {
      weights[r] = exp_scalar(logits[static_cast<int>(ids[r])] - logits[static_cast<int>(ids[0])]);
      chosen += weights[r];
    }
    if (op.renormalizes) total = chosen;
    for (int r = 0; r < active; ++r) weights[r] /= total;
  }
}

// The expert of a rank; the first for anything that is no expert's id.
HASTEN_INLINE int expert_of(const float* routing, int rank, int num_experts) {
  const float id = routing[rank];
  return id >= 0.0f && id < static_cast<float>(num_experts) ? static_cast<int>(id) : 0;
}

// One thread sorts for all: there are few entries, and the others would wait anyway.
inline void sort_experts(const SortExpertsOp& op, const Step&, const Share& share) {
  int begin, end;
  if (!share.claim(1, 1, begin, end)) return;
  const ExpertOrder& order = *op.order;
  std::memset(order.starts, 0, sizeof(int32_t) * static_cast<size_t>(order.num_experts + 2));
  // Counted two places further on: then each start is summed up one place too far, and filling
  // moves it to where it belongs.
  for (int t = share.first_row; t < share.num_rows; ++t) {
    const float* routing = plain_row(*op.routing, t);
    for (int r = 0; r < order.num_active; ++r) {
      ++order.starts[expert_of(routing, r, order.num_experts) + 2];
    }
  }
  for (int e = 2; e < order.num_experts + 2; ++e) order.starts[e] += order.starts[e - 1];
  for (int t = share.first_row; t < share.num_rows; ++t) {
    const float* routing = plain_row(*op.routing, t);
    for (int r = 0; r < order.num_active; ++r) {
      int32_t& next = order.starts[expert_of(routing, r, order.num_experts) + 1];
      order.entries[next++] = t * order.num_active + r;
    }
  }
}

// Blocks of one expert's entries: of kRowTile rows, the last as high as what is left.
HASTEN_INLINE RowPlace expert_place(int entry, int expert_begin, int expert_end) {
  const int block = expert_begin + (entry - expert_begin) / kRowTile * kRowTile;
  const int left = expert_end - block;
  return {block, left < kRowTile ? left : kRowTile, entry - block};
}

inline void gather_experts(const GatherExpertsOp& op, const Step&, const Share& share) {
  const ExpertOrder& order = *op.order;
  const int width = op.out.buffer->width;
  const bool is_shared = op.x->width == width;
  const int64_t count = order.starts[order.num_experts];
  const int end = static_cast<int>(count * (share.thread + 1) / share.num_threads);
  int expert = 0;
  for (int i = static_cast<int>(count * share.thread / share.num_threads); i < end; ++i) {
    while (i >= order.starts[expert + 1]) ++expert;
    const int token = order.entries[i] / order.num_active, rank = order.entries[i] % order.num_active;
    const float* x = plain_row(*op.x, token) + (is_shared ? 0 : rank * width);
    emit_at(op.out, expert_place(i, order.starts[expert], order.starts[expert + 1]), 0, x, width);
  }
}

// One tile of one expert's matrix for all its entries.
inline void expert_tile(const GroupedLinearOp& op, const ExpertMatrix& matrix, int tile,
                        uint8_t* scratch) {
  const ExpertOrder& order = *op.order;
  const PackedWeight& w = matrix.weight;
  const TileKernels& kernels = tile_kernels(w);
  const int first = order.starts[matrix.expert], end = order.starts[matrix.expert + 1];
  const int left = w.rows - tile * kTileCols, count = left < kTileCols ? left : kTileCols;
  const uint8_t* weight = w.data + w.tile_bytes() * static_cast<size_t>(tile);
  if (w.format == WeightFormat::kFp8) {
    unpack_fp8_tile(w, weight, scratch);
    weight = scratch;
  }
  alignas(64) float values[kRowTile * kTileCols];
  for (int block = first; block < end; block += kRowTile) {
    const int height = end - block < kRowTile ? end - block : kRowTile;
    kernels.of[height - 1](tile_input(*op.rows, w.format, block, height), weight, w.groups(),
                           values);
    for (int r = 0; r < height; ++r) {
      const int entry = order.entries[block + r];
      const int rank = entry % order.num_active;
      float* out = plain_row(*op.out, entry / order.num_active) + matrix.out_begin +
                   rank * op.part_width + tile * kTileCols;
      std::memcpy(out, values + r * kTileCols, sizeof(float) * static_cast<size_t>(count));
    }
  }
}

inline void grouped_linear(const GroupedLinearOp& op, const Step&, const Share& share) {
  constexpr int kTiles = 4;  // of one task
  const int tasks = round_up(op.max_tiles, kTiles) / kTiles;  // of one matrix
  int task, end;
  while (share.claim(op.num_matrices * tasks, 1, task, end)) {
    const ExpertMatrix& matrix = op.matrices[task / tasks];
    if (op.order->starts[matrix.expert] == op.order->starts[matrix.expert + 1]) continue;
    const int first = task % tasks * kTiles;
    for (int tile = first; tile < first + kTiles && tile < matrix.weight.tiles(); ++tile) {
      expert_tile(op, matrix, tile, share.scratch);
    }
  }
}

inline void combine_experts(const CombineExpertsOp& op, const Step&, const Share& share) {
  auto* row = reinterpret_cast<float*>(share.scratch);
  const int width = op.out.buffer->width, active = op.routing->width / 2;
  int begin, end;
  share.rows(begin, end);
  for (int t = begin; t < end; ++t) {
    const float* x = plain_row(*op.x, t);
    const float* weights = plain_row(*op.routing, t) + active;
    for_vectors(width, [&](int i, int count) {
      F16x sum = zero();
      for (int r = 0; r < active; ++r) {
        sum = fma(load_upto(x + r * width + i, count), splat(weights[r]), sum);
      }
      store_upto(row + i, sum, count);
    });
    emit(op.out, t, share.num_rows, 0, row, width);
  }
}

}  // namespace hasten::HASTEN_ISA
