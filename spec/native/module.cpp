// The Python module `hasten.spec._native`: what speculation does in every step for every request.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "acceptance.h"
#include "text_index.h"

using namespace nanobind::literals;

namespace hasten {
namespace {

nb::object draft_after(TextIndex& index, size_t text_id, size_t depth, TextIndex* older) {
  const std::optional<Guesses> guesses = index.draft(text_id, depth, older);
  if (!guesses) return nb::none();
  return nb::make_tuple(nb::cast(guesses->token_ids), nb::cast(guesses->confidences));
}

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<TextIndex>(m, "TextIndex")
      .def(nb::init<>())
      .def_prop_ro("num_tokens", &TextIndex::num_tokens)
      .def("add", &TextIndex::add, "tokens"_a, "start"_a = 0)
      .def("extend", &TextIndex::extend, "text_id"_a);
  m.def("draft_after", draft_after, "index"_a, "text_id"_a, "depth"_a, "older"_a.none() = nb::none());

  nb::class_<AcceptanceHistory>(m, "AcceptanceHistory")
      .def(nb::init<>())
      .def("expected", &AcceptanceHistory::expected, "request_id"_a, "depth"_a, "least"_a = 0.0)
      .def("survivals", &AcceptanceHistory::survivals, "request_id"_a, "confidences"_a,
           "least"_a = 0.0)
      .def("observe", &AcceptanceHistory::observe, "request_id"_a, "drafted"_a, "confidences"_a,
           "came"_a)
      .def("forget", &AcceptanceHistory::forget, "request_id"_a);
}

}  // namespace hasten
