// spec/text_index.py and spec/drafting.py again, for every step: what is described there, token for
// token and bit for bit (tests/unit/spec/test_compiled.py).
//
// It keeps texts of its own, of 4 bytes a token: a step drives Python's integers out of the
// processor's caches.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "place_map.h"

namespace hasten {

namespace nb = nanobind;

constexpr size_t kChainedLen = 3;
constexpr std::array<size_t, 6> kContextLens{32, 16, 8, 6, 5, 4};
constexpr size_t kMaxMatches = 8;
constexpr size_t kLongEnough = 16;
constexpr std::array<double, 16> kWorth{0.0,  0.2,  0.5,  0.65, 0.68, 0.74, 0.78, 0.81,
                                        0.84, 0.86, 0.88, 0.89, 0.9,  0.91, 0.92, 0.93};
constexpr double kWorthOfLonger = 0.95;

struct Guesses {
  std::vector<int32_t> token_ids;
  std::vector<double> confidences;
};

class TextIndex {
 public:
  size_t num_tokens() const { return num_tokens_; }

  // Indexes tokens[start:], also as they grow (see `extend`). Returns the text's id.
  size_t add(nb::list tokens, size_t start);

  // Takes in what a text has grown by since.
  void extend(size_t text_id);

  // At most `depth` guesses of how a text goes on, by this index and an older one.
  std::optional<Guesses> draft(size_t text_id, size_t depth, TextIndex* older);

 private:
  struct Text {
    nb::list list;                // which it grows in
    std::vector<int32_t> tokens;  // those of the list that were read so far
    size_t start;
    std::vector<uint64_t> links;  // links[i] is that of place start + kChainedLen + i

    // Reads what the list has grown by.
    void read();
    size_t next_place() const { return start + kChainedLen + links.size(); }
    uint64_t link(size_t place) const { return links[place - start - kChainedLen]; }
  };

  struct Match {
    const Text* text;
    size_t place;
    size_t length;
  };
  using Matches = std::vector<Match>;

  void find(const std::vector<int32_t>& end, Matches* found);
  void follow_chain(uint64_t packed, const std::vector<int32_t>& end, Matches* found);
  Text& checked(size_t text_id);

  size_t num_tokens_ = 0;
  std::vector<Text> texts_;
  PlaceMap latest_;
};

}  // namespace hasten
