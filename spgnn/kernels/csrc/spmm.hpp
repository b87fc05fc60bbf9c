// Products and numbers of nonzeros on threads: tasks of about equally many nonzeros, whose results
// do not depend on the number of threads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel_table.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// Nonzeros (plus rows) of a task. A longer row is cut into pieces of this many nonzeros, counted
// from its first, so the order in which a row is summed depends on nothing but that row.
inline constexpr std::int64_t kTaskSize = 2048;

// Rows in tasks, and the rows that are too long for one.
class Schedule {
 public:
  Schedule(const std::int64_t* indptr, std::int64_t rows) : indptr_(indptr) {
    const std::int64_t tasks = (work_before(rows) + kTaskSize - 1) / kTaskSize;
    first_row_.reserve(tasks + 1);
    first_piece_.push_back(0);
    std::int64_t row = 0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      row = first_where(row, rows,
                        [&](std::int64_t r) { return work_before(r) >= task * kTaskSize; });
      first_row_.push_back(row);
      // A long row holds a task boundary, so looking at the row before each finds them all.
      if (row > 0 && is_long(row - 1) && (long_rows_.empty() || long_rows_.back() != row - 1)) {
        add_long_row(row - 1);
      }
    }
    first_row_.push_back(rows);
    if (rows > 0 && is_long(rows - 1) && (long_rows_.empty() || long_rows_.back() != rows - 1)) {
      add_long_row(rows - 1);
    }
  }

  std::int64_t row_tasks() const { return static_cast<std::int64_t>(first_row_.size()) - 1; }
  std::int64_t pieces() const { return first_piece_.back(); }
  const std::vector<std::int64_t>& long_rows() const { return long_rows_; }
  Span pieces_of(std::size_t long_row) const {
    return {first_piece_[long_row], first_piece_[long_row + 1]};
  }

  // The rows of a task without its last one if that is long (it can only be the last).
  Span rows_of(std::int64_t task) const {
    Span rows{first_row_[task], first_row_[task + 1]};
    if (rows.begin < rows.end && is_long(rows.end - 1)) --rows.end;
    return rows;
  }

  Span nonzeros_of(std::int64_t piece) const {
    const auto after = std::upper_bound(first_piece_.begin(), first_piece_.end(), piece);
    const std::size_t i = after - first_piece_.begin() - 1;
    const std::int64_t begin = indptr_[long_rows_[i]] + (piece - first_piece_[i]) * kTaskSize;
    return {begin, std::min(begin + kTaskSize, indptr_[long_rows_[i] + 1])};
  }

 private:
  std::int64_t work_before(std::int64_t row) const { return indptr_[row] + row; }
  bool is_long(std::int64_t row) const { return indptr_[row + 1] - indptr_[row] > kTaskSize; }

  void add_long_row(std::int64_t row) {
    const std::int64_t length = indptr_[row + 1] - indptr_[row];
    long_rows_.push_back(row);
    first_piece_.push_back(first_piece_.back() + (length + kTaskSize - 1) / kTaskSize);
  }

  const std::int64_t* indptr_;
  std::vector<std::int64_t> first_row_, long_rows_, first_piece_;
};

// Adds the pieces of one long row in their order and finishes it like any other row.
template <class T, class Index>
void finish_long_row(const SpmmOperands<T, Index>& a, std::int64_t row, Span pieces,
                     Sum<T>* partial, std::int64_t piece_stride) {
  Sum<T>* total = partial + pieces.begin * piece_stride;
  for (std::int64_t piece = pieces.begin + 1; piece < pieces.end; ++piece) {
    for (std::int64_t c = 0; c < a.columns; ++c) total[c] += partial[piece * piece_stride + c];
  }
  T* y = a.y + row * a.y_stride;
  for (std::int64_t c = 0; c < a.columns; ++c) {
    Sum<T> sum = total[c];
    if (a.row_scale) sum *= a.row_scale[row];
    if (a.accumulate) sum += widen(y[c]);
    y[c] = narrow<T>(sum);
  }
}

// The operands of one of several heads.
template <class T, class Index>
SpmmOperands<T, Index> head_of(SpmmOperands<T, Index> a, const Heads& heads, std::int64_t head) {
  if (a.values) a.values += head;
  a.x += head * heads.x_stride;
  a.y += head * heads.y_stride;
  return a;
}

// An X of at most so many bytes is read without fetching ahead: what the second-level cache holds
// comes soon enough. 0 where it is unknown; tests set it.
inline std::int64_t& near_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static std::int64_t bytes = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L);
#else
  static std::int64_t bytes = 0;
#endif
  return bytes;
}

template <class T, class Index>
void spmm(const KernelTable& table, SpmmOperands<T, Index> a, const Heads& heads, int threads) {
  if (a.rows == 0 || a.columns == 0) return;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  const Schedule schedule(a.indptr, a.rows);
  const std::int64_t width = heads.count * a.columns;
  const auto pieces = std::make_unique_for_overwrite<Sum<T>[]>(schedule.pieces() * width);
  a.near = a.x_rows * width * static_cast<std::int64_t>(sizeof(T)) <= near_bytes();
  for_each_task(schedule.pieces() + schedule.row_tasks(), threads, [&](std::int64_t task) {
    for (std::int64_t head = 0; head < heads.count; ++head) {
      const auto one = head_of(a, heads, head);
      if (task < schedule.pieces()) {
        Sum<T>* sums = pieces.get() + task * width + head * a.columns;
        kernels.partial(one, schedule.nonzeros_of(task), sums);
      } else {
        kernels.rows(one, schedule.rows_of(task - schedule.pieces()));
      }
    }
  });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    for (std::int64_t head = 0; head < heads.count; ++head) {
      finish_long_row(head_of(a, heads, head), schedule.long_rows()[i], schedule.pieces_of(i),
                      pieces.get() + head * a.columns, width);
    }
  }
}

// SDDMM on threads; every product is by itself, so their order does not matter.

template <class T, class Index>
void sddmm(const KernelTable& table, const SddmmOperands<T, Index>& a, const Heads& heads,
           int threads) {
  constexpr std::int64_t kTask = 2048;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  for_each_span(a.indptr[a.rows], kTask, threads, [&](std::int64_t, Span nonzeros) {
    for (std::int64_t head = 0; head < heads.count; ++head) {
      auto one = a;
      one.x += head * heads.x_stride;
      one.g += head * heads.y_stride;
      one.products += head;
      kernels.sddmm(one, nonzeros);
    }
  });
}

// Softmax over the nonzeros of each row, and sums of rows that go back to every nonzero, on
// threads. Numbers are [nonzeros, heads]; a row longer than a task is worked on in pieces, as in
// SpMM.

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
