// Dense products with a matrix of few rows, on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// z [count, columns] = x wᵀ, with w [columns, depth].
inline void narrow_product(const KernelTable& table, NarrowProduct a, const float* w, int threads) {
  constexpr std::int64_t kRows = 384;
  const auto& kernels = *table.narrow;
  a.padded = (a.columns + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  std::vector<float> packed(a.depth * a.padded);
  for (std::int64_t j = 0; j < a.columns; ++j) {
    for (std::int64_t k = 0; k < a.depth; ++k) packed[k * a.padded + j] = w[j * a.depth + k];
  }
  a.w = packed.data();
  for_each_task((a.count + kRows - 1) / kRows, threads, [&](std::int64_t task) {
    kernels.product(a, {task * kRows, std::min((task + 1) * kRows, a.count)});
  });
}

// sums [columns, depth] = gᵀ x. Tasks depend on the number of rows alone, and so do the bits.
inline void narrow_gradient(const KernelTable& table, const NarrowGradient& a, float* sums,
                            int threads) {
  constexpr std::int64_t kRows = 2048, kMostTasks = 64;
  const std::int64_t rows = std::max(kRows, (a.count + kMostTasks - 1) / kMostTasks);
  const std::int64_t tasks = (a.count + rows - 1) / rows, size = a.columns * a.depth;
  std::vector<float> partial(tasks * size);
  for_each_task(tasks, threads, [&](std::int64_t task) {
    table.narrow->gradient(a, {task * rows, std::min((task + 1) * rows, a.count)},
                           partial.data() + task * size);
  });
  for (std::int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::int64_t task = 0; task < tasks; ++task) sum += partial[task * size + i];
    sums[i] = static_cast<float>(sum);
  }
}

}  // namespace spgnn
