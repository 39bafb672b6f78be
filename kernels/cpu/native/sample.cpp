// sample: one token per logit row, as ops.Sample defines it; rows are independent.
//
// Filters never sort the vocabulary: candidates above a floor are collected, the floor is lowered
// until they are enough, and only they are ordered.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "ops.h"

namespace hasten {

const std::array<int32_t, kMostNoise * kNoiseSteps> noise_floors = [] {
  std::array<int32_t, kMostNoise * kNoiseSteps> floors{};
  for (int i = 0; i < kMostNoise * kNoiseSteps; ++i) {
    // A hundredth less is far more than rounding takes.
    const double u = std::exp(-std::exp(0.01 - static_cast<double>(i) / kNoiseSteps));
    const double word = std::max(0.0, u * 4294967296.0 - 2.0);
    floors[static_cast<size_t>(i)] = static_cast<int32_t>(static_cast<uint32_t>(word) ^ 0x80000000u);
  }
  return floors;
}();

namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr float kFirstReach = 6.0f;  // how far below the maximum candidates are looked for at first

struct Candidate {
  int32_t token;
  float logit;  // divided by the temperature
};

// Heap order: the most likely on top, the lowest id first among equals.
bool is_less_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit < b.logit : a.token > b.token;
}

class RowSampler {
 public:
  RowSampler(const SampleOp& op, const Step& step, const Share& share, int local)
      : vocab_(*op.vocab),
        step_(step),
        rows_(step.sampling),
        row_(step.slice_begin + local),
        size_(op.logits->width),
        logits_(op.logits->plain + static_cast<size_t>(local) * op.logits->width),
        // The candidates of the whole vocabulary may be wanted at once: see `run`.
        memory_(share.scratch) {}

  void run() {
    if (!find_largest()) {
      step_.out_token_ids[row_] = 0;
      return;
    }
    const int num_logprobs = rows_.num_logprobs[row_];
    if (num_logprobs >= 0) {
      log_total_ = largest_ + std::log(vocab_.sum_exp(logits_, size_, 1.0f, largest_,
                                                      kNegativeInfinity));
      report_top(num_logprobs);
    }
    raw_ = logits_;
    const int token = rows_.target_ids[row_] >= 0 ? rows_.target_ids[row_] : choose();
    step_.out_token_ids[row_] = token;
    step_.out_logprobs[row_] =
        num_logprobs >= 0 ? raw_[token] - log_total_ : std::numeric_limits<float>::quiet_NaN();
  }

 private:
  // False, and the step fails, where a logit is not a number or no token is possible.
  bool find_largest() {
    if (vocab_.largest(logits_, size_, &largest_, &largest_token_) &&
        largest_ != kNegativeInfinity) {
      return true;
    }
    step_.failed_row->store(row_, std::memory_order_relaxed);
    return false;
  }

  // Adjusted logits go beside the raw ones, which the chosen token's log-probability needs.
  bool adjust() {
    const bool has_counts = rows_.counts.starts && begin(rows_.counts) < end(rows_.counts);
    const bool has_bias = rows_.bias.starts && begin(rows_.bias) < end(rows_.bias);
    const int mask = rows_.mask_idx ? rows_.mask_idx[row_] : -1;
    if (!has_counts && !has_bias && mask < 0) return true;
    auto* adjusted = reinterpret_cast<float*>(memory_);
    memory_ += sizeof(float) * static_cast<size_t>(size_);
    const bool is_edited = has_counts || has_bias;
    if (is_edited) std::copy_n(raw_, size_, adjusted);
    if (has_counts) penalize(adjusted);
    if (has_bias) {
      for (int i = begin(rows_.bias); i < end(rows_.bias); ++i) {
        adjusted[rows_.bias.token_ids[i]] += rows_.bias.values[i];
      }
    }
    if (mask >= 0) {
      wait_for_masks();
      vocab_.copy_allowed(is_edited ? adjusted : raw_, size_,
                          rows_.masks + static_cast<size_t>(mask) * rows_.mask_words, adjusted);
    }
    logits_ = adjusted;
    return find_largest();
  }

  // Masks are rarely late, and then by microseconds: sleeping leaves the processor to their writer.
  void wait_for_masks() const {
    if (rows_.masks_ready == nullptr) return;
    while (__atomic_load_n(rows_.masks_ready, __ATOMIC_ACQUIRE) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void penalize(float* adjusted) const {
    const float repetition = rows_.repetition_penalty[row_];
    for (int i = begin(rows_.counts); i < end(rows_.counts); ++i) {
      float& logit = adjusted[rows_.counts.token_ids[i]];
      const float count = rows_.counts.values[i];
      logit = logit > 0.0f ? logit / repetition : logit * repetition;
      logit -= rows_.frequency_penalty[row_] * count;
      if (count > 0.0f) logit -= rows_.presence_penalty[row_];
    }
  }

  int choose() {
    if (!adjust()) return 0;
    temperature_ = rows_.temperature[row_];
    if (temperature_ == 0.0f) return largest_token_;
    key_ = {rows_.seeds[row_], rows_.positions[row_], rows_.sample_idx[row_]};
    const float min_p = rows_.min_p[row_];
    const float top = largest_ / temperature_;
    const float floor = min_p > 0.0f ? top + std::log(min_p) : kNegativeInfinity;
    const int top_k = rows_.top_k[row_];
    const float top_p = rows_.top_p[row_];
    const bool limits_count = top_k > 0 && top_k < size_;
    if (!limits_count && top_p >= 1.0f) {
      return vocab_.noisy_largest(logits_, size_, largest_token_, temperature_, floor, key_);
    }
    return choose_filtered(limits_count ? top_k : size_, top_p, floor);
  }

  // The most likely candidates first, until `most` of them or `top_p` of the mass is kept; the
  // noise decides among these.
  int choose_filtered(int most, float top_p, float floor) {
    const float top = largest_ / temperature_;
    for (float reach = kFirstReach;; reach *= 2.0f) {
      const bool is_last = top - reach <= floor || reach > 1e6f;
      const int count = collect(is_last ? floor : top - reach);
      if (!is_last && count < most && !reaches(count, top_p, top, floor, most)) continue;
      return choose_among(count, most, top_p, top, floor);
    }
  }

  // Whether the candidates hold top_p of the mass without doubt about rounding.
  bool reaches(int count, float top_p, float top, float floor, int most) {
    if (top_p >= 1.0f || most < size_) return false;
    double mass = 0.0;
    for (int i = 0; i < count; ++i) mass += std::exp(double{candidates_[i].logit} - top);
    return mass > top_p * double{total_mass(top, floor)} * 1.0001;
  }

  float total_mass(float top, float floor) {
    if (total_mass_ < 0.0f) {
      total_mass_ = vocab_.sum_exp(logits_, size_, temperature_, top, floor);
    }
    return total_mass_;
  }

  int choose_among(int count, int most, float top_p, float top, float floor) {
    std::make_heap(candidates_, candidates_ + count, is_less_likely);
    const int limit = std::min(count, most);
    // With a limit on their number, the mass is that of the `limit` most likely.
    const double wanted =
        top_p >= 1.0f ? std::numeric_limits<double>::infinity()
                      : top_p * (most < size_ ? mass_of_top(count, limit, top)
                                              : double{total_mass(top, floor)});
    int end = count, best = candidates_[0].token;
    float best_score = kNegativeInfinity;
    double mass = 0.0;
    for (int kept = 0; kept < limit && (kept == 0 || mass < wanted); ++kept) {
      std::pop_heap(candidates_, candidates_ + end, is_less_likely);
      const Candidate& next = candidates_[--end];
      mass += std::exp(double{next.logit} - top);
      const float score = next.logit + vocab_.noise(key_, next.token);
      if (score > best_score || (score == best_score && next.token < best)) {
        best_score = score;
        best = next.token;
      }
    }
    return best;
  }

  double mass_of_top(int count, int limit, float top) {
    // Sorting a copy of the heap keeps the loop above the only one that decides.
    int end = count;
    double mass = 0.0;
    for (int i = 0; i < limit; ++i) {
      std::pop_heap(candidates_, candidates_ + end, is_less_likely);
      mass += std::exp(double{candidates_[--end].logit} - top);
    }
    std::make_heap(candidates_, candidates_ + count, is_less_likely);
    return mass;
  }

  int collect(float floor) {
    auto* tokens = reinterpret_cast<int32_t*>(memory_);
    const int count = vocab_.collect(logits_, size_, temperature_, floor, tokens);
    candidates_ = reinterpret_cast<Candidate*>(memory_ + sizeof(int32_t) * static_cast<size_t>(size_));
    for (int i = 0; i < count; ++i) {
      candidates_[i] = {tokens[i], logits_[tokens[i]] / temperature_};
    }
    return count;
  }

  void report_top(int wanted) {
    int32_t* ids = step_.out_top_ids + static_cast<size_t>(row_) * step_.num_top;
    float* logprobs = step_.out_top_logprobs + static_cast<size_t>(row_) * step_.num_top;
    wanted = std::min(wanted, size_);
    if (wanted == 0) return;
    temperature_ = 1.0f;
    int count = 0;
    for (float reach = kFirstReach; count < wanted; reach *= 2.0f) {
      count = collect(reach > 1e6f ? kNegativeInfinity : largest_ - reach);
    }
    std::make_heap(candidates_, candidates_ + count, is_less_likely);
    for (int i = 0; i < wanted; ++i) {
      std::pop_heap(candidates_, candidates_ + count - i, is_less_likely);
      const Candidate& next = candidates_[count - i - 1];
      ids[i] = next.token;
      logprobs[i] = next.logit - log_total_;
    }
  }

  int begin(const SparseRows& rows) const { return rows.starts[row_]; }
  int end(const SparseRows& rows) const { return rows.starts[row_ + 1]; }

  const VocabKernels& vocab_;
  const Step& step_;
  const SamplingRows& rows_;
  const int row_;
  const int size_;
  const float* logits_;
  const float* raw_ = nullptr;
  uint8_t* memory_;
  Candidate* candidates_ = nullptr;
  NoiseKey key_{};
  float temperature_ = 1.0f;
  float largest_ = 0.0f;
  int largest_token_ = 0;
  float log_total_ = 0.0f;
  float total_mass_ = -1.0f;
};

}  // namespace

void sample(const SampleOp& op, const Step& step, const Share& share) {
  int row, end;
  while (share.claim(share.num_rows, 1, row, end)) RowSampler(op, step, share, row).run();
}

}  // namespace hasten
