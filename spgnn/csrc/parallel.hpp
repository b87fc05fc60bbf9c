// Parallel loops. Kernels run thousands of times a second beside torch's own, so they share its
// threads: libgomp's pool. That pool does not survive a fork, and training forks its ranks after it
// partitioned; what runs before a fork, for seconds, starts threads of its own.
#pragma once

#include "std.hpp"

namespace spgnn {

// Runs work(0) here and work(1), …, work(threads − 1) on new threads, fewer if the system has none.
template <class Work> void on_new_threads(int threads, const Work& work) {
  std::vector<std::jthread> others;
  try {
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(std::cref(work), thread);
  } catch (const std::system_error&) {}
  work(0);
}

// Called on the calling thread as (chunks begun, chunks in all); may throw to stop the work.
using Tick = std::function<void(i64, i64)>;

// Calls body(chunk, thread) once for every chunk, on new threads; rethrows the first exception.
template <class Body>
void parallel_chunks(i64 chunks, int threads, const Body& body, const Tick& tick = {}) {
  std::atomic<i64> next{0};
  std::exception_ptr error;
  std::mutex error_lock;
  on_new_threads(static_cast<int>(std::min<i64>(threads, chunks)), [&](int thread) {
    try {
      for (i64 chunk; (chunk = next.fetch_add(1)) < chunks;) {
        body(chunk, thread);
        if (thread == 0 && tick) tick(std::min(next.load(), chunks), chunks);
      }
      // The others may have left the calling thread nothing to do.
      if (thread == 0 && tick) tick(chunks, chunks);
    } catch (...) {
      next = chunks;
      std::scoped_lock locked(error_lock);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

#if defined(_OPENMP) || defined(SPGNN_STD_THREADS)

// Neighbouring tasks that a thread does by itself unless another has run out of its own.
struct alignas(64) TaskShare {  // a cache line each: counting must not slow the other threads
  std::atomic<i64> next{0};
  i64 end = 0;
};

// Calls task(i) once for every i in [0, tasks), in any order, on libgomp's pool; no task may throw.
// With one thread no parallel region is entered, so that it may be called before a fork.
template <class Task> void for_each_task(i64 tasks, int threads, const Task& task) {
  if (threads <= 1 || tasks <= 1) {
    for (i64 i = 0; i < tasks; ++i) task(i);
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
      for (i64 i = share.next++; i < share.end; i = share.next++) task(i);
    }
  };
#ifdef SPGNN_STD_THREADS
  // For ThreadSanitizer, which cannot see into libgomp's barriers and would report false races.
  on_new_threads(threads, work);
#else
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int t = 0; t < threads; ++t) work(t);
#endif
}

#endif

}  // namespace spgnn
