// A team of threads that runs one job at a time, with barriers inside it.
//
// Waiting spins briefly, then sleeps: on a quiet machine a barrier costs a fraction of a
// microsecond, and on a busy one a thread that lost its core does not keep the others burning
// theirs. Between jobs the threads spin a little longer, as the next step is usually near. Where
// other programs keep the cores so busy that the threads mostly wait for each other, the caller
// works alone for some jobs: results do not depend on the number of threads. All programs of a
// backend share a team: threads of two would wait for each other's spinning.
//
// A team as large as the machine keeps each thread on a processor of its own, as two that the system
// puts on one, because a third program ran for a moment, wait for each other at every barrier until
// it notices. The caller stays on its processor for the time of a job only.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hasten {

using Clock = std::chrono::steady_clock;

// Whether the team or the caller alone is faster, from how long the caller waited for the others.
// Of n threads each does 1/n of the work, so alone it would take n times its own busy time. A job that
// is shorter than waking a thread says nothing by itself, so a millisecond of jobs is judged.
class Pace {
 public:
  // True while the caller should work alone; a job of the whole team follows now and then.
  bool take_alone() { return alone_left_ > 0 && alone_left_-- > 0; }

  void record(Clock::duration total, Clock::duration waited, int num_threads) {
    total_ += total;
    waited_ += waited;
    if (total_ < kJudged) return;
    const bool is_slow = waited_ * num_threads > total_ * (num_threads - 1);
    total_ = waited_ = {};
    if (is_slow) {
      alone_left_ = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    } else {
      pause_ = kShortestPause;
    }
  }

 private:
  static constexpr int kShortestPause = 8;  // jobs
  static constexpr int kLongestPause = 64;
  static constexpr std::chrono::milliseconds kJudged{1};
  Clock::duration total_{}, waited_{};  // since it was judged
  int alone_left_ = 0;
  int pause_ = kShortestPause;
};

class Team {
 public:
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Threads of the running job.
  int width() const { return width_; }

  // Calls job(thread) on `width` threads, the caller being thread 0; returns when all are done. A
  // second caller waits for the first.
  void run(const std::function<void(int)>& job);

  // Every thread of the running job must call it; what was written before is seen after.
  void barrier(int thread);

 private:
  void work(int thread);

  std::mutex is_running_;
  const int size_;
  const int spins_;
  const std::vector<int> processors_;  // of each thread; none where they may move
  int width_ = 1;
  Pace pace_;
  Clock::duration waited_{};  // by the caller, in this job's barriers
  const std::function<void(int)>* job_ = nullptr;
  bool is_stopping_ = false;
  alignas(64) std::atomic<int> job_count_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  std::vector<std::thread> threads_;
};

}  // namespace hasten
