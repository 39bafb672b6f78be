#include "text_index.h"

#include <algorithm>
#include <stdexcept>

namespace hasten {
namespace {

constexpr int kTokenBits = 21;  // token ids are below 2^21 - 1, so three of them are one key
constexpr int kPlaceBits = 32;
constexpr uint64_t kPlaceMask = (uint64_t{1} << kPlaceBits) - 1;

uint64_t code_of(int32_t token) { return static_cast<uint64_t>(token) + 1; }

double worth_of(size_t length) { return length < kWorth.size() ? kWorth[length] : kWorthOfLonger; }

// What follows a match: the tokens in [begin, begin + count), then the same again and again, for
// `period` tokens each, until `num_tokens` are there.
struct Run {
  const int32_t* begin;
  size_t period;
  size_t num_tokens;

  int32_t operator[](size_t i) const { return begin[i % period]; }
};

// The runs vote, token by token; the first wins a tie.
Guesses vote(std::vector<Run> runs, size_t length) {
  Guesses guesses;
  for (size_t i = 0;; ++i) {
    std::erase_if(runs, [i](const Run& run) { return i >= run.num_tokens; });
    if (runs.empty()) return guesses;
    int32_t winner = 0;
    size_t most = 0;
    for (const Run& run : runs) {
      const int32_t token = run[i];
      const auto count = static_cast<size_t>(
          std::ranges::count_if(runs, [=](const Run& other) { return other[i] == token; }));
      if (count > most) winner = token, most = count;
    }
    guesses.token_ids.push_back(winner);
    guesses.confidences.push_back(worth_of(length + i) * static_cast<double>(most) /
                                  static_cast<double>(runs.size()));
    std::erase_if(runs, [=](const Run& run) { return run[i] != winner; });
  }
}

}  // namespace

void TextIndex::Text::read() {
  const size_t count = nb::len(list);
  for (size_t i = tokens.size(); i < count; ++i) tokens.push_back(nb::cast<int32_t>(list[i]));
}

TextIndex::Text& TextIndex::checked(size_t text_id) {
  if (text_id >= texts_.size()) throw std::out_of_range("no such text");
  return texts_[text_id];
}

size_t TextIndex::add(nb::list tokens, size_t start) {
  texts_.push_back({std::move(tokens), {}, start, {}});
  extend(texts_.size() - 1);
  return texts_.size() - 1;
}

void TextIndex::extend(size_t text_id) {
  Text& text = checked(text_id);
  text.read();
  const size_t begin = text.next_place(), end = text.tokens.size();
  if (begin >= end) return;
  num_tokens_ += end - begin;
  const int32_t* tokens = text.tokens.data();
  uint64_t a = code_of(tokens[begin - 3]), b = code_of(tokens[begin - 2]);
  for (size_t place = begin; place < end; ++place) {
    const uint64_t c = code_of(tokens[place - 1]);
    const uint64_t pair = b << kTokenBits | c, key = a << 2 * kTokenBits | pair;
    const uint64_t packed = static_cast<uint64_t>(text_id) << kPlaceBits | place;
    text.links.push_back(latest_.find(key));
    for (const uint64_t each : {key, pair, c}) latest_.set(each, packed);
    a = b, b = c;
  }
}

std::optional<Guesses> TextIndex::draft(size_t text_id, size_t depth, TextIndex* older) {
  Text& text = checked(text_id);
  text.read();
  Matches matches;
  find(text.tokens, &matches);
  if (older != nullptr) older->find(text.tokens, &matches);
  if (matches.empty() || depth == 0) return std::nullopt;
  const size_t length = std::ranges::max(matches, {}, &Match::length).length;
  std::vector<Run> runs;
  for (const Match& match : matches) {
    if (match.length != length) continue;
    const bool is_own = match.text->list.is(text.list);
    const std::vector<int32_t>& tokens = is_own ? text.tokens : match.text->tokens;
    const size_t left = tokens.size() - match.place;
    runs.push_back({tokens.data() + match.place, left, is_own ? depth : std::min(left, depth)});
  }
  return vote(std::move(runs), length);
}

void TextIndex::find(const std::vector<int32_t>& end, Matches* found) {
  if (end.size() < kChainedLen) return;
  const int32_t* last = end.data() + end.size();
  const uint64_t one = code_of(last[-1]), pair = code_of(last[-2]) << kTokenBits | one;
  const uint64_t packed = latest_.find(code_of(last[-3]) << 2 * kTokenBits | pair);
  if (packed != kNowhere) return follow_chain(packed, end, found);
  for (const auto& [length, key] : {std::pair<size_t, uint64_t>{2, pair}, {1, one}}) {
    const uint64_t place = latest_.find(key);
    if (place == kNowhere) continue;
    Text& text = texts_[place >> kPlaceBits];
    text.read();
    found->push_back({&text, static_cast<size_t>(place & kPlaceMask), length});
    return;
  }
}

void TextIndex::follow_chain(uint64_t packed, const std::vector<int32_t>& end, Matches* found) {
  for (size_t count = 0; packed != kNowhere && count < kMaxMatches; ++count) {
    Text& text = texts_[packed >> kPlaceBits];
    text.read();
    const auto place = static_cast<size_t>(packed & kPlaceMask);
    const size_t most = std::min({kContextLens.front(), place, end.size()});
    size_t equal = kChainedLen;
    while (equal < most && text.tokens[place - equal - 1] == end[end.size() - equal - 1]) ++equal;
    size_t length = kChainedLen;
    for (const size_t each : kContextLens) {
      if (each <= equal) {
        length = each;
        break;
      }
    }
    found->push_back({&text, place, length});
    if (length >= kLongEnough) return;
    packed = text.link(place);
  }
}

}  // namespace hasten
