// Bias, activation and dropout of rows, and their gradient, on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Rows of a task: by their width alone, so that sums do not depend on the number of threads.
template <class T>
std::int64_t update_task(std::int64_t columns) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, columns * sizeof(T));
  return std::max<std::int64_t>(16, (std::int64_t{64} << 10) / row_bytes);
}

template <class T>
void update_rows(const KernelTable& table, const UpdateOperands<T>& a, int threads) {
  const auto& kernels = std::get<UpdateKernels<T>>(*table.update);
  const std::int64_t rows = update_task<T>(a.columns);
  for_each_task((a.count + rows - 1) / rows, threads, [&](std::int64_t task) {
    kernels.update(a, {task * rows, std::min((task + 1) * rows, a.count)});
  });
}

// `sums` [columns], if not null: of dx, by columns.
template <class T>
void update_gradients(const KernelTable& table, const UpdateGradients<T>& a, Sum<T>* sums,
                      int threads) {
  const auto& kernels = std::get<UpdateKernels<T>>(*table.update);
  const std::int64_t rows = update_task<T>(a.columns);
  const std::int64_t tasks = (a.count + rows - 1) / rows;
  std::vector<Sum<T>> partial(sums ? tasks * a.columns : 0);
  for_each_task(tasks, threads, [&](std::int64_t task) {
    kernels.gradients(a, {task * rows, std::min((task + 1) * rows, a.count)},
                      sums ? partial.data() + task * a.columns : nullptr);
  });
  if (!sums) return;
  std::vector<double> total(a.columns);
  for (std::int64_t task = 0; task < tasks; ++task) {
    for (std::int64_t c = 0; c < a.columns; ++c) total[c] += partial[task * a.columns + c];
  }
  std::transform(total.begin(), total.end(), sums,
                 [](double sum) { return static_cast<Sum<T>>(sum); });
}

}  // namespace spgnn
