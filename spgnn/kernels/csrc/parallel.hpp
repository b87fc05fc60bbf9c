// for_each_task: independent tasks on a given number of threads.
#pragma once

#include <cstdint>
#ifdef SPGNN_STD_THREADS
#include <atomic>
#include <thread>
#include <vector>
#endif

namespace spgnn {

// Calls task(i) once for every i in [0, tasks), in any order. With one thread no parallel region is
// entered: the pool of libgomp does not survive a fork, and ranks may be forked.
template <class Task>
void for_each_task(std::int64_t tasks, int threads, const Task& task) {
  if (threads <= 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
#ifdef SPGNN_STD_THREADS
  // For ThreadSanitizer, which cannot see into libgomp's barriers and would report false races.
  std::atomic<std::int64_t> next{0};
  std::vector<std::jthread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      for (std::int64_t i = next++; i < tasks; i = next++) task(i);
    });
  }
#else
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::int64_t i = 0; i < tasks; ++i) task(i);
#endif
}

}  // namespace spgnn
