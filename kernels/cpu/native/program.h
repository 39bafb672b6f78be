// A step program bound to memory: ops in order, replayed by a team of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fetch_trial.h"
#include "ops.h"
#include "team.h"

namespace hasten {

// The fastest instruction set that this processor has and that `limit` (a name, or empty) allows.
// Throws std::invalid_argument for a name that is not known or not runnable here.
const KernelTable& kernel_table(const std::string& limit);

// Zeroed memory in huge pages where the system grants them.
class Memory {
 public:
  explicit Memory(size_t num_bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_;
  size_t size_;
};

// Places side by side in huge pages. What is smaller than such a page would lie in pages of 4 KiB by
// itself, through which a third of the bandwidth is lost, or fill a huge one by a part.
class Arena {
 public:
  struct Place {
    std::shared_ptr<Memory> memory;  // lives as long as the place is used
    uint8_t* data;                   // aligned to 64
  };

  Place take(size_t num_bytes) {
    const size_t padded = (num_bytes + 63) / 64 * 64;
    if (!chunk_ || used_ + padded > chunk_->size()) {
      chunk_ = std::make_shared<Memory>(std::max(padded, kChunkBytes));
      used_ = 0;
    }
    used_ += padded;
    return {chunk_, chunk_->data() + used_ - padded};
  }

 private:
  static constexpr size_t kChunkBytes = size_t{32} << 20;
  std::shared_ptr<Memory> chunk_;
  size_t used_ = 0;
};

struct Capacity {
  int max_tokens;
  int max_requests;
  int max_logit_rows;
  int max_model_len;
};

// Rows in bf16 by slot of a KV group, outside the program: [num_slots, width].
struct SlotRows {
  uint16_t* data = nullptr;
  int num_slots = 0;
  int width = 0;
  int group_id = 0;

  uint16_t* row(int slot) const {
    return data + static_cast<size_t>(slot) * static_cast<size_t>(width);
  }
};

// How passes of a program that drafts follow on each other: the next one computes what the one before
// has chosen, a token for every logit row.
struct Chain {
  std::vector<int32_t> translation;      // of what is chosen into tokens; empty: it is one
  int first_group = 0, end_group = 0;    // the KV groups that it writes; others get the null slot
  float least_shared = 0.0f;             // probability that a sampled guess is right, at least
  // Of a head, else null: the first pass reads of each token what is known of the token before, the
  // next ones what the logit rows of the pass before left.
  SlotRows known{};
  const Buffer* features = nullptr;
  const Buffer* hidden = nullptr;
  const Buffer* left = nullptr;
};

// The first pass of a chain: tokens of requests, in order, and which of these want a guess.
struct DraftRows {
  int num_tokens = 0, num_requests = 0, num_guesses = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* query_starts = nullptr;
  const int32_t* starts = nullptr;      // the position of each request's first token
  const int32_t* table_rows = nullptr;
  const int32_t* guessing = nullptr;    // requests, ascending
  const float* hidden = nullptr;        // for all tokens, instead of what is known; or null
  // A chain ends after so many passes, or once all guesses of a request are right with less than the
  // least probability.
  int num_passes = 1;
  float least_survival = 0.0f;
  float* survivals = nullptr;           // by guess: before, and after
  bool is_greedy = true;                // else the step brings its sampling
};

class Program {
 public:
  // Several programs share a team, and run one after another.
  Program(const std::string& isa, std::shared_ptr<Team> team, Capacity capacity, int vocab_size,
          std::vector<KVGroup> kv);

  const KernelTable& kernels() const { return kernels_; }
  const Capacity& capacity() const { return capacity_; }
  int vocab_size() const { return vocab_size_; }
  const std::vector<KVGroup>& kv() const { return kv_; }
  size_t num_bytes() const;

  // Rows are the step's tokens, or logit rows. The buffer lives as long as the program.
  const Buffer* add_buffer(int width, bool has_logit_rows, unsigned forms);

  // Room for the entries of a step and for a row of each, which live as long as the program.
  const ExpertOrder* add_expert_order(int num_experts, int num_active);
  const Buffer* add_expert_rows(int width, int num_active, unsigned forms);

  // Ops after the first gather are the head, run once per slice of logit rows.
  void add(const EmbedOp& op);
  void add(const RmsNormOp& op) { append(op, kernels_.rms_norm); }
  void add(const LinearOp& op);
  void add(const RopeStoreOp& op);
  void add(const AttentionOp& op);
  void add(const ActMulOp& op) { append(op, kernels_.act_mul); }
  void add(const GatherOp& op);
  void add(const FormOp& op) { append(op, kernels_.form); }
  void add(const NormColumnsOp& op) { append(op, kernels_.norm_columns); }
  void add(const AddScaledOp& op) { append(op, kernels_.add_scaled); }
  void add(const ScaleLogitsOp& op) { append(op, kernels_.scale_logits); }
  void add(const RouteOp& op) { append(op, kernels_.route); }
  void add(const SortExpertsOp& op) { append(op, kernels_.sort_experts); }
  void add(const GatherExpertsOp& op) { append(op, kernels_.gather_experts); }
  void add(GroupedLinearOp op, std::vector<ExpertMatrix> matrices);
  void add(const CombineExpertsOp& op) { append(op, kernels_.combine_experts); }
  void add(SampleOp op);

  // Body ops from here on matter only for the rows whose logits are wanted.
  void begin_tail() { tail_begin_ = body_.size(); }

  // Computes one step; one without tokens is no work. Throws std::invalid_argument when the step does
  // not fit the capacities or points outside its tables, std::domain_error when a logit is not a
  // number.
  void run(Step step);

  // Runs a chain; returns the number of its passes. The step has tables, and perhaps sampling; its result
  // arrays have room for all passes, one after another: tokens, and probabilities of being right.
  int run_chain(Step step, const Chain& chain, const DraftRows& rows);

  // From now on every step leaves these buffers side by side in the rows of its slots.
  void store_taps(std::vector<const Buffer*> taps, const SlotRows& rows);

 private:
  // The weight of a product, in the tiles that threads share.
  struct ProductWeight {
    const uint8_t* data = nullptr;
    size_t tile_bytes = 0;
    int num_tiles = 0;

    // Fetches what the thread will read first, while memory would idle: until the product begins.
    void fetch_start(int thread, int num_threads) const;
  };

  struct Node {
    std::function<void(const Step&, const Share&)> run;
    std::unique_ptr<Claims[]> claims;  // of each thread
    int num_tiles = 0;               // of a product's outputs
    const KVAhead* ahead = nullptr;  // of the attention that follows
    ProductWeight following{};       // of the next product; nothing after other ops
  };

  // An attention, for the products before it that fetch what it will read.
  struct Attention {
    int group_id;
    int window;
    int num_tiles = 0;  // of these products
    KVAhead ahead{};
    std::unique_ptr<std::atomic<int>> next = std::make_unique<std::atomic<int>>(0);
  };

  template <class Op>
  void append(const Op& op, Kernel<Op> kernel) {
    auto run = [op, kernel](const Step& step, const Share& share) { kernel(op, step, share); };
    auto claims = std::make_unique<Claims[]>(static_cast<size_t>(team_->size()));
    (has_head_ ? head_ : body_).push_back(Node{std::move(run), std::move(claims)});
  }

  const Buffer* add_rows(int width, int capacity, unsigned forms);
  uint8_t* claim(size_t num_bytes);
  void claim_scratch(size_t num_bytes);
  void check(const Step& step) const;
  void check_requests(const Step& step) const;
  void check_group(const Step& step, int group_id) const;
  void check_sampling(const Step& step) const;
  void lay_out(Step& step, const Chain& chain, const DraftRows& rows);
  void set_features(const Step& step, const Chain& chain, const DraftRows& rows);
  void follow(Step& step, const Chain& chain);
  void point_at(Step& step, int num_tokens, int num_requests);
  void copy_stored(const Step& step) const;
  void store_rows(const Step& step) const;
  int32_t slot_of(const Step& step, int group_id, int table_row, int position) const;
  void plan_attention(Step& step);
  void plan_fetching(const Step& step);
  void collect_blocks(const Step& step);
  void copy_blocks(const Step& step) const;
  void run_threads(const Step& step);
  void run_thread(const Step& step, int thread);
  void run_node(Node& node, const Step& step, int num_rows, int first_row, int thread);
  int first_tail_row(const Step& step) const;

  const KernelTable& kernels_;
  const Capacity capacity_;
  const int vocab_size_;
  const std::vector<KVGroup> kv_;
  std::deque<Buffer> buffers_;
  std::deque<ExpertOrder> expert_orders_;
  std::deque<std::vector<ExpertMatrix>> expert_matrices_;
  Arena arena_;
  std::vector<std::shared_ptr<Memory>> memory_;  // of buffers and orders
  size_t claimed_bytes_ = 0;
  std::deque<Node> body_;
  std::deque<Node> head_;
  Node* last_product_ = nullptr;  // of those added so far
  bool has_head_ = false;
  size_t tail_begin_ = std::numeric_limits<size_t>::max();
  bool has_attention_ = false;
  int num_embeddings_;  // rows of the smallest table that token ids index
  int max_kv_heads_ = 1;
  size_t max_row_floats_ = 0;  // of the partial results of one token, all heads
  // The arrays of a drafting pass.
  struct PassRows {
    std::vector<int32_t> token_ids, positions, query_starts, seq_lens, table_rows, logit_rows;
    std::vector<int32_t> next_positions, slots[kMaxGroups];
    std::vector<int32_t> zeros, none;  // sampling that is greedy
    std::vector<float> off, ones;
    std::vector<uint64_t> seeds;
  };

  PassRows pass_;
  std::vector<const Buffer*> stored_taps_;
  SlotRows stored_{};
  std::vector<AttentionTask> tasks_;
  std::deque<Attention> attentions_;
  size_t num_before_attention_ = 0;  // body ops up to the last attention so far
  std::vector<std::vector<int32_t>> blocks_to_read_;  // by KV group
  std::unique_ptr<Memory> partials_;
  std::vector<std::atomic<int>> splits_done_;
  std::vector<std::unique_ptr<Memory>> scratch_;
  std::atomic<int> failed_row_{-1};
  FetchTrial fetch_trial_;
  bool few_rows_fetch_ = false;  // in this step
  const std::shared_ptr<Team> team_;
};

}  // namespace hasten
