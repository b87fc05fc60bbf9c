// Softmax cross-entropy and its gradient, on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Rows of a task: by their width alone, so that sums do not depend on the number of threads.
inline std::int64_t cross_entropy_task(std::int64_t columns) {
  return std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(1, columns));
}

template <class T>
double cross_entropy(const KernelTable& table, const CrossEntropyOperands<T>& a, int threads) {
  const auto& kernels = std::get<CrossEntropyKernels<T>>(*table.cross_entropy);
  const std::int64_t rows = cross_entropy_task(a.columns);
  const std::int64_t tasks = (a.count + rows - 1) / rows;
  std::vector<double> losses(tasks);
  for_each_task(tasks, threads, [&](std::int64_t task) {
    losses[task] = kernels.loss(a, {task * rows, std::min((task + 1) * rows, a.count)});
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

template <class T>
void cross_entropy_gradient(const KernelTable& table, const CrossEntropyGradient<T>& a,
                            int threads) {
  const auto& kernels = std::get<CrossEntropyKernels<T>>(*table.cross_entropy);
  const std::int64_t rows = cross_entropy_task(a.of.columns);
  for_each_task((a.of.count + rows - 1) / rows, threads, [&](std::int64_t task) {
    kernels.gradient(a, {task * rows, std::min((task + 1) * rows, a.of.count)});
  });
}

}  // namespace spgnn
