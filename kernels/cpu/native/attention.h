// paged_attention: every query against the cached keys and values of its request.
//
// Rows that share a KV head (the tokens of a task times the heads of the group) go together in
// tiles (query_tiles.h). Keys are walked in splits of kSplitLen from position 0; a split's softmax is
// complete in itself (maximum, sum, weighted values) and splits are merged from first to last. That
// order depends on positions alone, so prefill, chunk, decode and verify agree in bits, and splits may
// also run in parallel: whoever finishes a row's last one merges them.

namespace hasten::HASTEN_ISA {

HASTEN_INLINE float exp_scalar(float x) {
  alignas(64) float t[kLanes];
  store(t, exp(splat(x)));
  return t[0];
}

// into = into (+) from, for `rows` rows.
inline void merge(const RowState& into, const RowState& from, int rows, int head_size) {
  alignas(64) float a[kLanes], b[kLanes];  // factors of a vector of rows
  for_vectors(rows, [&](int first, int count) {
    const F16x x = load_upto(into.max + first, count), y = load_upto(from.max + first, count);
    const F16x largest = max(x, y);
    const F16x p = exp(x - largest), q = exp(y - largest);
    const F16x sum = load_upto(into.sum + first, count) * p + load_upto(from.sum + first, count) * q;
    store_upto(into.max + first, largest, count);
    store_upto(into.sum + first, sum, count);
    store(a, p);
    store(b, q);
    for (int r = 0; r < count; ++r) {
      float* to = into.acc + (first + r) * head_size;
      const float* more = from.acc + (first + r) * head_size;
      for (int d = 0; d < head_size; d += kLanes) {
        store(to + d, fma(load(more + d), splat(b[r]), load(to + d) * splat(a[r])));
      }
    }
  });
}

// One task on one KV head.
template <class Tile>
class HeadTask {
  using KV = typename Tile::KV;

 public:
  HeadTask(const AttentionOp& op, const Step& step, const Share& share, const AttentionTask& task,
           int kv_head)
      : op_(op),
        step_(step),
        share_(share),
        task_(task),
        kv_head_(kv_head),
        kv_(step.kv[op.group_id]),
        per_kv_(op.num_heads / op.num_kv_heads),
        rows_((task.token_end - task.token_begin) * per_kv_),
        head_size_(kv_.head_size),
        words_(head_size_ / KV::kPack) {
    uint8_t* free = share.scratch;
    queries_ = take<uint32_t>(free, static_cast<size_t>(rows_) * words_);
    merged_ = take_state(free, rows_);
    current_ = take_state(free, Tile::kRows);
    scores_ = take<float[kSplitLen]>(free, Tile::kRows);
    probs_ = take<uint32_t[kSplitLen]>(free, Tile::kRows);
    if (!kv_.is_direct()) staged_ = StagedSplit<KV>(kv_, free);
  }

  int rows() const { return rows_; }
  static int splits(const AttentionTask& task) {
    return round_up(task.key_end, kSplitLen) / kSplitLen;
  }
  // The first split that any row of the task may read.
  static int first_split(const AttentionOp& op, const Step& step, const AttentionTask& task) {
    const int first = step.positions[task.token_begin] - op.window + 1;
    return op.window > 0 && first > 0 ? first / kSplitLen : 0;
  }

  void run_all() {
    load_queries();
    const int begin = first_split(op_, step_, task_);
    for (int s = begin; s < splits(task_); ++s) run_split(s, s == begin ? nullptr : &current_);
    write_out(merged_);
  }

  // One split into memory that other threads read.
  void run_one(int split, const RowState& to) {
    load_queries();
    merged_ = to;
    run_split(split, nullptr);
  }

  template <class PartOf>
  void merge_and_write(int begin, int end, PartOf&& part_of) {
    const RowState merged = part_of(begin);
    for (int s = begin + 1; s < end; ++s) merge(merged, part_of(s), rows_, head_size_);
    write_out(merged);
  }

 private:
  template <class T>
  static T* take(uint8_t*& free, size_t count) {
    T* taken = reinterpret_cast<T*>(free);
    free += (count * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
  RowState take_state(uint8_t*& free, int rows) const {
    const auto count = static_cast<size_t>(rows);
    float* max = take<float>(free, count);
    float* sum = take<float>(free, count);
    return {max, sum, take<float>(free, count * static_cast<size_t>(head_size_))};
  }

  void load_queries() {
    alignas(64) float padded[kMaxHeadSize];
    std::memset(padded, 0, sizeof(float) * static_cast<size_t>(head_size_));
    for (int i = 0; i < rows_; ++i) {
      const int head = kv_head_ * per_kv_ + i % per_kv_;
      const float* q = plain_row(*op_.qkv, task_.token_begin + i / per_kv_) + head * op_.head_size;
      std::memcpy(padded, q, sizeof(float) * static_cast<size_t>(op_.head_size));
      for (int d = 0; d < head_size_; d += kLanes) {
        KV::store_words(queries_ + i * words_ + d / KV::kPack, load(padded + d));
      }
    }
  }

  SplitKeys split_keys(int split) {
    SplitKeys keys{};
    keys.origin = split * kSplitLen;
    const int first = step_.positions[task_.token_begin] - op_.window + 1 - keys.origin;
    keys.begin = op_.window > 0 && first > 0 ? first : 0;
    const int left = task_.key_end - keys.origin;
    keys.end = left < kSplitLen ? left : kSplitLen;
    const GroupTables& tables = step_.groups[op_.group_id];
    const int32_t* table = tables.block_tables +
                           static_cast<size_t>(step_.table_rows[task_.request]) * tables.table_width;
    const int len = kv_.tile_len();
    for (int t = keys.begin / len; t * len < keys.end; ++t) {
      const int position = keys.origin + t * len;
      const uint8_t* k = kv_.k_tile(op_.layer_idx, kv_head_, table[position / kv_.block_size],
                                    position % kv_.block_size / len);
      if (kv_.is_direct()) {
        keys.k[t] = k;
        keys.v[t] = k + kv_.head_bytes();
      } else {
        staged_.add(t, k, k + kv_.head_bytes());
      }
    }
    if (!kv_.is_direct()) staged_.finish(keys);
    return keys;
  }

  RowLimits limits_of(int row, int count) const {
    RowLimits limits{};
    limits.max_first = 0;
    limits.min_last = 0x7FFFFFFF;
    for (int r = 0; r < count; ++r) {
      const int last = step_.positions[task_.token_begin + (row + r) / per_kv_];
      const int first = op_.window > 0 && last >= op_.window ? last - op_.window + 1 : 0;
      limits.first[r] = first;
      limits.last[r] = last;
      if (first > limits.max_first) limits.max_first = first;
      if (last < limits.min_last) limits.min_last = last;
    }
    return limits;
  }

  static RowState at(const RowState& state, int row, int head_size) {
    return {state.max + row, state.sum + row, state.acc + static_cast<size_t>(row) * head_size};
  }

  // Every row tile through one split: straight into `merged_`, or by way of `via`.
  void run_split(int split, const RowState* via) {
    SplitKeys keys = split_keys(split);
    const int end = keys.end;
    for (int row = 0; row < rows_; row += Tile::kRows) {
      const int count = rows_ - row < Tile::kRows ? rows_ - row : Tile::kRows;
      const RowLimits limits = limits_of(row, count);
      const int last = limits.last[count - 1] - keys.origin + 1;
      keys.end = last < end ? last : end;
      if (via && keys.end <= keys.begin) continue;
      const RowState own = at(merged_, row, head_size_);
      const ScoredRows<KV> rows{op_, queries_ + row * words_, words_, head_size_, limits, scores_, probs_};
      Tile::run(rows, count, keys, via ? *via : own);
      if (via) merge(own, *via, count, head_size_);
    }
  }

  void write_out(const RowState& state) const {
    alignas(64) float values[kMaxHeadSize];
    for (int i = 0; i < rows_; ++i) {
      const int head = kv_head_ * per_kv_ + i % per_kv_;
      float scale = 1.0f, sum = state.sum[i];
      if (op_.sinks != nullptr) {
        const float sink = op_.sinks[head];
        const float largest = state.max[i] > sink ? state.max[i] : sink;
        scale = exp_scalar(state.max[i] - largest);
        sum = sum * scale + exp_scalar(sink - largest);
      }
      const F16x inverse = splat(scale / sum);
      for (int d = 0; d < head_size_; d += kLanes) {
        store(values + d, load(state.acc + i * head_size_ + d) * inverse);
      }
      emit(op_.out, task_.token_begin + i / per_kv_, step_.num_tokens, head * op_.head_size, values,
           op_.head_size);
    }
  }

  const AttentionOp& op_;
  const Step& step_;
  const Share& share_;
  const AttentionTask& task_;
  const int kv_head_;
  const KVGroup& kv_;
  const int per_kv_;
  const int rows_;
  const int head_size_;
  const int words_;
  uint32_t* queries_;
  RowState merged_;
  RowState current_;
  float (*scores_)[kSplitLen];
  uint32_t (*probs_)[kSplitLen];
  StagedSplit<KV> staged_;
};

// Few short tasks: the splits of a task run in parallel, and the last to finish merges them.
template <class Tile>
void attention_by_splits(const AttentionOp& op, const Step& step, const Share& share) {
  const int heads = op.num_kv_heads, head_size = step.kv[op.group_id].head_size;
  const int most = step.max_splits;
  const int count = step.num_attention_tasks * heads * most;
  int unit, end;
  while (share.claim(count, 1, unit, end)) {
    const int split = unit % most, which = unit / most;
    const AttentionTask& task = step.attention_tasks[which / heads];
    if (task.token_end <= share.first_row) continue;
    const int first = HeadTask<Tile>::first_split(op, step, task);
    const int num_splits = HeadTask<Tile>::splits(task);
    if (split < first || split >= num_splits) continue;
    HeadTask<Tile> job(op, step, share, task, which % heads);
    const auto part_of = [&](int s) {
      const size_t rows = static_cast<size_t>(step.max_task_tokens) * (op.num_heads / heads);
      float* base = step.partials + (static_cast<size_t>(which) * most + s) * rows * (head_size + 2);
      return RowState{base, base + rows, base + 2 * rows};
    };
    job.run_one(split, part_of(split));
    // Release this part, acquire those of the others.
    const int done = step.splits_done[which].fetch_add(1, std::memory_order_acq_rel) + 1;
    if (done < num_splits - first) continue;
    step.splits_done[which].store(0, std::memory_order_relaxed);
    job.merge_and_write(first, num_splits, part_of);
  }
}

template <class Tile>
void attention(const AttentionOp& op, const Step& step, const Share& share) {
  if (step.splits_in_parallel) return attention_by_splits<Tile>(op, step, share);
  // Later tasks of a prompt read more keys: the longest go first, so that threads end together.
  const int count = step.num_attention_tasks * op.num_kv_heads;
  int unit, end;
  while (share.claim(count, 1, unit, end)) {
    const int which = count - 1 - unit;
    const AttentionTask& task = step.attention_tasks[which / op.num_kv_heads];
    if (task.token_end <= share.first_row) continue;
    HeadTask<Tile>(op, step, share, task, which % op.num_kv_heads).run_all();
  }
}

inline void paged_attention(const AttentionOp& op, const Step& step, const Share& share) {
  const NoDenormals zeros;  // keys that a row may not read have e^-160
  const KVType type = step.kv[op.group_id].type;
  if (type == KVType::kF32 || (type == KVType::kFp8 && op.is_exact)) {
    return attention<VectorTile<KvF32>>(op, step, share);
  }
#if defined(HASTEN_MATRIX_UNIT)
  if (MatrixTile::takes(step.kv[op.group_id].head_size)) {
    const MatrixUse use;
    return attention<MatrixTile>(op, step, share);
  }
#endif
  attention<VectorTile<KvBf16>>(op, step, share);
}

}  // namespace hasten::HASTEN_ISA
