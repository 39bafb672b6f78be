#include "program.h"

#include <sys/mman.h>
#if defined(HASTEN_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

namespace hasten {

namespace portable {
extern const KernelTable kTable;
}
#if defined(HASTEN_X86)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif
#if defined(HASTEN_AMX)
namespace amx {
extern const KernelTable kTable;
}
#endif

namespace {

constexpr int kTaskTokens = 32;  // query tokens of one attention task, at most
constexpr int kParallelTokens = 8;  // tasks up to this long may be cut at their splits
constexpr int kFetchTokens = 64;    // up to which products fetch what attention will read
constexpr int kMostParts = 4;       // of a block, fetched one by one
constexpr size_t kFetchBytes = size_t{8} << 20;  // of a layer
constexpr size_t kFetchStart = size_t{16} << 10;  // of a thread's part of a weight
constexpr size_t kHugePage = size_t{2} << 20;

struct NamedTable {
  const KernelTable* table;
  bool is_runnable;
};

#if defined(HASTEN_AMX)
// Whether the processor has the matrix unit and the system lets this process use it: its registers
// are large, so Linux wants to be asked (Documentation/arch/x86/xstate.rst).
bool has_amx() {
  constexpr long kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) {
    return false;
  }
  static const bool is_permitted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return is_permitted;
}
#endif

std::vector<NamedTable> tables() {
  std::vector<NamedTable> known;
#if defined(HASTEN_X86)
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512bf16");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
#if defined(HASTEN_AMX)
  known.push_back({&amx::kTable, has_avx512 && has_amx()});
#endif
  known.push_back({&avx512::kTable, has_avx512});
  known.push_back({&avx2::kTable, has_avx2});
#endif
  known.push_back({&portable::kTable, true});
  return known;
}

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

std::string range_message(const char* what, int index, int value, int limit) {
  return std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
         ", outside 0.." + std::to_string(limit - 1);
}

void require_range(const int32_t* values, int count, int limit, const char* what) {
  for (int i = 0; i < count; ++i) {
    if (static_cast<uint32_t>(values[i]) >= static_cast<uint32_t>(limit)) {
      throw std::invalid_argument(range_message(what, i, values[i], limit));
    }
  }
}

}  // namespace

const KernelTable& kernel_table(const std::string& limit) {
  bool is_allowed = limit.empty();
  std::string names;
  for (const NamedTable& known : tables()) {
    if (known.table->name == limit) {
      require(known.is_runnable, "this processor cannot run " + limit + " kernels");
      is_allowed = true;
    }
    if (is_allowed && known.is_runnable) return *known.table;
    names += (names.empty() ? "" : ", ") + std::string(known.table->name);
  }
  throw std::invalid_argument("unknown instruction set '" + limit + "'; there are: " + names);
}

Memory::Memory(size_t num_bytes)
    : size_((std::max<size_t>(num_bytes, 1) + kHugePage - 1) / kHugePage * kHugePage) {
  // Mapped with one page to spare, so that huge pages can begin at the start of the data.
  void* mapped = mmap(nullptr, size_ + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<uint8_t*>(mapped);
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (skip > 0) munmap(begin, skip);
  if (skip < kHugePage) munmap(begin + skip + size_, kHugePage - skip);
  data_ = begin + skip;
#if defined(MADV_HUGEPAGE)
  if (num_bytes >= kHugePage) madvise(data_, size_, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() { munmap(data_, size_); }

Program::Program(const std::string& isa, std::shared_ptr<Team> team, Capacity capacity,
                 int vocab_size, std::vector<KVGroup> kv)
    : kernels_(kernel_table(isa)),
      capacity_(capacity),
      vocab_size_(vocab_size),
      kv_(std::move(kv)),
      num_embeddings_(std::numeric_limits<int>::max()),
      team_(std::move(team)) {
  require(kv_.size() <= kMaxGroups, "too many KV groups");
  blocks_to_read_.resize(kv_.size());
  // A row of adjusted logits, its candidates and their ids, or anything an op declares it needs.
  scratch_.resize(static_cast<size_t>(team_->size()));
  claim_scratch(std::max(kScratchBytes, 24 * static_cast<size_t>(vocab_size)));
  tasks_.reserve(static_cast<size_t>(capacity_.max_tokens));
}

void Program::claim_scratch(size_t num_bytes) {
  for (auto& memory : scratch_) {
    if (!memory || memory->size() < num_bytes) memory = std::make_unique<Memory>(num_bytes);
  }
}

const Buffer* Program::add_buffer(int width, bool has_logit_rows, unsigned forms) {
  return add_rows(width, has_logit_rows ? capacity_.max_logit_rows : capacity_.max_tokens, forms);
}

const Buffer* Program::add_expert_rows(int width, int num_active, unsigned forms) {
  return add_rows(width, capacity_.max_tokens * num_active, forms);
}

const Buffer* Program::add_rows(int width, int capacity, unsigned forms) {
  Buffer buffer;
  buffer.width = width;
  buffer.capacity = capacity;
  const auto rows = [&](unsigned form, size_t row_bytes) {
    return forms & form ? claim(row_bytes * static_cast<size_t>(capacity)) : nullptr;
  };
  buffer.plain = reinterpret_cast<float*>(rows(kPlain, sizeof(float) * static_cast<size_t>(width)));
  buffer.int8 = rows(kInt8, buffer.int8_row_bytes());
  buffer.bf16 = rows(kBf16, buffer.bf16_row_bytes());
  buffer.f32 = rows(kF32, buffer.f32_row_bytes());
  buffers_.push_back(buffer);
  return &buffers_.back();
}

uint8_t* Program::claim(size_t num_bytes) {
  const Arena::Place place = arena_.take(num_bytes);
  memory_.push_back(place.memory);
  claimed_bytes_ += num_bytes;
  return place.data;
}

const ExpertOrder* Program::add_expert_order(int num_experts, int num_active) {
  const size_t starts = static_cast<size_t>(num_experts) + 2;
  const size_t entries = static_cast<size_t>(capacity_.max_tokens) * static_cast<size_t>(num_active);
  auto* memory = reinterpret_cast<int32_t*>(claim(sizeof(int32_t) * (starts + entries)));
  expert_orders_.push_back({num_experts, num_active, memory, memory + starts});
  return &expert_orders_.back();
}

void Program::add(GroupedLinearOp op, std::vector<ExpertMatrix> matrices) {
  for (const ExpertMatrix& m : matrices) {
    op.max_tiles = std::max(op.max_tiles, m.weight.tiles());
    if (m.weight.format == WeightFormat::kFp8) claim_scratch(m.weight.unpacked_fp8_bytes());
  }
  op.matrices = matrices.data();
  op.num_matrices = static_cast<int>(matrices.size());
  expert_matrices_.push_back(std::move(matrices));
  append(op, kernels_.grouped_linear);
}

size_t Program::num_bytes() const {
  size_t total = claimed_bytes_ + (partials_ ? partials_->size() : 0);
  for (const auto& memory : scratch_) total += memory->size();
  return total;
}

void Program::add(const EmbedOp& op) {
  num_embeddings_ = std::min(num_embeddings_, op.table.rows);
  append(op, kernels_.embed);
}

void Program::add(const LinearOp& op) {
  // A tile, or the pair of a fused activation.
  if (op.weight.format == WeightFormat::kFp8) claim_scratch(2 * op.weight.unpacked_fp8_bytes());
  append(op, kernels_.linear);
  Node& node = (has_head_ ? head_ : body_).back();
  const int tiles_of_each = op.activation == Activation::kNone ? 1 : 2;
  node.num_tiles = op.weight.tiles() / tiles_of_each;
  if (last_product_ != nullptr) {
    const size_t num_bytes = op.weight.tile_bytes() * static_cast<size_t>(tiles_of_each);
    last_product_->following = {op.weight.data, num_bytes, node.num_tiles};
  }
  last_product_ = &node;
}

void Program::ProductWeight::fetch_start(int thread, int num_threads) const {
  if (data == nullptr) return;
  const auto begin = static_cast<size_t>(stretch_begin(num_tiles, thread, num_threads));
  const auto end = static_cast<size_t>(stretch_begin(num_tiles, thread + 1, num_threads));
  const size_t num_bytes = std::min(kFetchStart, tile_bytes * (end - begin));
  const uint8_t* from = data + tile_bytes * begin;
  for (size_t at = 0; at < num_bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

void Program::add(const RopeStoreOp& op) {
  require(!has_head_, "rope_store_kv after gather_rows");
  append(op, kernels_.rope_store_kv);
}

void Program::add(const AttentionOp& op) {
  require(!has_head_, "paged_attention after gather_rows");
  has_attention_ = true;
  max_kv_heads_ = std::max(max_kv_heads_, op.num_kv_heads);
  const size_t floats = static_cast<size_t>(op.num_heads) *
                        static_cast<size_t>(kv_[static_cast<size_t>(op.group_id)].head_size + 2);
  if (floats > max_row_floats_) {
    max_row_floats_ = floats;
    const int splits = round_up(capacity_.max_model_len, kSplitLen) / kSplitLen;
    partials_ = std::make_unique<Memory>(sizeof(float) * floats * kParallelTokens *
                                         static_cast<size_t>(splits));
  }
  const size_t counters = static_cast<size_t>(4 * team_->size() + max_kv_heads_);
  if (splits_done_.size() < counters) splits_done_ = std::vector<std::atomic<int>>(counters);
  const KVGroup& kv = kv_[static_cast<size_t>(op.group_id)];
  // Keys and values of one split in words of four bytes, and their scales.
  if (!kv.is_direct()) claim_scratch(kScratchBytes + 8u * kSplitLen * static_cast<size_t>(kv.head_size + 1));
  attentions_.push_back({op.group_id, op.window});
  Attention& attention = attentions_.back();
  attention.ahead.kv = &kv;
  attention.ahead.layer_idx = op.layer_idx;
  attention.ahead.next = attention.next.get();
  for (; num_before_attention_ < body_.size(); ++num_before_attention_) {
    Node& node = body_[num_before_attention_];
    node.ahead = &attention.ahead;
    attention.num_tiles += node.num_tiles;
  }
  append(op, kernels_.paged_attention);
}

void Program::add(const GatherOp& op) {
  has_head_ = true;
  append(op, kernels_.gather_rows);
}

void Program::add(SampleOp op) {
  op.vocab = &kernels_.vocab;
  append(op, &sample);
}

void Program::check(const Step& step) const {
  require(step.num_tokens <= capacity_.max_tokens,
          "a step of " + std::to_string(step.num_tokens) + " tokens, compiled for " +
              std::to_string(capacity_.max_tokens));
  require(step.num_requests <= capacity_.max_requests,
          "a step of " + std::to_string(step.num_requests) + " requests, compiled for " +
              std::to_string(capacity_.max_requests));
  require(step.num_logit_rows <= step.num_tokens, "more logit rows than tokens");
  require(step.num_groups == static_cast<int>(kv_.size()),
          "the step has tables for " + std::to_string(step.num_groups) + " KV groups of " +
              std::to_string(kv_.size()));
  require_range(step.token_ids, step.num_tokens, num_embeddings_, "token_ids");
  require_range(step.positions, step.num_tokens, capacity_.max_model_len, "positions");
  require_range(step.logit_rows, step.num_logit_rows, step.num_tokens, "logit_rows");
  check_requests(step);
  for (int g = 0; g < step.num_groups; ++g) check_group(step, g);
  check_sampling(step);
}

void Program::check_requests(const Step& step) const {
  require(step.query_starts[0] == 0 && step.query_starts[step.num_requests] == step.num_tokens,
          "query_starts does not run from 0 to the number of tokens");
  for (int r = 0; r < step.num_requests; ++r) {
    require(step.query_starts[r] <= step.query_starts[r + 1], "query_starts is not ascending");
    for (int t = step.query_starts[r]; t < step.query_starts[r + 1]; ++t) {
      const bool ascends = t == step.query_starts[r] || step.positions[t - 1] < step.positions[t];
      require(ascends && step.positions[t] < step.seq_lens[r],
              "positions of request " + std::to_string(r) + " do not ascend within its length");
    }
  }
}

void Program::check_group(const Step& step, int group_id) const {
  const KVGroup& kv = kv_[static_cast<size_t>(group_id)];
  const GroupTables& tables = step.groups[group_id];
  require_range(tables.slot_mapping, step.num_tokens, kv.num_blocks * kv.block_size,
                "slot_mapping");
  require_range(tables.block_copies, 2 * tables.num_copies, kv.num_blocks, "block_copies");
  require_range(step.table_rows, step.num_requests, tables.num_table_rows, "table_rows");
  for (int r = 0; r < step.num_requests; ++r) {
    if (step.query_starts[r] == step.query_starts[r + 1]) continue;
    // Only what attention reads: up to the last position of the step.
    const int last = step.positions[step.query_starts[r + 1] - 1];
    const int blocks = last / kv.block_size + 1;
    require(blocks <= tables.table_width, "a block table is too short for its request");
    require_range(tables.block_tables +
                      static_cast<size_t>(step.table_rows[r]) * static_cast<size_t>(tables.table_width),
                  blocks, kv.num_blocks, "block_tables");
  }
}

void Program::check_sampling(const Step& step) const {
  const SamplingRows& rows = step.sampling;
  for (int l = 0; l < step.num_logit_rows; ++l) {
    require(rows.target_ids[l] < vocab_size_, "target_ids beyond the vocabulary");
    require(rows.num_logprobs[l] <= step.num_top, "num_logprobs beyond the result's width");
    require(rows.temperature[l] >= 0.0f, "a temperature is negative");
    require(rows.top_p[l] > 0.0f, "a top_p is not positive");
    require(rows.min_p[l] >= 0.0f && rows.min_p[l] <= 1.0f, "a min_p is not from 0 to 1");
    if (rows.mask_idx) require(rows.mask_idx[l] < rows.num_masks, "mask_idx beyond the masks");
  }
  for (const SparseRows* sparse : {&rows.counts, &rows.bias}) {
    if (sparse->starts == nullptr) continue;
    require(sparse->starts[0] >= 0, "sparse rows start before their entries");
    for (int l = 0; l < step.num_logit_rows; ++l) {
      require(sparse->starts[l] <= sparse->starts[l + 1], "sparse rows are not ascending");
    }
    require(sparse->starts[step.num_logit_rows] <= sparse->num_entries,
            "sparse rows end after their entries");
    require_range(sparse->token_ids, sparse->starts[step.num_logit_rows], vocab_size_,
                  "sparse token_ids");
  }
  require(rows.masks == nullptr || rows.mask_words * 32 >= vocab_size_,
          "masks are shorter than the vocabulary");
}

void Program::plan_attention(Step& step) {
  tasks_.clear();
  step.max_splits = 1;
  step.max_task_tokens = 1;
  for (int r = 0; r < step.num_requests; ++r) {
    for (int t = step.query_starts[r]; t < step.query_starts[r + 1]; t += kTaskTokens) {
      const int end = std::min(t + kTaskTokens, step.query_starts[r + 1]);
      const int key_end = step.positions[end - 1] + 1;
      tasks_.push_back({r, t, end, key_end});
      step.max_splits = std::max(step.max_splits, round_up(key_end, kSplitLen) / kSplitLen);
      step.max_task_tokens = std::max(step.max_task_tokens, end - t);
    }
  }
  step.attention_tasks = tasks_.data();
  step.num_attention_tasks = static_cast<int>(tasks_.size());
  const size_t floats = static_cast<size_t>(step.num_attention_tasks * step.max_splits *
                                            step.max_task_tokens) *
                        max_row_floats_;
  step.splits_in_parallel =
      team_->size() > 1 && step.max_splits > 1 && step.max_task_tokens <= kParallelTokens &&
      step.num_attention_tasks * max_kv_heads_ < 4 * team_->size() &&
      sizeof(float) * floats <= partials_->size();
  step.partials = reinterpret_cast<float*>(partials_->data());
  step.splits_done = splits_done_.data();
}

// Only in steps of few tokens: in others the attention computes for longer than it reads.
void Program::plan_fetching(const Step& step) {
  const bool is_worthwhile = step.num_tokens <= kFetchTokens;
  if (is_worthwhile) collect_blocks(step);
  const int height = kernels_.tile_height(step.num_tokens);
  const int row_blocks = round_up(step.num_tokens, height) / height;
  for (Attention& attention : attentions_) {
    KVAhead& ahead = attention.ahead;
    const std::vector<int32_t>& blocks = blocks_to_read_[static_cast<size_t>(attention.group_id)];
    ahead.blocks = blocks.data();
    const int num_blocks = is_worthwhile ? static_cast<int>(blocks.size()) : 0;
    const int num_calls = attention.num_tiles * row_blocks;
    ahead.parts_per_block = std::clamp(num_calls / std::max(num_blocks, 1), 1, kMostParts);
    ahead.num_parts = num_blocks * ahead.parts_per_block;
    ahead.next->store(0, std::memory_order_relaxed);
  }
}

// The blocks of each group that attention will read, as many as the processor's cache may hold.
void Program::collect_blocks(const Step& step) {
  for (std::vector<int32_t>& blocks : blocks_to_read_) blocks.clear();
  for (const Attention& attention : attentions_) {
    const KVGroup& kv = *attention.ahead.kv;
    std::vector<int32_t>& blocks = blocks_to_read_[static_cast<size_t>(attention.group_id)];
    if (!blocks.empty()) continue;  // the layers of a group read the same blocks
    const GroupTables& tables = step.groups[attention.group_id];
    const size_t most = kFetchBytes / kv.block_bytes();
    for (int r = 0; r < step.num_requests; ++r) {
      if (step.query_starts[r] == step.query_starts[r + 1]) continue;
      const int first = step.positions[step.query_starts[r]];
      const int last = step.positions[step.query_starts[r + 1] - 1];
      const int begin = attention.window > 0 ? std::max(first - attention.window + 1, 0) : 0;
      const int32_t* table = tables.block_tables + static_cast<size_t>(step.table_rows[r]) *
                                                       static_cast<size_t>(tables.table_width);
      for (int b = begin / kv.block_size; b <= last / kv.block_size && blocks.size() < most; ++b) {
        blocks.push_back(table[b]);
      }
    }
  }
}

void Program::copy_blocks(const Step& step) const {
  for (int g = 0; g < step.num_groups; ++g) {
    const KVGroup& kv = kv_[static_cast<size_t>(g)];
    const GroupTables& tables = step.groups[g];
    for (int c = 0; c < tables.num_copies; ++c) {
      const int source = tables.block_copies[2 * c], destination = tables.block_copies[2 * c + 1];
      if (source == destination) continue;
      for (int layer = 0; layer < kv.num_layers; ++layer) {
        std::memcpy(kv.block(layer, destination), kv.block(layer, source), kv.block_bytes());
      }
    }
  }
}

void Program::run(Step step) {
  check(step);
  step.kv = kv_.data();
  step.failed_row = &failed_row_;
  failed_row_.store(-1, std::memory_order_relaxed);
  copy_blocks(step);
  copy_stored(step);
  if (step.num_tokens == 0) return;
  if (has_attention_) plan_attention(step);
  plan_fetching(step);
  run_threads(step);
  const int failed = failed_row_.load(std::memory_order_relaxed);
  if (failed >= 0) {
    throw std::domain_error("the logits of row " + std::to_string(failed) +
                            " hold NaN or forbid every token");
  }
  store_rows(step);
}

void Program::run_threads(const Step& step) {
  const auto run = [&](int thread) { run_thread(step, thread); };
  if (step.num_tokens > kFewRows) {
    few_rows_fetch_ = fetch_trial_.fetches();
    team_->run(run);
    return;
  }
  few_rows_fetch_ = fetch_trial_.begin(step.num_tokens);
  const Clock::time_point start = Clock::now();
  team_->run(run);
  fetch_trial_.end(std::chrono::duration<double>(Clock::now() - start).count());
}

void Program::run_thread(const Step& step, int thread) {
  const int tail_row = first_tail_row(step);
  for (size_t i = 0; i < body_.size(); ++i) {
    if (i >= tail_begin_ && tail_row == step.num_tokens) break;
    run_node(body_[i], step, step.num_tokens, i < tail_begin_ ? 0 : tail_row, thread);
  }
  Step slice = step;
  while (slice.slice_begin < step.num_logit_rows) {
    slice.slice_rows = std::min(capacity_.max_logit_rows, step.num_logit_rows - slice.slice_begin);
    for (Node& node : head_) run_node(node, slice, slice.slice_rows, 0, thread);
    slice.slice_begin += slice.slice_rows;
    team_->barrier(thread);
  }
}

// Where the tail begins: at the row tile of the first row whose logits are wanted.
int Program::first_tail_row(const Step& step) const {
  int first = step.num_tokens;
  for (int l = 0; l < step.num_logit_rows; ++l) first = std::min(first, step.logit_rows[l]);
  if (first == step.num_tokens) return first;
  const int height = kernels_.tile_height(step.num_tokens);
  return first / height * height;
}

void Program::run_node(Node& node, const Step& step, int num_rows, int first_row, int thread) {
  node.run(step, {thread, team_->width(), num_rows, first_row,
                  scratch_[static_cast<size_t>(thread)]->data(), node.claims.get(), node.ahead,
                  num_rows > kFewRows || few_rows_fetch_});
  node.following.fetch_start(thread, team_->width());
  team_->barrier(thread);
  // Nobody claims from this op again before another barrier: one follows every op and slice.
  node.claims[thread].next.store(0, std::memory_order_relaxed);
}

}  // namespace hasten
