// The largest and smallest of listed rows, and their adjoint, on threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Every row is by itself: tasks are neighbouring rows of about as many nonzeros.
template <class T, class Index>
void extreme_rows(const KernelTable& table, const ExtremeOperands<T, Index>& a, int threads) {
  constexpr std::int64_t kTask = 2048;  // nonzeros, and rows
  const auto& kernels = std::get<ExtremeKernels<T, Index>>(*table.extremes);
  // What the rows before one weigh, which grows from row to row.
  const auto weight = [&](std::int64_t row) { return a.indptr[row] + row; };
  const std::int64_t tasks = (weight(a.rows) + kTask - 1) / kTask;
  const auto first_row = [&](std::int64_t task) {
    std::int64_t low = 0, high = a.rows;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (weight(middle) < task * kTask) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  for_each_task(tasks, threads, [&](std::int64_t task) {
    kernels.extremes(a, {first_row(task), first_row(task + 1)});
  });
}

// A task has some columns of all rows, so sums do not depend on the number of threads.
template <class T>
void extreme_adjoint(const KernelTable& table, const ExtremeAdjoint<T>& a, int threads) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const auto& kernels = std::get<ExtremeKernels<T, std::int32_t>>(*table.extremes);
  const std::int64_t each =
      std::max<std::int64_t>(kLine, (a.columns + threads - 1) / threads / kLine * kLine);
  for_each_task((a.columns + each - 1) / each, threads, [&](std::int64_t task) {
    kernels.adjoint(a, {task * each, std::min((task + 1) * each, a.columns)});
  });
}

}  // namespace spgnn
