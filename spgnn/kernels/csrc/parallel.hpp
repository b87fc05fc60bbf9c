// for_each_task: independent tasks on a given number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#ifdef SPGNN_STD_THREADS
#include <thread>
#include <vector>
#endif

namespace spgnn {

// Neighbouring tasks that a thread does by itself unless another has run out of its own.
struct alignas(64) TaskShare {  // a cache line each: counting must not slow the other threads
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
};

// Calls task(i) once for every i in [0, tasks), in any order. With one thread no parallel region is
// entered: the pool of libgomp does not survive a fork, and ranks may be forked.
template <class Task>
void for_each_task(std::int64_t tasks, int threads, const Task& task) {
  if (threads <= 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  const auto shares = std::make_unique<TaskShare[]>(threads);
  for (int t = 0; t < threads; ++t) {
    shares[t].next = tasks * t / threads;
    shares[t].end = tasks * (t + 1) / threads;
  }
  const auto work = [&](int thread) {
    for (int turn = 0; turn < threads; ++turn) {
      TaskShare& share = shares[(thread + turn) % threads];
      for (std::int64_t i = share.next++; i < share.end; i = share.next++) task(i);
    }
  };
#ifdef SPGNN_STD_THREADS
  // For ThreadSanitizer, which cannot see into libgomp's barriers and would report false races.
  std::vector<std::jthread> pool;
  for (int t = 0; t < threads; ++t) pool.emplace_back([&work, t] { work(t); });
#else
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int t = 0; t < threads; ++t) work(t);
#endif
}

}  // namespace spgnn
