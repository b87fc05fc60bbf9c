// Tasks on all threads, and what follows them in their order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "parallel.hpp"

namespace spgnn {

// Calls task(i) once for every i in [0, tasks) on some threads, in any order, and then(i) after it:
// in order, and on one thread alone, whose cache keeps what they share. That thread does tasks as
// well while the next one in order is not done. Neither may throw.
template <class Task, class Then>
void for_each_in_turn(std::int64_t tasks, int threads, const Task& task, const Then& then) {
  if (threads <= 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) {
      task(i);
      then(i);
    }
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto done = std::make_unique<std::atomic<bool>[]>(tasks);
  const auto does_one = [&] {
    const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= tasks) return false;
    task(i);
    done[i].store(true, std::memory_order_release);
    return true;
  };
  for_each_task(threads, threads, [&](std::int64_t thread) {
    if (thread > 0) {
      while (does_one()) {
      }
      return;
    }
    // What it waits for is being done, by a thread that waits for nothing.
    for (std::int64_t i = 0; i < tasks;) {
      if (done[i].load(std::memory_order_acquire)) {
        then(i++);
      } else if (!does_one()) {
        std::this_thread::yield();
      }
    }
  });
}

}  // namespace spgnn
