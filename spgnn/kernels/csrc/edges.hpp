// Sums, products and extremes over nonzeros with rows of their own, on threads; what they give does
// not depend on how many.
#pragma once

#include <memory>

#include "spmm.hpp"

namespace spgnn {

template <class T>
void edge_sum(const KernelTable& table, const EdgeOperands<T>& a, EdgeOp op, int threads) {
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  const Schedule schedule(a.indptr, a.rows);
  const std::int64_t pieces = schedule.pieces();
  const auto sums = std::make_unique_for_overwrite<Sum<T>[]>(pieces * a.columns);
  for_each_task(pieces + schedule.row_tasks(), threads, [&](std::int64_t task) {
    if (task >= pieces) return kernels.rows(a, op, schedule.rows_of(task - pieces));
    const Span nonzeros = schedule.nonzeros_of(task);
    const std::int64_t row =
        first_where(0, a.rows, [&](std::int64_t r) { return a.indptr[r + 1] > nonzeros.begin; });
    kernels.partial(a, op, row, nonzeros, sums.get() + task * a.columns);
  });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span of_row = schedule.pieces_of(i);
    T* out = a.out + schedule.long_rows()[i] * a.out_stride;
    for (std::int64_t c = 0; c < a.columns; ++c) {
      Sum<T> sum{};
      for (std::int64_t p = of_row.begin; p < of_row.end; ++p) sum += sums[p * a.columns + c];
      out[c] = narrow<T>(sum);
    }
  }
}

template <class T>
void edge_products(const KernelTable& table, const EdgeProducts<T>& a, EdgeOp op, int threads) {
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  for_each_span(a.indptr[a.rows], kTaskSize, threads,
                [&](std::int64_t, Span nonzeros) { kernels.products(a, op, nonzeros); });
}

template <class T>
void edge_extremes(const KernelTable& table, const EdgeExtremes<T>& a, EdgeOp op, int threads) {
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  const std::int64_t rows = a.of.rows, weight = a.of.indptr[rows] + rows;
  const std::int64_t tasks = (weight + kTaskSize - 1) / kTaskSize;
  const auto first_row = [&](std::int64_t task) {
    return first_where(
        0, rows, [&](std::int64_t row) { return a.of.indptr[row] + row >= task * kTaskSize; });
  };
  for_each_task(tasks, threads, [&](std::int64_t task) {
    kernels.extremes(a, op, {first_row(task), first_row(task + 1)});
  });
}

}  // namespace spgnn
