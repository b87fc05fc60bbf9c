// What the machine can do, for benchmarks: the product's reads alone, and STREAM's triad.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

template <class T, class Index>
std::uint32_t touch_rows(const KernelTable& table, const SpmmOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  constexpr std::int64_t kTask = 2048;
  const std::int64_t nonzeros = a.indptr[a.rows];
  std::atomic<std::uint32_t> seen{0};
  for_each_task((nonzeros + kTask - 1) / kTask, threads, [&](std::int64_t task) {
    seen |= kernels.touch(a, {task * kTask, std::min((task + 1) * kTask, nonzeros)});
  });
  return seen;
}

inline void triad(float* y, const float* x, std::int64_t count, int threads) {
  constexpr std::int64_t kTask = 1 << 16;
  for_each_task((count + kTask - 1) / kTask, threads, [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kTask, count);
    for (std::int64_t i = task * kTask; i < end; ++i) y[i] += 3.0f * x[i];
  });
}

}  // namespace spgnn
