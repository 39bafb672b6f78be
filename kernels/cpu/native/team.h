// A team of threads that runs one job at a time, with barriers inside it.
//
// Waiting spins briefly, then sleeps: on a quiet machine a barrier costs a fraction of a
// microsecond, and on a busy one a thread that lost its core does not keep the others burning
// theirs. Between jobs the threads spin a little longer, as the next step is usually near.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace hasten {

class Team {
 public:
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Calls job(thread) on every thread, the caller being thread 0; returns when all are done.
  void run(const std::function<void(int)>& job);

  // Every thread of the running job must call it; what was written before is seen after.
  void barrier();

 private:
  void work(int thread);

  const int size_;
  const int spins_;
  const std::function<void(int)>* job_ = nullptr;
  bool is_stopping_ = false;
  alignas(64) std::atomic<int> job_count_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  std::vector<std::thread> threads_;
};

}  // namespace hasten
