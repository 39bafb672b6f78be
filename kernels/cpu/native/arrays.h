// Arrays that Python hands over, as types; and the check that all of the module uses.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "ops.h"

namespace hasten {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using MutableMatrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using MutableVector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// The form of inputs that weights of a format are multiplied with.
inline unsigned input_form(WeightFormat format) {
  if (format == WeightFormat::kBf16 || format == WeightFormat::kFp8) return kBf16;
  return format == WeightFormat::kF32 ? kF32 : kInt8;
}

// A packed matrix and the array that holds it.
struct Packed {
  PackedWeight weight;
  Vector<uint8_t> data;
};

}  // namespace hasten
