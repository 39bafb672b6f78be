// The Python module `hasten.kernels.cpu._native`: memory, packing, and programs.
//
// Sizes of arrays are checked here, in bound_program.h and in program.cpp; an array that an op keeps
// (a weight, a table) stays alive because the program holds a reference to it.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "bound_program.h"
#include "fetch_trial.h"
#include "machine_limits.h"
#include "packing.h"

using namespace nanobind::literals;

namespace hasten {
namespace {


PackedWeight packed_shape(int format, int scales, int rows, int width, int scale_groups) {
  PackedWeight weight;
  weight.format = static_cast<WeightFormat>(format);
  weight.scales = static_cast<ScaleType>(scales);
  weight.rows = rows;
  weight.width = width;
  weight.scale_groups = scale_groups;
  require(format >= 0 && format <= static_cast<int>(WeightFormat::kFp8), "an unknown weight format");
  require(rows > 0 && width > 0 && width % kGroup == 0 && scale_groups > 0,
          "a packed weight needs whole groups");
  return weight;
}

Packed make_packed(int format, int scales, int rows, int width, int scale_groups,
                   Vector<uint8_t> data) {
  PackedWeight weight = packed_shape(format, scales, rows, width, scale_groups);
  const size_t bytes = weight.tile_bytes() * static_cast<size_t>(weight.tiles());
  require(data.size() == bytes, "a packed weight's data has another size");
  weight.data = data.data();
  return {weight, std::move(data)};
}

size_t packed_bytes(int format, int scales, int rows, int width, int scale_groups) {
  const PackedWeight weight = packed_shape(format, scales, rows, width, scale_groups);
  return weight.tile_bytes() * static_cast<size_t>(weight.tiles());
}

PackedWeight target_shape(int format, int scales, int rows, int width, size_t bytes) {
  const PackedWeight shape = packed_shape(format, scales, rows, round_up(width, kGroup), 1);
  require(bytes == shape.tile_bytes() * static_cast<size_t>(shape.tiles()),
          "the packed array has another size");
  return shape;
}

using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void pack_integers_into(int format, int scale_type, int group_size, const Matrix<uint8_t>& q,
                        const AnyMatrix& scales, const std::optional<AnyMatrix>& offsets,
                        const MutableVector<uint8_t>& out) {
  const bool is_int4 = static_cast<WeightFormat>(format) == WeightFormat::kInt4;
  const int rows = static_cast<int>(q.shape(0));
  const int width = static_cast<int>(q.shape(1)) * (is_int4 ? 2 : 1);
  require(group_size > 0 && group_size % kGroup == 0 && width % group_size == 0,
          "groups must be multiples of 32 that divide the inputs");
  const PackedWeight shape = target_shape(format, scale_type, rows, width, out.size());
  const auto fits = [&](const AnyMatrix& m) {
    return m.itemsize() == shape.scale_bytes() && m.shape(0) == q.shape(0) &&
           m.shape(1) == static_cast<size_t>(width / group_size);
  };
  require(fits(scales) && (!offsets || fits(*offsets)), "scales of another shape or type");
  require((shape.format == WeightFormat::kInt8) == !offsets, "offsets and format disagree");
  const IntegerSource source{q.data(), scales.data(), offsets ? offsets->data() : nullptr,
                             rows,     width,         group_size};
  nb::gil_scoped_release release;
  pack_integers(source, shape, out.data());
}

void pack_dense_into(int format, const Matrix<float>& values, const MutableVector<uint8_t>& out) {
  const int rows = static_cast<int>(values.shape(0)), width = static_cast<int>(values.shape(1));
  const PackedWeight shape = target_shape(format, 1, rows, width, out.size());
  const float* from = values.data();
  nb::gil_scoped_release release;
  pack_dense(from, rows, width, shape, out.data());
}

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes owned_bytes(uint8_t* data, size_t num_bytes, std::shared_ptr<Memory> memory) {
  auto* owner = new std::shared_ptr<Memory>(std::move(memory));
  nb::capsule capsule(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<Memory>*>(p); });
  return Bytes(data, {num_bytes}, capsule);
}

Bytes allocate(size_t num_bytes) {
  auto memory = std::make_shared<Memory>(num_bytes);
  return owned_bytes(memory->data(), num_bytes, memory);
}

Bytes take(Arena& arena, size_t num_bytes) {
  const Arena::Place place = arena.take(num_bytes);
  return owned_bytes(place.data, num_bytes, place.memory);
}

}  // namespace
}  // namespace hasten

NB_MODULE(_native, m) {
  namespace nb = nanobind;
  using namespace hasten;
  m.def("allocate", &allocate, "num_bytes"_a);
  nb::class_<Arena>(m, "Arena").def(nb::init<>()).def("take", &take, "num_bytes"_a);
  m.def("bytes_per_second", &bytes_per_second, "isa"_a, "num_threads"_a, "num_bytes"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("multiply_adds_per_second", &multiply_adds_per_second, "isa"_a, "num_threads"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("best_isa", [](const std::string& limit) { return kernel_table(limit).name; }, "limit"_a);
  m.def("packed_bytes", &packed_bytes, "weight_format"_a, "scales"_a, "rows"_a, "width"_a,
        "scale_groups"_a = 1);
  m.def("pack_integers", &pack_integers_into, "weight_format"_a, "scale_type"_a, "group_size"_a, "q"_a,
        "scales"_a, "offsets"_a.none(), "out"_a);
  m.def("pack_dense", &pack_dense_into, "weight_format"_a, "values"_a, "out"_a);
  nb::class_<Packed>(m, "Packed").def_prop_ro("num_bytes", [](const Packed& p) {
    return p.data.size();
  });
  m.def("packed", &make_packed, "weight_format"_a, "scales"_a, "rows"_a, "width"_a, "scale_groups"_a,
        "data"_a);
  nb::class_<FetchTrial>(m, "FetchTrial")
      .def(nb::init<>())
      .def("begin", &FetchTrial::begin, "num_rows"_a)
      .def("end", &FetchTrial::end, "seconds"_a);
  nb::class_<Team>(m, "Team").def(nb::init<int>(), "num_threads"_a);
  nb::class_<BoundProgram>(m, "Program")
      .def(nb::init<const std::string&, std::shared_ptr<Team>, int, int, int, int, int,
                    const std::vector<MutableVector<uint8_t>>&,
                    const std::vector<std::vector<int>>&>(),
           "isa"_a, "team"_a, "max_tokens"_a, "max_requests"_a, "max_logit_rows"_a,
           "max_model_len"_a, "vocab_size"_a, "kv_data"_a, "kv_shapes"_a)
      .def("add_buffer", &BoundProgram::add_buffer, "width"_a, "has_logit_rows"_a, "forms"_a)
      .def("embed", &BoundProgram::embed, "table"_a, "scale"_a, "out"_a, "forms"_a)
      .def("rms_norm", &BoundProgram::rms_norm, "x"_a, "residual"_a, "weight"_a, "eps"_a, "out"_a,
           "forms"_a)
      .def("linear", &BoundProgram::linear, "x"_a, "weight"_a, "bias"_a.none(), "activation"_a,
           "out_begin"_a, "out"_a, "forms"_a, "adds"_a)
      .def("rope_store_kv", &BoundProgram::rope_store_kv, "qkv"_a, "group_id"_a, "layer_idx"_a,
           "num_heads"_a, "num_kv_heads"_a, "head_size"_a, "cos"_a, "sin"_a, "q_norm"_a.none(),
           "k_norm"_a.none(), "eps"_a, "k_scale"_a, "v_scale"_a, "is_bf16"_a)
      .def("paged_attention", &BoundProgram::paged_attention, "qkv"_a, "group_id"_a, "layer_idx"_a,
           "num_heads"_a, "num_kv_heads"_a, "head_size"_a, "scale"_a, "window"_a, "softcap"_a,
           "sinks"_a.none(), "is_exact"_a, "out"_a, "forms"_a)
      .def("act_mul", &BoundProgram::act_mul, "x"_a, "activation"_a, "out"_a, "forms"_a)
      .def("gather_rows", &BoundProgram::gather_rows, "x"_a, "out"_a, "forms"_a)
      .def("form", &BoundProgram::form, "x"_a, "out"_a, "forms"_a)
      .def("norm_columns", &BoundProgram::norm_columns, "x"_a, "begin"_a, "weight"_a, "eps"_a)
      .def("add_scaled", &BoundProgram::add_scaled, "x"_a, "out"_a, "scale"_a)
      .def("scale_logits", &BoundProgram::scale_logits, "logits"_a, "scale"_a, "softcap"_a)
      .def("route", &BoundProgram::route, "logits"_a, "num_active"_a, "renormalizes"_a, "out"_a)
      .def("add_expert_order", &BoundProgram::add_expert_order, "num_experts"_a, "num_active"_a)
      .def("add_expert_rows", &BoundProgram::add_expert_rows, "width"_a, "num_active"_a, "forms"_a)
      .def("sort_experts", &BoundProgram::sort_experts, "routing"_a, "order"_a)
      .def("gather_experts", &BoundProgram::gather_experts, "x"_a, "order"_a, "out"_a, "forms"_a)
      .def("grouped_linear", &BoundProgram::grouped_linear, "rows"_a, "order"_a, "matrices"_a,
           "part_width"_a, "out"_a)
      .def("combine_experts", &BoundProgram::combine_experts, "x"_a, "routing"_a, "out"_a, "forms"_a)
      .def("begin_tail", &BoundProgram::begin_tail)
      .def("sample", &BoundProgram::sample, "logits"_a)
      .def("rows", [](nb::handle self, int index) {
        return nb::cast<BoundProgram&>(self).rows(self, index);
      }, "buffer"_a)
      .def_prop_ro("num_bytes", &BoundProgram::num_bytes)
      .def_prop_ro("isa", &BoundProgram::isa)
      .def("run", &BoundProgram::run, "token_ids"_a, "positions"_a, "query_starts"_a, "seq_lens"_a,
           "table_rows"_a, "logit_rows"_a, "groups"_a, "sampling"_a, "counts"_a.none(),
           "bias"_a.none(), "mask_idx"_a.none(), "masks"_a.none(), "masks_ready"_a.none(), "num_top"_a,
           "out_token_ids"_a,
           "out_logprobs"_a, "out_top_ids"_a, "out_top_logprobs"_a)
      .def("bind_chain", &BoundProgram::bind_chain, "translation"_a.none(), "first_group"_a, "end_group"_a,
           "least_shared"_a, "known"_a.none(), "features"_a, "hidden"_a, "left"_a)
      .def("store_taps", &BoundProgram::store_taps, "taps"_a, "group_id"_a, "rows"_a)
      .def("draft", &BoundProgram::draft, "token_ids"_a, "query_starts"_a, "starts"_a,
           "table_rows"_a, "guessing"_a, "tables"_a, "sampling"_a.none(), "mask_idx"_a.none(),
           "masks"_a.none(), "hidden"_a.none(), "num_passes"_a, "least_survival"_a, "survivals"_a,
           "out_token_ids"_a, "out_logprobs"_a);
}
