// Whether steps of few rows fetch their weights ahead of use, by what that is worth on this machine.
//
// Where the processor's own look-ahead keeps up with memory, a step of one row was 7 % slower with
// fetches; where two threads get 25 GB/s, it took 25 to 37 % less time. A machine that others use too
// changes between such states, so now and then a step tries the other way and is held against the
// one before it.
#pragma once

#include <algorithm>

namespace hasten {

constexpr int kFewRows = 3;  // with more, weights are fetched in any case: 12 % faster at 8

class FetchTrial {
 public:
  // Whether steps that are no trial fetch.
  bool fetches() const { return fetches_; }

  // Whether a step of so many rows fetches; `end` follows with what it took.
  bool begin(int num_rows) {
    ++num_since_trial_;
    const bool is_time = num_since_trial_ >= (num_trials_ < kFirst ? kOften : kSeldom);
    is_trial_ = is_time && num_rows == before_rows_;
    if (!is_trial_) before_rows_ = num_rows;
    return fetches_ != is_trial_;
  }

  void end(double seconds) {
    if (!is_trial_) {
      before_s_ = seconds;
      return;
    }
    num_since_trial_ = 0;
    ++num_trials_;
    // What others take of the machine for a moment says little.
    const double gain = std::clamp((before_s_ - seconds) / (before_s_ + seconds), -kMost, kMost);
    evidence_ += kShare * (gain - evidence_);
    if (evidence_ < kEnough) return;
    fetches_ = !fetches_;
    evidence_ = 0.0;
    before_rows_ = 0;  // what it took says nothing of the new way
  }

 private:
  static constexpr int kFirst = 16;               // trials, which come often: a profile follows
  static constexpr int kOften = 3, kSeldom = 61;  // steps from trial to trial; no chain is so long
  static constexpr double kShare = 0.125, kMost = 0.1, kEnough = 0.02;
  bool fetches_ = false;
  bool is_trial_ = false;
  int num_since_trial_ = 0;
  int num_trials_ = 0;
  int before_rows_ = 0;    // of the latest step that was no trial
  double before_s_ = 0.0;  // and what it took
  double evidence_ = 0.0;  // that the other way is faster
};

}  // namespace hasten
