// What kernels are given: buffers of activations, one struct per operation, and one step.
//
// Plain data, shared by all instruction sets; the kernels live in their headers (linear.h,
// rows.h, rope.h, attention.h, sample.h). Row symbols as in kernels/program.py: a body op has T
// rows (tokens), a head op L rows (of the current slice of logit rows).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace hasten {

constexpr int kGroup = 32;         // inputs that share one activation scale
constexpr int kActivationMax = 120;  // of int8 activations: unpacked.h adds weights to them
constexpr int kTileCols = 32;      // outputs of one packed weight tile
constexpr int kKVTile = 16;        // tokens whose K (or V) are interleaved in the cache
constexpr int kSplitLen = 256;     // keys after which attention breaks its accumulation
constexpr int kMaxHeadSize = 256;
constexpr size_t kScratchBytes = size_t{1} << 20;  // per thread

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// In what shape an op leaves its rows for those that read them.
enum Form : unsigned {
  kPlain = 1,  // float32, row by row
  kInt8 = 2,   // int8 in groups of 32 with their scales, for integer weights
  kBf16 = 4,   // bfloat16, for bfloat16 weights
  kF32 = 8,    // float32, for float32 weights
};

// The last three forms are laid out for the linear kernels: blocks of
// `tile_height` rows (the last one as high as what is left), and in a block word k of all its rows side by side, a word being four
// int8, two bfloat16 or one float32. The int8 block continues with [groups][rows] each of scales,
// scaled sums, integer sums, and sums for pairs of inputs (forms.h, Int8Block).
struct Buffer {
  int width = 0;
  int capacity = 0;
  float* plain = nullptr;    // [capacity, width]
  uint8_t* int8 = nullptr;   // capacity * int8_row_bytes
  uint8_t* bf16 = nullptr;   // capacity * bf16_row_bytes
  uint8_t* f32 = nullptr;    // capacity * f32_row_bytes

  int padded_width() const { return round_up(width, kGroup); }
  int groups() const { return padded_width() / kGroup; }
  unsigned forms() const {
    return (plain ? kPlain : 0u) | (int8 ? kInt8 : 0u) | (bf16 ? kBf16 : 0u) | (f32 ? kF32 : 0u);
  }
  size_t int8_row_bytes() const { return static_cast<size_t>(padded_width()) + 16u * groups(); }
  size_t bf16_row_bytes() const { return 2u * static_cast<size_t>(padded_width()); }
  size_t f32_row_bytes() const { return 4u * static_cast<size_t>(padded_width()); }
};

// Where an op writes: the buffer and the forms its readers want.
struct Output {
  const Buffer* buffer = nullptr;
  unsigned forms = 0;
};

enum class WeightFormat : int { kInt4, kInt8, kInt8Offset, kBf16, kF32, kFp8 };
enum class ScaleType : int { kF16, kF32 };
enum class Activation : int { kNone, kSilu, kGeluTanh };

// A matrix in tiles of 32 outputs (packing.cpp): [tiles][groups or words][...]. An fp8 tile begins
// with its scales, float32 [stretches of inputs][32]; pairs of codes follow, [width / 2][32][2].
struct PackedWeight {
  WeightFormat format = WeightFormat::kF32;
  ScaleType scales = ScaleType::kF32;
  int rows = 0;   // outputs
  int width = 0;  // inputs, padded to groups of 32
  int scale_groups = 1;  // of fp8: groups of 32 inputs that share a scale
  const uint8_t* data = nullptr;

  int tiles() const { return round_up(rows, kTileCols) / kTileCols; }
  int groups() const { return width / kGroup; }
  size_t scale_bytes() const { return scales == ScaleType::kF16 ? 2 : 4; }
  size_t group_bytes() const {
    switch (format) {
      case WeightFormat::kInt4: return kTileCols * (kGroup / 2 + 2 * scale_bytes());
      case WeightFormat::kInt8: return kTileCols * (kGroup + scale_bytes());
      case WeightFormat::kInt8Offset: return kTileCols * (kGroup + 2 * scale_bytes());
      case WeightFormat::kBf16: return size_t{kTileCols} * kGroup * 2;
      case WeightFormat::kF32: return size_t{kTileCols} * kGroup * 4;
      case WeightFormat::kFp8: return size_t{kTileCols} * kGroup;
    }
    return 0;
  }
  size_t fp8_scale_bytes() const {
    if (format != WeightFormat::kFp8) return 0;
    return sizeof(float) * kTileCols * static_cast<size_t>((groups() + scale_groups - 1) / scale_groups);
  }
  size_t tile_bytes() const {
    return fp8_scale_bytes() + group_bytes() * static_cast<size_t>(groups());
  }
  // Of an fp8 tile in a thread's memory (fp8_tiles.h).
  size_t unpacked_fp8_bytes() const {
    return 64 + fp8_scale_bytes() + 2 * group_bytes() * static_cast<size_t>(groups());
  }
};

struct EmbedOp {
  WeightFormat format = WeightFormat::kF32;
  PackedWeight table;
  float scale = 1.0f;
  Output out;
};

struct RmsNormOp {
  const Buffer* x = nullptr;
  const Buffer* residual = nullptr;
  const float* weight = nullptr;
  float eps = 0.0f;
  Output out;
};

// With an activation, tile 2 i of the weight holds gates and tile 2 i + 1 the inputs they scale,
// and out is act(gate) * input. Plain products may be added to what `out` holds.
struct LinearOp {
  const Buffer* x = nullptr;
  PackedWeight weight;
  const float* bias = nullptr;  // [tiles * 32], or null
  Activation activation = Activation::kNone;
  int out_begin = 0;  // first column of `out` that this weight writes
  bool adds = false;
  Output out;
};

struct RopeStoreOp {
  const Buffer* qkv = nullptr;
  int group_id = 0;
  int layer_idx = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_size = 0;
  int rotary_dim = 0;
  const float* cos = nullptr;  // [max_model_len, rotary_dim / 2]
  const float* sin = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_eps = 0.0f;
  // Of an fp8 cache: the scales to store with, 0 for those of each token's own maximum, and whether
  // the program holds K and V in bfloat16 before they are quantised.
  float k_scale = 0.0f;
  float v_scale = 0.0f;
  bool is_bf16 = false;
};

struct AttentionOp {
  const Buffer* qkv = nullptr;
  int group_id = 0;
  int layer_idx = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_size = 0;
  float scale = 1.0f;
  int window = 0;        // 0: no window
  float softcap = 0.0f;  // 0: none
  const float* sinks = nullptr;
  bool is_exact = false;  // an fp8 cache is multiplied in float32, not in bfloat16
  Output out;
};

struct NormColumnsOp {
  const Buffer* x = nullptr;
  int begin = 0;  // columns
  int end = 0;
  const float* weight = nullptr;
  float eps = 0.0f;
};

struct AddScaledOp {
  const Buffer* x = nullptr;
  const Buffer* out = nullptr;
  float scale = 1.0f;
};

struct ScaleLogitsOp {
  const Buffer* logits = nullptr;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
};

// `out` is [T, 2 num_active]: ids, then weights.
struct RouteOp {
  const Buffer* logits = nullptr;
  const Buffer* out = nullptr;
  int num_active = 0;
  bool renormalizes = false;
};

// The entries (token * num_active + rank) of a step, sorted by expert, then by themselves: those of
// expert e are entries[starts[e]] to entries[starts[e + 1]].
struct ExpertOrder {
  int num_experts = 0;
  int num_active = 0;
  int32_t* starts = nullptr;   // [num_experts + 2], the last unused outside sorting
  int32_t* entries = nullptr;  // [capacity * num_active]
};

struct SortExpertsOp {
  const Buffer* routing = nullptr;
  const ExpertOrder* order = nullptr;
};

// One row of `out` for each entry: the token's row of `x`, or its part for the entry's rank.
struct GatherExpertsOp {
  const Buffer* x = nullptr;
  const ExpertOrder* order = nullptr;
  Output out;
};

// Consecutive outputs of one part of one expert.
struct ExpertMatrix {
  PackedWeight weight;
  int expert = 0;
  int out_begin = 0;  // first column of `out`, of rank 0
};

struct GroupedLinearOp {
  const Buffer* rows = nullptr;  // as gathered
  const ExpertOrder* order = nullptr;
  const ExpertMatrix* matrices = nullptr;
  int num_matrices = 0;
  int max_tiles = 0;   // of any matrix
  int part_width = 0;  // columns from one rank to the next
  const Buffer* out = nullptr;
};

struct CombineExpertsOp {
  const Buffer* x = nullptr;
  const Buffer* routing = nullptr;
  Output out;
};

struct ActMulOp {
  const Buffer* x = nullptr;
  Activation activation = Activation::kSilu;
  Output out;
};

struct GatherOp {
  const Buffer* x = nullptr;
  Output out;
};

// Rows of a buffer in further forms, for producers that leave only the plain one.
struct FormOp {
  const Buffer* x = nullptr;
  Output out;
};

struct VocabKernels;
struct NoiseKey;

struct SampleOp {
  const Buffer* logits = nullptr;
  const VocabKernels* vocab = nullptr;
};

enum class KVType : int { kBf16, kF32, kFp8 };

// The KV cache of one group: blocks of `block_size` tokens, per layer and KV head K then V, in tiles
// of n = 16 tokens (8 in blocks of 8). K of a tile: [head_size / p][n][p]; V: [n / p][head_size][p];
// p = 1 for f32, else 2. After an fp8 tile come the scales of its tokens, n bfloat16 numbers.
//
// Blocks lie in runs of kRunTokens tokens, in each one layer's blocks after the other's. Blocks are
// first used in order, so the cache takes memory as it fills; with all blocks of a layer side by side
// it would take a huge page more for every layer.
constexpr int kRunTokens = 256;

struct KVGroup {
  uint8_t* data = nullptr;
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_size = 0;  // padded to a multiple of 16
  int num_blocks = 0;
  int block_size = 0;
  KVType type = KVType::kBf16;
  int run_bits = 0;  // a run has 2^run_bits blocks

  static int run_bits_of(int block_size) {
    int bits = 0;
    while (block_size << (bits + 1) <= kRunTokens) ++bits;
    return bits;
  }
  int tile_len() const { return block_size < kKVTile ? block_size : kKVTile; }
  // Whether attention can multiply tiles where they lie.
  bool is_direct() const { return type != KVType::kFp8 && tile_len() == kKVTile; }
  size_t item_bytes() const { return type == KVType::kFp8 ? 1 : type == KVType::kBf16 ? 2 : 4; }
  size_t scales_begin() const { return static_cast<size_t>(tile_len()) * head_size * item_bytes(); }
  size_t tile_bytes() const {
    return scales_begin() + (type == KVType::kFp8 ? 2u * static_cast<size_t>(tile_len()) : 0u);
  }
  size_t head_bytes() const { return static_cast<size_t>(block_size / tile_len()) * tile_bytes(); }
  size_t block_bytes() const { return 2 * head_bytes() * num_kv_heads; }
  uint8_t* block(int layer, int block_id) const {
    const size_t run = static_cast<size_t>(block_id >> run_bits);
    const size_t place = static_cast<size_t>(block_id & ((1 << run_bits) - 1));
    return data + (((run * num_layers + layer) << run_bits) + place) * block_bytes();
  }
  size_t num_bytes() const {
    const int num_runs = (num_blocks + (1 << run_bits) - 1) >> run_bits;
    return (static_cast<size_t>(num_runs) * num_layers << run_bits) * block_bytes();
  }
  uint8_t* k_tile(int layer, int head, int block_id, int tile) const {
    return block(layer, block_id) + 2 * head * head_bytes() + tile * tile_bytes();
  }
  uint8_t* v_tile(int layer, int head, int block_id, int tile) const {
    return k_tile(layer, head, block_id, tile) + head_bytes();
  }
};

struct GroupTables {
  const int32_t* slot_mapping = nullptr;  // [T]
  const int32_t* block_tables = nullptr;  // [num_table_rows, table_width]
  int num_table_rows = 0;
  int table_width = 0;
  const int32_t* block_copies = nullptr;  // [num_copies, 2]
  int num_copies = 0;
};

struct SparseRows {
  int num_entries = 0;
  const int32_t* starts = nullptr;
  const int32_t* token_ids = nullptr;
  const float* values = nullptr;
};

struct SamplingRows {
  const float* temperature = nullptr;
  const int32_t* top_k = nullptr;
  const float* top_p = nullptr;
  const float* min_p = nullptr;
  const float* repetition_penalty = nullptr;
  const float* frequency_penalty = nullptr;
  const float* presence_penalty = nullptr;
  const uint64_t* seeds = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* sample_idx = nullptr;
  const int32_t* num_logprobs = nullptr;
  const int32_t* target_ids = nullptr;
  SparseRows counts;
  SparseRows bias;
  const int32_t* mask_idx = nullptr;
  const uint32_t* masks = nullptr;
  int num_masks = 0;
  int mask_words = 0;
  // Nonzero once the masks are written, which another thread does while the model runs; null: they
  // are written already.
  const int32_t* masks_ready = nullptr;
};

// Query rows of one request that share a KV head, and the keys they may read.
struct AttentionTask {
  int request;
  int token_begin;  // rows of T
  int token_end;
  int key_end;
};

constexpr int kMaxGroups = 8;

struct Step {
  int num_tokens = 0;
  int num_requests = 0;
  int num_logit_rows = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* query_starts = nullptr;
  const int32_t* seq_lens = nullptr;
  const int32_t* table_rows = nullptr;
  const int32_t* logit_rows = nullptr;
  int num_groups = 0;
  GroupTables groups[kMaxGroups];
  const KVGroup* kv = nullptr;
  SamplingRows sampling;
  int num_top = 0;  // width of the two arrays of alternatives
  int32_t* out_token_ids = nullptr;
  float* out_logprobs = nullptr;
  int32_t* out_top_ids = nullptr;
  float* out_top_logprobs = nullptr;
  const AttentionTask* attention_tasks = nullptr;
  int num_attention_tasks = 0;
  // When tasks are few, each is cut at its splits (attention.h).
  bool splits_in_parallel = false;
  int max_splits = 0;       // of any task
  int max_task_tokens = 0;  // of any task
  float* partials = nullptr;
  std::atomic<int>* splits_done = nullptr;  // by task and KV head, 0 between ops
  std::atomic<int>* failed_row = nullptr;  // a logit row that held NaN, else -1
  // The slice of logit rows that the head is working on.
  int slice_begin = 0;
  int slice_rows = 0;
};

// What the next attention will read of the KV cache, in blocks. Products fetch it into the
// processor's cache, since they compute while memory is idle.
struct KVAhead {
  const KVGroup* kv = nullptr;
  int layer_idx = 0;
  const int32_t* blocks = nullptr;
  int num_parts = 0;
  int parts_per_block = 1;
  std::atomic<int>* next = nullptr;

  // The next part and its size, or null when all are taken.
  const uint8_t* take(size_t& bytes) const {
    if (next->load(std::memory_order_relaxed) >= num_parts) return nullptr;
    const int part = next->fetch_add(1, std::memory_order_relaxed);
    if (part >= num_parts) return nullptr;
    bytes = kv->block_bytes() / static_cast<size_t>(parts_per_block);
    return kv->block(layer_idx, blocks[part / parts_per_block]) +
           bytes * static_cast<size_t>(part % parts_per_block);
  }
};

// Tasks of an op that were claimed: one count for each thread.
struct alignas(64) Claims {
  std::atomic<int> next{0};
};

// Where a thread's tasks begin among `count`, of which each thread has a stretch.
constexpr int stretch_begin(int count, int thread, int num_threads) {
  return static_cast<int>(static_cast<int64_t>(count) * thread / num_threads);
}

// One thread's part in one op.
struct Share {
  int thread = 0;
  int num_threads = 1;
  int num_rows = 0;   // T, or the rows of the slice
  int first_row = 0;  // rows before it need not be computed
  uint8_t* scratch = nullptr;  // kScratchBytes, aligned to 64
  Claims* claims = nullptr;  // of every thread
  const KVAhead* ahead = nullptr;  // null: nothing to fetch
  bool fetches_weights = true;     // ahead of their use

  // Claims the next `grain` of `count` tasks: false when none is left.
  bool claim(int count, int grain, int& begin, int& end) const {
    return claim_from(0, 0, count, grain, begin, end);
  }
  // The next tasks of [first, last), as `owner` counts them.
  bool claim_from(int owner, int first, int last, int grain, int& begin, int& end) const {
    begin = first + claims[owner].next.fetch_add(grain, std::memory_order_relaxed);
    if (begin >= last) return false;
    end = begin + grain < last ? begin + grain : last;
    return true;
  }
  // Whether threads share the columns of rows, as there are 2 to `most`, whose lines are the same.
  bool has_few_rows(int most) const {
    const int count = num_rows - first_row;
    return num_threads > 1 && count > 1 && count <= most;
  }
  // This thread's fixed part of `width` columns, in groups.
  void columns(int width, int& begin, int& end) const {
    const int groups = round_up(width, kGroup) / kGroup;
    begin = kGroup * stretch_begin(groups, thread, num_threads);
    end = kGroup * stretch_begin(groups, thread + 1, num_threads);
    if (end > width) end = width;
  }
  // This thread's fixed part of the rows.
  void rows(int& begin, int& end) const {
    const int count = num_rows - first_row;
    begin = first_row + stretch_begin(count, thread, num_threads);
    end = first_row + stretch_begin(count, thread + 1, num_threads);
  }
};

// Tasks in a stretch for each thread, as memory is read fastest from one place on. A thread that is
// done helps the others.
class Stretches {
 public:
  Stretches(const Share& share, int count, int grain)
      : share_(share), count_(count), grain_(grain) {}

  bool claim(int& begin, int& end) {
    for (; helped_ < share_.num_threads; ++helped_) {
      const int owner = (share_.thread + helped_) % share_.num_threads;
      const int first = stretch_begin(count_, owner, share_.num_threads);
      const int last = stretch_begin(count_, owner + 1, share_.num_threads);
      if (share_.claim_from(owner, first, last, grain_, begin, end)) return true;
    }
    return false;
  }

 private:
  const Share& share_;
  const int count_;
  const int grain_;
  int helped_ = 0;  // threads whose stretch has no task left
};

template <class Op>
using Kernel = void (*)(const Op&, const Step&, const Share&);

// Gumbel noise from a word is monotone in the word and below kMostNoise. Entry n is a word, its sign
// bit flipped for signed comparison, below which noise is sure to be less than n / kNoiseSteps.
inline constexpr int kMostNoise = 23;
inline constexpr int kNoiseSteps = 4;
extern const std::array<int32_t, kMostNoise * kNoiseSteps> noise_floors;

// Passes over one row of logits, from which sample.cpp puts sampling together. `temperature`
// divides; a token counts if its divided logit is at least `floor`.
struct VocabKernels {
  // The largest logit and the first token that has it; false when there is a NaN.
  bool (*largest)(const float* logits, int count, float* value, int* token);
  // The sum of e^(logit / temperature - shift).
  float (*sum_exp)(const float* logits, int count, float temperature, float shift, float floor);
  // The tokens that count, ascending; returns how many.
  int (*collect)(const float* logits, int count, float temperature, float floor, int32_t* tokens);
  // The first token with the largest logit / temperature + noise; `largest_token` has the largest
  // logit.
  int (*noisy_largest)(const float* logits, int count, int largest_token, float temperature,
                       float floor, const NoiseKey& key);
  float (*noise)(const NoiseKey& key, int token);
  // Copies the logits of allowed tokens, one bit each, and -inf for the others; also in place.
  void (*copy_allowed)(const float* logits, int count, const uint32_t* allowed, float* out);
};

// What machine_limits.cpp times: as many products as a core can do, and as many bytes as it can read.
struct LimitKernels {
  double (*multiply_bytes)(int rounds);
  void (*read_bytes)(const uint8_t* data, size_t num_bytes);
};

// What a row's Gumbel noise depends on, beside the token.
struct NoiseKey {
  uint64_t seed;
  int32_t position;
  int32_t sample_idx;
};

// The kernels of one instruction set.
struct KernelTable {
  const char* name;
  int (*tile_height)(int num_rows);  // of the blocks of rows in the laid-out forms
  Kernel<EmbedOp> embed;
  Kernel<RmsNormOp> rms_norm;
  Kernel<LinearOp> linear;
  Kernel<RopeStoreOp> rope_store_kv;
  Kernel<AttentionOp> paged_attention;
  Kernel<ActMulOp> act_mul;
  Kernel<GatherOp> gather_rows;
  Kernel<FormOp> form;
  Kernel<NormColumnsOp> norm_columns;
  Kernel<AddScaledOp> add_scaled;
  Kernel<ScaleLogitsOp> scale_logits;
  Kernel<RouteOp> route;
  Kernel<SortExpertsOp> sort_experts;
  Kernel<GatherExpertsOp> gather_experts;
  Kernel<GroupedLinearOp> grouped_linear;
  Kernel<CombineExpertsOp> combine_experts;
  VocabKernels vocab;
  LimitKernels limits;
};

void sample(const SampleOp& op, const Step& step, const Share& share);

}  // namespace hasten
