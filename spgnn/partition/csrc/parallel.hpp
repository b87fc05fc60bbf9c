// Chunks of work on plain threads, interruptible from the calling thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace spgnn {

// Called on the calling thread as (chunks done, chunks in all); may throw to stop the work.
using Tick = std::function<void(std::int64_t, std::int64_t)>;

// Runs body(chunk, thread) once for every chunk in [0, chunks), in any order.
//
// Plain threads rather than OpenMP: training forks its ranks after it partitioned, and libgomp's
// pool does not survive a fork. The first exception of any thread ends all and is rethrown.
template <class Body>
void parallel_chunks(std::int64_t chunks, int threads, const Body& body, const Tick& tick = {}) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_lock;
  auto work = [&](int thread) {
    try {
      for (std::int64_t chunk; (chunk = next.fetch_add(1)) < chunks;) {
        body(chunk, thread);
        if (thread == 0 && tick) tick(std::min(next.load(), chunks), chunks);
      }
    } catch (...) {
      next = chunks;
      std::scoped_lock locked(error_lock);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  int used = static_cast<int>(std::min<std::int64_t>(threads, chunks));
  for (int thread = 1; thread < used; ++thread) others.emplace_back(work, thread);
  work(0);
  others.clear();  // joins
  if (error) std::rethrow_exception(error);
}

}  // namespace spgnn
