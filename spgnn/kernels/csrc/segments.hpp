// Softmax over the nonzeros of each row, and sums of rows that go back to every nonzero, on
// threads. Numbers are [nonzeros, heads]; a row longer than a task is worked on in pieces, as in
// SpMM.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "kernel_table.hpp"
#include "parallel.hpp"
#include "spmm.hpp"

namespace spgnn {

// Calls operation.summarise(nonzeros, summary) for each row, or for the pieces of a long one, whose
// summaries are merged in their order; then operation.finish(nonzeros, summary) for the same.
template <class S, class Operation>
void for_each_row(const std::int64_t* indptr, std::int64_t rows, std::int64_t summary_size,
                  int threads, const Operation& operation) {
  const Schedule schedule(indptr, rows);
  const std::int64_t pieces = schedule.pieces();
  const auto summaries = std::make_unique_for_overwrite<S[]>(pieces * summary_size);
  const auto of_piece = [&](std::int64_t piece) { return summaries.get() + piece * summary_size; };
  for_each_task(pieces + schedule.row_tasks(), threads, [&](std::int64_t task) {
    if (task < pieces) {
      operation.summarise(schedule.nonzeros_of(task), of_piece(task));
      return;
    }
    const auto summary = std::make_unique_for_overwrite<S[]>(summary_size);
    const Span mine = schedule.rows_of(task - pieces);
    for (std::int64_t row = mine.begin; row < mine.end; ++row) {
      const Span nonzeros{indptr[row], indptr[row + 1]};
      if (nonzeros.begin == nonzeros.end) continue;
      operation.summarise(nonzeros, summary.get());
      operation.finish(nonzeros, summary.get());
    }
  });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span all = schedule.pieces_of(i);
    for (std::int64_t piece = all.begin + 1; piece < all.end; ++piece) {
      operation.merge(of_piece(all.begin), of_piece(piece));
    }
    for (std::int64_t piece = all.begin + 1; piece < all.end; ++piece) {
      std::copy_n(of_piece(all.begin), summary_size, of_piece(piece));
    }
  }
  for_each_task(pieces, threads, [&](std::int64_t piece) {
    operation.finish(schedule.nonzeros_of(piece), of_piece(piece));
  });
}

// y = exp(x) / (sum of exp(x) over the row); zeros where all of a row is −∞.
template <class T>
struct Softmax {
  const SegmentKernels<T>& kernels;
  const T* x;
  T* y;
  std::int64_t heads, lanes;

  void summarise(Span nonzeros, Sum<T>* summary) const {
    const std::int64_t count = (nonzeros.end - nonzeros.begin) * heads;
    kernels.summarise(x + nonzeros.begin * heads, count, heads, summary, summary + lanes);
  }

  void merge(Sum<T>* total, const Sum<T>* piece) const {
    for (std::int64_t h = 0; h < heads; ++h) {
      Sum<T>&largest = total[h], &sum = total[lanes + h];
      const Sum<T> its_largest = piece[h], its_sum = piece[lanes + h];
      if (its_sum == 0) continue;  // nothing but −∞, whose largest says nothing
      if (sum == 0 || its_largest > largest) {
        sum = sum == 0 ? its_sum : sum * std::exp(largest - its_largest) + its_sum;
        largest = its_largest;
      } else {
        sum += its_sum * std::exp(its_largest - largest);
      }
    }
  }

  void finish(Span nonzeros, Sum<T>* summary) const {
    const std::int64_t count = (nonzeros.end - nonzeros.begin) * heads;
    Sum<T>* factor = summary + lanes;
    for (std::int64_t h = 0; h < heads; ++h) factor[h] = factor[h] == 0 ? 0 : 1 / factor[h];
    kernels.exponentials(x + nonzeros.begin * heads, count, heads, summary, factor,
                         y + nonzeros.begin * heads);
  }
};

template <class T>
void softmax(const KernelTable& table, const std::int64_t* indptr, std::int64_t rows,
             std::int64_t heads, const T* x, T* y, int threads) {
  if (heads == 0) return;
  const auto& kernels = std::get<SegmentKernels<T>>(table.segments);
  const std::int64_t lanes = kernels.lanes_of(heads);
  for_each_row<Sum<T>>(indptr, rows, 2 * lanes, threads, Softmax<T>{kernels, x, y, heads, lanes});
}

// y = sum of a · b over the row, or of a where b is null.
template <class T>
struct RowSums {
  const SegmentKernels<T>& kernels;
  const T *a, *b;
  T* y;
  std::int64_t heads;

  void summarise(Span nonzeros, Sum<T>* sum) const {
    const std::int64_t first = nonzeros.begin * heads, count = nonzeros.end * heads - first;
    kernels.sum_products(a + first, b ? b + first : nullptr, count, heads, sum);
  }

  void merge(Sum<T>* total, const Sum<T>* piece) const {
    for (std::int64_t h = 0; h < heads; ++h) total[h] += piece[h];
  }

  void finish(Span nonzeros, Sum<T>* sum) const {
    const std::int64_t first = nonzeros.begin * heads, count = nonzeros.end * heads - first;
    kernels.spread(count, heads, sum, y + first);
  }
};

template <class T>
void row_sums(const KernelTable& table, const std::int64_t* indptr, std::int64_t rows,
              std::int64_t heads, const T* a, const T* b, T* y, int threads) {
  if (heads == 0) return;
  const auto& kernels = std::get<SegmentKernels<T>>(table.segments);
  for_each_row<Sum<T>>(indptr, rows, kernels.lanes_of(heads), threads,
                       RowSums<T>{kernels, a, b, y, heads});
}

}  // namespace spgnn
