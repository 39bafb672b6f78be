// A program as Python builds and runs it: operands are checked and kept alive here.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "program.h"
#include "step_arrays.h"

namespace hasten {

// A program, and the Python arrays that its ops point into.
class BoundProgram {
 public:
  BoundProgram(const std::string& isa, std::shared_ptr<Team> team, int max_tokens,
               int max_requests, int max_logit_rows, int max_model_len, int vocab_size,
               const std::vector<MutableVector<uint8_t>>& kv_data,
               const std::vector<std::vector<int>>& kv_shapes)
      : program_(isa, std::move(team), {max_tokens, max_requests, max_logit_rows, max_model_len},
                 vocab_size, kv_groups(kv_data, kv_shapes)),
        kv_data_(kv_data) {}

  int add_buffer(int width, bool has_logit_rows, unsigned forms) {
    require(width > 0 && sizeof(float) * static_cast<size_t>(width) <= kScratchBytes / 2,
            "a buffer's width is out of range");
    buffers_.push_back(program_.add_buffer(width, has_logit_rows, forms));
    return static_cast<int>(buffers_.size()) - 1;
  }

  void embed(const Packed& table, float scale, int out, unsigned forms) {
    EmbedOp op;
    op.table = keep(table);
    op.scale = scale;
    op.out = output(out, forms);
    require(op.out.buffer->padded_width() == table.weight.width, "embed: widths differ");
    program_.add(op);
  }

  void rms_norm(int x, int residual, const Vector<float>& weight, float eps, int out,
                unsigned forms) {
    RmsNormOp op;
    op.x = plain(x);
    op.residual = residual < 0 ? nullptr : plain(residual);
    op.weight = keep(weight, static_cast<size_t>(op.x->width));
    op.eps = eps;
    op.out = output(out, forms);
    require(op.out.buffer->width == op.x->width &&
                (op.residual == nullptr || op.residual->width == op.x->width),
            "rms_norm: widths differ");
    program_.add(op);
  }

  void linear(int x, const Packed& weight, const std::optional<Vector<float>>& bias, int activation,
              int out_begin, int out, unsigned forms, bool adds) {
    LinearOp op;
    op.x = buffer(x);
    op.weight = keep(weight);
    op.activation = static_cast<Activation>(activation);
    require(op.x->padded_width() == op.weight.width, "linear: the inputs differ");
    require(op.x->forms() & input_form(op.weight.format), "linear: the inputs lack its form");
    const size_t outputs = static_cast<size_t>(op.weight.tiles() * kTileCols);
    op.bias = bias ? keep(*bias, outputs) : nullptr;
    op.out_begin = out_begin;
    op.out = output(out, forms);
    const int written = op.activation == Activation::kNone ? op.weight.rows : op.weight.rows / 2;
    require(out_begin >= 0 && out_begin + written <= op.out.buffer->width,
            "linear: the outputs do not fit");
    op.adds = adds;
    require(!adds || (forms == kPlain && op.activation == Activation::kNone),
            "linear: only plain products are added");
    program_.add(op);
  }

  void rope_store_kv(int qkv, int group_id, int layer_idx, int num_heads, int num_kv_heads,
                     int head_size, const Matrix<float>& cos, const Matrix<float>& sin,
                     const std::optional<Vector<float>>& q_norm,
                     const std::optional<Vector<float>>& k_norm, float eps, float k_scale,
                     float v_scale, bool is_bf16) {
    RopeStoreOp op;
    op.qkv = plain(qkv);
    op.group_id = group_id;
    op.layer_idx = layer_idx;
    op.num_heads = num_heads;
    op.num_kv_heads = num_kv_heads;
    op.head_size = head_size;
    op.rotary_dim = 2 * static_cast<int>(cos.shape(1));
    check_heads(group_id, layer_idx, num_kv_heads, head_size);
    require(num_heads >= 0 && op.qkv->width == (num_heads + 2 * num_kv_heads) * head_size &&
                op.rotary_dim <= head_size,
            "rope: qkv or the rotation has another width than the heads");
    const size_t angles = static_cast<size_t>(program_.capacity().max_model_len) * cos.shape(1);
    require(cos.size() == angles && sin.size() == angles, "rope: tables of another size");
    kept_.emplace_back(nb::cast(cos));
    kept_.emplace_back(nb::cast(sin));
    op.cos = cos.data();
    op.sin = sin.data();
    op.q_norm = q_norm ? keep(*q_norm, static_cast<size_t>(head_size)) : nullptr;
    op.k_norm = k_norm ? keep(*k_norm, static_cast<size_t>(head_size)) : nullptr;
    op.norm_eps = eps;
    op.k_scale = k_scale;
    op.v_scale = v_scale;
    op.is_bf16 = is_bf16;
    program_.add(op);
  }

  void paged_attention(int qkv, int group_id, int layer_idx, int num_heads, int num_kv_heads,
                       int head_size, float scale, int window, float softcap,
                       const std::optional<Vector<float>>& sinks, bool is_exact, int out,
                       unsigned forms) {
    AttentionOp op;
    op.qkv = plain(qkv);
    op.group_id = group_id;
    op.layer_idx = layer_idx;
    op.num_heads = num_heads;
    op.num_kv_heads = num_kv_heads;
    op.head_size = head_size;
    check_heads(group_id, layer_idx, num_kv_heads, head_size);
    op.scale = scale;
    op.window = window;
    op.softcap = softcap;
    op.sinks = sinks ? keep(*sinks, static_cast<size_t>(num_heads)) : nullptr;
    op.is_exact = is_exact;
    op.out = output(out, forms);
    require(num_heads > 0 && num_heads % num_kv_heads == 0 &&
                op.qkv->width == (num_heads + 2 * num_kv_heads) * head_size &&
                op.out.buffer->width == num_heads * head_size,
            "attention: the widths do not fit the heads");
    program_.add(op);
  }

  void act_mul(int x, int activation, int out, unsigned forms) {
    ActMulOp op;
    op.x = plain(x);
    op.activation = static_cast<Activation>(activation);
    op.out = output(out, forms);
    require(op.x->width == 2 * op.out.buffer->width, "act_mul: the widths do not fit");
    program_.add(op);
  }

  void gather_rows(int x, int out, unsigned forms) {
    GatherOp op;
    op.x = plain(x);
    op.out = output(out, forms);
    require(op.x->width == op.out.buffer->width, "gather_rows: widths differ");
    program_.add(op);
  }

  void form(int x, int out, unsigned forms) {
    FormOp op;
    op.x = plain(x);
    op.out = output(out, forms);
    require(op.x->width == op.out.buffer->width && op.x->capacity <= op.out.buffer->capacity,
            "form: the rows do not fit");
    program_.add(op);
  }

  void norm_columns(int x, int begin, const Vector<float>& weight, float eps) {
    NormColumnsOp op;
    op.x = plain(x);
    op.begin = begin;
    op.end = begin + static_cast<int>(weight.size());
    require(begin >= 0 && op.end <= op.x->width, "norm_columns: the columns do not fit");
    op.weight = keep(weight, weight.size());
    op.eps = eps;
    program_.add(op);
  }

  void add_scaled(int x, int out, float scale) {
    AddScaledOp op;
    op.x = plain(x);
    op.out = plain(out);
    require(op.x->width == op.out->width, "add_scaled: widths differ");
    op.scale = scale;
    program_.add(op);
  }

  void scale_logits(int logits, float scale, float softcap) {
    program_.add(ScaleLogitsOp{plain(logits), scale, softcap});
  }

  void route(int logits, int num_active, bool renormalizes, int out) {
    const RouteOp op{plain(logits), plain(out), num_active, renormalizes};
    require(num_active > 0 && num_active <= op.logits->width && op.out->width == 2 * num_active,
            "route: the widths do not fit");
    program_.add(op);
  }

  int add_expert_order(int num_experts, int num_active) {
    require(num_experts > 0 && num_active > 0, "an expert order needs experts");
    orders_.push_back(program_.add_expert_order(num_experts, num_active));
    return static_cast<int>(orders_.size()) - 1;
  }

  int add_expert_rows(int width, int num_active, unsigned forms) {
    require(width > 0 && num_active > 0, "expert rows need a width");
    buffers_.push_back(program_.add_expert_rows(width, num_active, forms));
    return static_cast<int>(buffers_.size()) - 1;
  }

  void sort_experts(int routing, int order) {
    const SortExpertsOp op{plain(routing), orders_.at(static_cast<size_t>(order))};
    require(op.routing->width == 2 * op.order->num_active, "sort_experts: the widths do not fit");
    program_.add(op);
  }

  void gather_experts(int x, int order, int out, unsigned forms) {
    GatherExpertsOp op;
    op.x = plain(x);
    op.order = orders_.at(static_cast<size_t>(order));
    op.out = output(out, forms);
    const int width = op.out.buffer->width, active = op.order->num_active;
    require(op.x->width == width || op.x->width == active * width,
            "gather_experts: the widths do not fit");
    require(op.out.buffer->capacity >= program_.capacity().max_tokens * active,
            "gather_experts: too few rows");
    program_.add(op);
  }

  void grouped_linear(int rows, int order,
                      const std::vector<std::tuple<const Packed*, int, int>>& matrices,
                      int part_width, int out) {
    GroupedLinearOp op;
    op.rows = buffer(rows);
    op.order = orders_.at(static_cast<size_t>(order));
    op.part_width = part_width;
    op.out = plain(out);
    std::vector<ExpertMatrix> kept;
    for (const auto& [packed, expert, out_begin] : matrices) {
      const int last = out_begin + (op.order->num_active - 1) * part_width + packed->weight.rows;
      require(expert >= 0 && expert < op.order->num_experts && out_begin >= 0 &&
                  last <= op.out->width && packed->weight.width == op.rows->padded_width() &&
                  (op.rows->forms() & input_form(packed->weight.format)),
              "grouped_linear: a matrix does not fit");
      kept.push_back({keep(*packed), expert, out_begin});
    }
    program_.add(op, std::move(kept));
  }

  void combine_experts(int x, int routing, int out, unsigned forms) {
    CombineExpertsOp op;
    op.x = plain(x);
    op.routing = plain(routing);
    op.out = output(out, forms);
    require(2 * op.x->width == op.out.buffer->width * op.routing->width,
            "combine_experts: the widths do not fit");
    program_.add(op);
  }

  void begin_tail() { program_.begin_tail(); }

  void sample(int logits) {
    SampleOp op;
    op.logits = plain(logits);
    require(op.logits->width == program_.vocab_size(), "sample: not as wide as the vocabulary");
    program_.add(op);
  }

  // The rows of a plain buffer, [capacity, width], as the last step left them.
  nb::ndarray<nb::numpy, float, nb::ndim<2>> rows(nb::handle self, int index) {
    const Buffer* b = plain(index);
    return nb::ndarray<nb::numpy, float, nb::ndim<2>>(
        b->plain, {static_cast<size_t>(b->capacity), static_cast<size_t>(b->width)}, self);
  }

  size_t num_bytes() const { return program_.num_bytes(); }
  const char* isa() const { return program_.kernels().name; }

  // How `draft` goes on, see `Chain`; without `known` the passes read nothing but tokens.
  void bind_chain(const std::optional<Vector<int32_t>>& translation, int first_group, int end_group,
                  float least_shared, const std::optional<MutableMatrix<uint16_t>>& known,
                  int features, int hidden, int left) {
    Chain chain;
    if (translation) {
      require(static_cast<int>(translation->size()) == program_.vocab_size(),
              "a translation is of the whole vocabulary");
      chain.translation.assign(translation->data(), translation->data() + translation->size());
    }
    const int num_groups = static_cast<int>(program_.kv().size());
    require(0 <= first_group && first_group < end_group && end_group <= num_groups,
            "a chain of groups that there are not");
    chain.first_group = first_group;
    chain.end_group = end_group;
    chain.least_shared = least_shared;
    if (known) {
      chain.known = slot_rows(*known, first_group);
      chain.features = plain(features);
      chain.hidden = plain(hidden);
      chain.left = plain(left);
      const Capacity& capacity = program_.capacity();
      require(chain.features->width == chain.known.width &&
                  chain.hidden->width == chain.left->width &&
                  chain.features->capacity >= capacity.max_tokens &&
                  chain.hidden->capacity >= capacity.max_tokens &&
                  chain.left->capacity >= capacity.max_logit_rows,
              "the features of a chain do not fit its program");
    }
    chain_ = std::move(chain);
  }

  // See `Program::store_taps`.
  void store_taps(const std::vector<int>& taps, int group_id, const MutableMatrix<uint16_t>& rows) {
    std::vector<const Buffer*> buffers;
    for (const int tap : taps) {
      buffers.push_back(plain(tap));
      require(buffers.back()->capacity >= program_.capacity().max_tokens, "a tap of logit rows");
    }
    program_.store_taps(std::move(buffers), slot_rows(rows, group_id));
  }

  // Runs the chain; `sampling` is None where guesses are greedy. Returns the number of passes.
  int draft(const Vector<int32_t>& token_ids, const Vector<int32_t>& query_starts,
            const Vector<int32_t>& starts, const Vector<int32_t>& table_rows,
            const Vector<int32_t>& guessing, const nb::tuple& tables, const nb::object& sampling,
            const std::optional<Vector<int32_t>>& mask_idx,
            const std::optional<Matrix<uint32_t>>& masks, const std::optional<Matrix<float>>& hidden,
            int num_passes, float least_survival, const MutableVector<float>& survivals,
            const MutableVector<int32_t>& out_token_ids, const MutableVector<float>& out_logprobs) {
    require(chain_.has_value(), "no chain is bound");
    DraftRows rows;
    rows.num_tokens = static_cast<int>(token_ids.size());
    rows.num_requests = static_cast<int>(starts.size());
    rows.num_guesses = static_cast<int>(guessing.size());
    require(query_starts.size() == starts.size() + 1, "query_starts must be one longer than starts");
    require(table_rows.size() == starts.size(), "table_rows has another length than starts");
    require(survivals.size() == guessing.size(), "survivals has another length than guessing");
    rows.token_ids = token_ids.data();
    rows.query_starts = query_starts.data();
    rows.starts = starts.data();
    rows.table_rows = table_rows.data();
    rows.guessing = guessing.data();
    rows.num_passes = num_passes;
    rows.least_survival = least_survival;
    rows.survivals = survivals.data();
    rows.is_greedy = sampling.is_none();
    if (hidden) {
      require(chain_->hidden != nullptr && hidden->shape(0) == token_ids.size() &&
                  static_cast<int>(hidden->shape(1)) == chain_->hidden->width,
              "hidden rows of another shape than the tokens'");
      rows.hidden = hidden->data();
    }
    Step step;
    require(tables.size() == program_.kv().size(), "a table for each KV group");
    for (nb::handle table : tables) read_table(step, table);
    step.num_logit_rows = rows.num_guesses;
    if (!rows.is_greedy) {
      read_sampling(step, nb::cast<nb::tuple>(sampling), nb::none(), nb::none());
      read_masks(step, mask_idx, masks);
    }
    const size_t most = guessing.size() * static_cast<size_t>(std::max(num_passes, 1));
    require(num_passes >= 1 && out_token_ids.size() >= most && out_logprobs.size() >= most,
            "the result arrays are too small");
    step.out_token_ids = out_token_ids.data();
    step.out_logprobs = out_logprobs.data();
    nb::gil_scoped_release release;
    return program_.run_chain(step, *chain_, rows);
  }

  void run(const Vector<int32_t>& token_ids, const Vector<int32_t>& positions,
           const Vector<int32_t>& query_starts, const Vector<int32_t>& seq_lens,
           const Vector<int32_t>& table_rows, const Vector<int32_t>& logit_rows,
           const nb::tuple& groups, const nb::tuple& sampling, const nb::object& counts,
           const nb::object& bias, const std::optional<Vector<int32_t>>& mask_idx,
           const std::optional<Matrix<uint32_t>>& masks,
           const std::optional<Vector<int32_t>>& masks_ready, int num_top,
           const MutableVector<int32_t>& out_token_ids, const MutableVector<float>& out_logprobs,
           const MutableVector<int32_t>& out_top_ids, const MutableVector<float>& out_top_logprobs) {
    Step step;
    step.num_tokens = static_cast<int>(token_ids.size());
    step.num_requests = static_cast<int>(seq_lens.size());
    step.num_logit_rows = static_cast<int>(logit_rows.size());
    require(positions.size() == token_ids.size(), "positions has another length than token_ids");
    require(query_starts.size() == seq_lens.size() + 1, "query_starts must be one longer than seq_lens");
    require(table_rows.size() == seq_lens.size(), "table_rows has another length than seq_lens");
    step.token_ids = token_ids.data();
    step.positions = positions.data();
    step.query_starts = query_starts.data();
    step.seq_lens = seq_lens.data();
    step.table_rows = table_rows.data();
    step.logit_rows = logit_rows.data();
    require(groups.size() <= kMaxGroups, "too many KV groups");
    for (nb::handle group : groups) read_group(step, group);
    read_sampling(step, sampling, counts, bias);
    read_masks(step, mask_idx, masks);
    if (masks_ready) {
      require(masks_ready->size() == 1, "masks_ready is one number");
      step.sampling.masks_ready = masks_ready->data();
    }
    const size_t rows = logit_rows.size(), tops = rows * static_cast<size_t>(num_top);
    require(num_top >= 0 && out_token_ids.size() >= rows && out_logprobs.size() >= rows &&
                out_top_ids.size() >= tops && out_top_logprobs.size() >= tops,
            "the result arrays are too small");
    step.num_top = num_top;
    step.out_token_ids = out_token_ids.data();
    step.out_logprobs = out_logprobs.data();
    step.out_top_ids = out_top_ids.data();
    step.out_top_logprobs = out_top_logprobs.data();
    nb::gil_scoped_release release;
    program_.run(step);
  }

 private:
  SlotRows slot_rows(const MutableMatrix<uint16_t>& rows, int group_id) {
    require(group_id >= 0 && static_cast<size_t>(group_id) < program_.kv().size(),
            "rows of a group that there is not");
    const KVGroup& kv = program_.kv()[static_cast<size_t>(group_id)];
    require(rows.shape(0) == static_cast<size_t>(kv.num_blocks) * static_cast<size_t>(kv.block_size),
            "a row is kept for each slot of the group");
    kept_.emplace_back(nb::cast(rows));
    return {rows.data(), static_cast<int>(rows.shape(0)), static_cast<int>(rows.shape(1)), group_id};
  }

  static std::vector<KVGroup> kv_groups(const std::vector<MutableVector<uint8_t>>& data,
                                        const std::vector<std::vector<int>>& shapes) {
    require(data.size() == shapes.size(), "one shape for each KV group");
    std::vector<KVGroup> groups;
    for (size_t i = 0; i < data.size(); ++i) {
      const std::vector<int>& s = shapes[i];
      require(s.size() == 6, "a KV shape is layers, heads, head size, blocks, block size, type");
      KVGroup kv;
      kv.num_layers = s[0];
      kv.num_kv_heads = s[1];
      kv.head_size = s[2];
      kv.num_blocks = s[3];
      kv.block_size = s[4];
      require(s[5] >= 0 && s[5] <= static_cast<int>(KVType::kFp8), "a KV type that is not known");
      kv.type = static_cast<KVType>(s[5]);
      require(std::all_of(s.begin(), s.end() - 1, [](int n) { return n > 0; }),
              "a KV shape must be positive");
      require(kv.head_size % 16 == 0 && kv.head_size <= kMaxHeadSize,
              "KV heads come in multiples of 16");
      require(kv.block_size == 8 || kv.block_size % kKVTile == 0,
              "KV blocks have 8 tokens or a multiple of 16");
      kv.run_bits = KVGroup::run_bits_of(kv.block_size);
      require(data[i].size() >= kv.num_bytes(), "the KV cache is too small");
      kv.data = data[i].data();
      groups.push_back(kv);
    }
    return groups;
  }

  const Buffer* buffer(int index) const { return buffers_.at(static_cast<size_t>(index)); }
  const Buffer* plain(int index) const {
    const Buffer* b = buffer(index);
    require(b->plain != nullptr, "an op needs plain rows of a buffer that has none");
    return b;
  }
  Output output(int index, unsigned forms) const {
    const Buffer* b = buffer(index);
    require((forms & ~b->forms()) == 0, "an op leaves forms that its buffer has no room for");
    return {b, forms};
  }

  PackedWeight keep(const Packed& packed) {
    kept_.emplace_back(nb::cast(packed.data));
    return packed.weight;
  }
  const float* keep(const Vector<float>& values, size_t size) {
    require(values.size() == size, "a vector has another length");
    kept_.emplace_back(nb::cast(values));
    return values.data();
  }

  void check_heads(int group_id, int layer_idx, int num_kv_heads, int head_size) const {
    const auto& kv = program_.kv().at(static_cast<size_t>(group_id));
    require(layer_idx >= 0 && layer_idx < kv.num_layers && num_kv_heads == kv.num_kv_heads &&
                round_up(head_size, 16) == kv.head_size,
            "the heads differ from those of the KV cache");
  }

  Program program_;
  std::vector<MutableVector<uint8_t>> kv_data_;
  std::vector<const Buffer*> buffers_;
  std::vector<const ExpertOrder*> orders_;
  std::vector<nb::object> kept_;
  std::optional<Chain> chain_;
};

}  // namespace hasten
