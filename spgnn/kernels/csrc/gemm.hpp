// Dense products of many rows with a matrix of few, on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

inline std::int64_t whole_tiles(std::int64_t count, std::int64_t tile) {
  return (count + tile - 1) / tile * tile;
}

// z [count, columns] = x wᵀ, with w [columns, depth].
inline void gemm_product(const KernelTable& table, GemmProduct a, const float* w, int threads) {
  constexpr std::int64_t kRows = 64 * kGemmRows;
  const auto& kernels = *table.gemm;
  const std::int64_t panel = kGemmVectors * kernels.lanes;
  a.padded = whole_tiles(a.columns, kernels.lanes);
  std::vector<float> packed(a.depth * a.padded);
  for (std::int64_t first = 0; first < a.columns; first += panel) {
    const std::int64_t width = std::min(panel, a.padded - first);
    float* to = packed.data() + first * a.depth;
    for (std::int64_t j = 0, end = std::min(width, a.columns - first); j < end; ++j) {
      for (std::int64_t k = 0; k < a.depth; ++k) to[k * width + j] = w[(first + j) * a.depth + k];
    }
  }
  a.w = packed.data();
  for_each_task((a.count + kRows - 1) / kRows, threads, [&](std::int64_t task) {
    kernels.product(a, {task * kRows, std::min((task + 1) * kRows, a.count)});
  });
}

// sums [columns, depth] = gᵀ x. Tasks depend on the shapes alone, and so do the bits.
inline void gemm_gradient(const KernelTable& table, GemmGradient a, float* sums, int threads) {
  constexpr std::int64_t kRows = 2048, kMostTasks = 64, kFewestTasks = 8;
  constexpr std::int64_t kPartialFloats = 1 << 22, kPanelFloats = 1 << 16, kMostInPanel = 256;
  const auto& kernels = *table.gemm;
  a.sums_height = whole_tiles(a.columns, kGemmRows);
  a.sums_stride = whole_tiles(a.depth, kGemmVectors * kernels.lanes);
  const std::int64_t size = a.sums_height * a.sums_stride, width = a.sums_height + a.sums_stride;
  a.panel = std::clamp<std::int64_t>(kPanelFloats / width, 32, kMostInPanel);
  const auto most = std::clamp(kPartialFloats / size, kFewestTasks, kMostTasks);
  const std::int64_t rows = std::max(kRows, (a.count + most - 1) / most);
  const std::int64_t tasks = (a.count + rows - 1) / rows;
  std::vector<float> partial(tasks * size);
  for_each_task(tasks, threads, [&](std::int64_t task) {
    std::vector<float> room(a.panel * width);
    kernels.gradient(a, {task * rows, std::min((task + 1) * rows, a.count)}, room.data(),
                     partial.data() + task * size);
  });
  for_each_task(a.columns, size * tasks < 1 << 16 ? 1 : threads, [&](std::int64_t j) {
    std::vector<double> total(a.depth);
    for (std::int64_t task = 0; task < tasks; ++task) {
      const float* row = partial.data() + task * size + j * a.sums_stride;
      for (std::int64_t k = 0; k < a.depth; ++k) total[k] += row[k];
    }
    std::copy(total.begin(), total.end(), sums + j * a.depth);
  });
}

}  // namespace spgnn
