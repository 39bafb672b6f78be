// One step's arrays into a `Step`: their lengths are checked here, what they hold in program.cpp.
#pragma once

#include <optional>

#include "arrays.h"

namespace hasten {

// The array itself: a copy in another type would be gone before the step runs.
template <class Array>
Array array_of(nb::handle from) {
  Array array;
  require(nb::try_cast(from, array, false), "an array of another type, dimension or layout");
  return array;
}

// The block tables of the next KV group.
inline GroupTables& read_table(Step& step, nb::handle from) {
  const auto tables = array_of<Matrix<int32_t>>(from);
  GroupTables& to = step.groups[step.num_groups++];
  to.block_tables = tables.data();
  to.num_table_rows = static_cast<int>(tables.shape(0));
  to.table_width = static_cast<int>(tables.shape(1));
  return to;
}

inline void read_group(Step& step, nb::handle group) {
  const auto parts = nb::cast<nb::tuple>(group);
  require(parts.size() == 3, "a KV group has slots, tables and copies");
  const auto slots = array_of<Vector<int32_t>>(parts[0]);
  const auto copies = array_of<Matrix<int32_t>>(parts[2]);
  require(static_cast<int>(slots.size()) == step.num_tokens,
          "slot_mapping has another length than token_ids");
  require(copies.shape(0) == 0 || copies.shape(1) == 2, "block_copies must have two columns");
  GroupTables& to = read_table(step, parts[1]);
  to.slot_mapping = slots.data();
  to.block_copies = copies.data();
  to.num_copies = static_cast<int>(copies.shape(0));
}

template <class T>
const T* column(const Step& step, const nb::tuple& columns, size_t index) {
  const auto values = array_of<Vector<T>>(columns[index]);
  require(static_cast<int>(values.size()) == step.num_logit_rows,
          "a sampling column has another length than logit_rows");
  return values.data();
}

inline void read_sparse(const Step& step, const nb::object& from, SparseRows& to) {
  if (from.is_none()) return;
  const auto parts = nb::cast<nb::tuple>(from);
  const auto starts = array_of<Vector<int32_t>>(parts[0]);
  const auto token_ids = array_of<Vector<int32_t>>(parts[1]);
  const auto values = array_of<Vector<float>>(parts[2]);
  require(static_cast<int>(starts.size()) == step.num_logit_rows + 1 &&
              token_ids.size() == values.size(),
          "sparse rows have another length than logit_rows");
  to.num_entries = static_cast<int>(token_ids.size());
  to.starts = starts.data();
  to.token_ids = token_ids.data();
  to.values = values.data();
}

inline void read_sampling(Step& step, const nb::tuple& columns, const nb::object& counts,
                          const nb::object& bias) {
  SamplingRows& rows = step.sampling;
  rows.temperature = column<float>(step, columns, 0);
  rows.top_k = column<int32_t>(step, columns, 1);
  rows.top_p = column<float>(step, columns, 2);
  rows.min_p = column<float>(step, columns, 3);
  rows.repetition_penalty = column<float>(step, columns, 4);
  rows.frequency_penalty = column<float>(step, columns, 5);
  rows.presence_penalty = column<float>(step, columns, 6);
  rows.seeds = column<uint64_t>(step, columns, 7);
  rows.positions = column<int32_t>(step, columns, 8);
  rows.sample_idx = column<int32_t>(step, columns, 9);
  rows.num_logprobs = column<int32_t>(step, columns, 10);
  rows.target_ids = column<int32_t>(step, columns, 11);
  read_sparse(step, counts, rows.counts);
  read_sparse(step, bias, rows.bias);
}

inline void read_masks(Step& step, const std::optional<Vector<int32_t>>& mask_idx,
                       const std::optional<Matrix<uint32_t>>& masks) {
  if (!mask_idx || !masks) return;
  require(static_cast<int>(mask_idx->size()) == step.num_logit_rows,
          "mask_idx has another length than logit_rows");
  step.sampling.mask_idx = mask_idx->data();
  step.sampling.masks = masks->data();
  step.sampling.num_masks = static_cast<int>(masks->shape(0));
  step.sampling.mask_words = static_cast<int>(masks->shape(1));
}

}  // namespace hasten
