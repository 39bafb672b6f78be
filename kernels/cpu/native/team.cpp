#include "team.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace hasten {
namespace {

// In pauses, of some 10 to 40 nanoseconds each. Between two programs of a step, the model and a head
// that drafts, Python takes a quarter of a millisecond, and waking a thread would take 60 us.
constexpr int kBarrierSpins = 3000;
constexpr int kIdleSpins = 30000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once `value` is no longer `old`.
void await_change(const std::atomic<int>& value, int old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// The same, and how long it took; short waits count as none, for reading the clock takes as long.
Clock::duration time_change(const std::atomic<int>& value, int old, int spins) {
  constexpr int kUntimedSpins = 50;
  for (int i = 0; i < kUntimedSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return {};
    pause();
  }
  const Clock::time_point start = Clock::now();
  await_change(value, old, spins);
  return Clock::now() - start;
}

// More threads than processors would only spin against each other.
int spins_for(int num_threads) {
  const unsigned processors = std::thread::hardware_concurrency();
  return static_cast<unsigned>(num_threads) <= processors ? kBarrierSpins : 0;
}

#if defined(__linux__)

// While it lives, the calling thread runs on one processor only; none: wherever it may.
class Bound {
 public:
  explicit Bound(const std::vector<int>& processors, int thread) {
    if (processors.empty() || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[static_cast<size_t>(thread)], &one);
    is_bound_ = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  ~Bound() {
    if (is_bound_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  cpu_set_t before_{};
  bool is_bound_ = false;
};

// One for each thread where the team takes all processors that this process may use, else none.
std::vector<int> processors_for(int num_threads) {
  cpu_set_t allowed;
  if (num_threads == 1 || sched_getaffinity(0, sizeof(allowed), &allowed) != 0 ||
      CPU_COUNT(&allowed) != num_threads) {
    return {};
  }
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed)) processors.push_back(processor);
  }
  return processors;
}

#else

class Bound {
 public:
  Bound(const std::vector<int>&, int) {}
};

std::vector<int> processors_for(int) { return {}; }

#endif

}  // namespace

Team::Team(int num_threads)
    : size_(num_threads), spins_(spins_for(num_threads)), processors_(processors_for(num_threads)) {
  for (int thread = 1; thread < size_; ++thread) {
    threads_.emplace_back([this, thread] { work(thread); });
  }
}

Team::~Team() {
  is_stopping_ = true;
  job_count_.fetch_add(1, std::memory_order_release);
  job_count_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
  const std::lock_guard<std::mutex> lock(is_running_);
  if (size_ == 1 || pace_.take_alone()) {
    width_ = 1;
    job(0);
    return;
  }
  const Bound bound(processors_, 0);
  const Clock::time_point start = Clock::now();
  width_ = size_;
  waited_ = {};
  job_ = &job;
  job_count_.fetch_add(1, std::memory_order_release);
  job_count_.notify_all();
  job(0);
  barrier(0);
  pace_.record(Clock::now() - start, waited_, size_);
}

void Team::barrier(int thread) {
  if (width_ == 1) return;
  const int generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    if (thread == 0) {
      waited_ += time_change(generation_, generation, spins_);
    } else {
      await_change(generation_, generation, spins_);
    }
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
}

void Team::work(int thread) {
  const Bound bound(processors_, thread);
  for (int seen = 0;; ++seen) {
    await_change(job_count_, seen, spins_ > 0 ? kIdleSpins : 0);
    if (is_stopping_) return;
    (*job_)(thread);
    barrier(thread);
  }
}

}  // namespace hasten
