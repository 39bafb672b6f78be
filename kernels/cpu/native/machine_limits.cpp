#include "machine_limits.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "program.h"

namespace hasten {
namespace {

constexpr int kRepeats = 12;
constexpr int kRounds = 1 << 19;
constexpr size_t kStride = 256;  // that read_bytes takes at once

// Seconds that the threads need for `work`, at best; they do it once before, unmeasured.
double best_seconds(int num_threads, const std::function<void(int)>& work) {
  Team team(num_threads);
  Clock::duration best = Clock::duration::max();
  team.run([&](int thread) {
    work(thread);
    for (int i = 0; i < kRepeats; ++i) {
      team.barrier(thread);
      const Clock::time_point start = Clock::now();
      work(thread);
      team.barrier(thread);
      if (thread == 0) best = std::min(best, Clock::now() - start);
    }
  });
  return std::chrono::duration<double>(best).count();
}

}  // namespace

double bytes_per_second(const std::string& isa, int num_threads, size_t num_bytes) {
  if (num_threads < 1 || num_bytes < kStride * static_cast<size_t>(num_threads)) {
    throw std::invalid_argument("too few threads or bytes to measure with");
  }
  const auto read = kernel_table(isa).limits.read_bytes;
  const size_t part = num_bytes / static_cast<size_t>(num_threads) / kStride * kStride;
  const Memory memory(part * static_cast<size_t>(num_threads));
  // Memory that was never written may be one page of zeros, mapped everywhere.
  std::memset(memory.data(), 1, memory.size());
  const double seconds = best_seconds(
      num_threads, [&](int thread) { read(memory.data() + part * static_cast<size_t>(thread), part); });
  return static_cast<double>(part) * num_threads / seconds;
}

double multiply_adds_per_second(const std::string& isa, int num_threads) {
  if (num_threads < 1) throw std::invalid_argument("too few threads to measure with");
  const auto multiply = kernel_table(isa).limits.multiply_bytes;
  const double seconds = best_seconds(num_threads, [&](int) { multiply(kRounds); });
  return multiply(1) * kRounds * num_threads / seconds;
}

}  // namespace hasten
