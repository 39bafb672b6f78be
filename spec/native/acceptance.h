// spec/acceptance.py again, for every step: what is described there, bit for bit
// (tests/unit/spec/test_compiled.py).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace hasten {

class AcceptanceHistory {
 public:
  std::vector<double> expected(const std::string& request_id, size_t depth, double least) {
    std::vector<double> usual(depth);
    for (size_t i = 0; i < depth; ++i) usual[i] = at(confidences_, i).factor();
    return survivals(request_id, usual, least);
  }

  std::vector<double> survivals(const std::string& request_id,
                                const std::vector<double>& confidences, double least) {
    const double factor = request(request_id).factor();
    std::vector<double> found;
    double survival = 1.0;
    for (size_t i = 0; i < confidences.size(); ++i) {
      survival *= corrected(confidences[i] * (at(positions_, i).factor() * factor));
      if (survival < least) break;
      found.push_back(survival);
    }
    return found;
  }

  void observe(const std::string& request_id, const std::vector<int32_t>& drafted,
               const std::vector<double>& confidences, const std::vector<int32_t>& came) {
    const size_t num_drafted = std::min(drafted.size(), confidences.size());
    for (size_t i = 0; i < std::min(confidences.size(), kNumPositions); ++i) {
      confidences_[i].observe(confidences[i], 1.0);
    }
    Ratio& of_request = request(request_id);
    const double factor = of_request.factor();
    double num_right = 0.0, num_expected = 0.0;
    for (size_t i = 0; i < std::min(num_drafted, came.size()); ++i) {
      const double right = drafted[i] == came[i] ? 1.0 : 0.0;
      Ratio& position = at(positions_, i);
      note_belief(confidences[i] * position.factor() * factor, right);
      num_right += right;
      num_expected += confidences[i] * position.factor();
      position.observe(right, std::min(confidences[i] * factor, kMost));
      if (i == 0) first_.observe(right, confidences[i]);
      if (right == 0.0) break;
    }
    of_request.observe(num_right, num_expected);
  }

  void forget(const std::string& request_id) { requests_.erase(request_id); }

 private:
  static constexpr size_t kNumPositions = 4;
  static constexpr double kProposerFade = 0.998, kProposerPrior = 20.0;
  static constexpr double kRequestFade = 0.97, kRequestPrior = 2.0;
  static constexpr double kFirstFactor = 0.85;
  static constexpr size_t kNumBeliefs = 10;
  static constexpr double kLeastExpected = 1e-6, kMost = 0.99, kUsualConfidence = 0.7;

  class Ratio {
   public:
    Ratio(double fade, double prior, double mean)
        : fade_(fade), right_(prior * mean), expected_(prior), factor_(mean) {}

    double factor() const { return factor_; }

    void observe(double num_right, double num_expected) {
      right_ = right_ * fade_ + num_right;
      expected_ = expected_ * fade_ + num_expected;
      factor_ = right_ / std::max(expected_, kLeastExpected);
    }

   private:
    double fade_, right_, expected_, factor_;
  };
  using Positions = std::vector<Ratio>;

  static Ratio of_proposer(double mean) { return {kProposerFade, kProposerPrior, mean}; }

  static Ratio& at(Positions& positions, size_t i) {
    return positions[std::min(i, kNumPositions - 1)];
  }

  double corrected(double probability) {
    probability = std::min(probability, kMost);
    return std::min(probability * belief(probability).factor(), kMost);
  }

  void note_belief(double probability, double right) {
    probability = std::min(probability, kMost);
    belief(probability).observe(right, probability);
  }

  Ratio& belief(double probability) {
    return beliefs_[static_cast<size_t>(probability * static_cast<double>(kNumBeliefs))];
  }

  Ratio& request(const std::string& request_id) {
    return requests_.try_emplace(request_id, kRequestFade, kRequestPrior, first_.factor())
        .first->second;
  }

  Ratio first_ = of_proposer(1.0);
  Positions positions_ = Positions(kNumPositions, of_proposer(kFirstFactor));
  Positions confidences_ = Positions(kNumPositions, of_proposer(kUsualConfidence));
  std::vector<Ratio> beliefs_ = std::vector<Ratio>(kNumBeliefs + 1, of_proposer(1.0));
  std::unordered_map<std::string, Ratio> requests_;
};

}  // namespace hasten
