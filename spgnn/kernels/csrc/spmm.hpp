// SpMM on threads: tasks of about equally many nonzeros whose results do not depend on the number
// of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "access.hpp"
#include "bfloat16.hpp"
#include "big_array.hpp"
#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Nonzeros (plus rows) of a task. A longer row is cut into pieces of this many nonzeros, counted
// from its first, so the order in which a row is summed depends on nothing but that row.
inline constexpr std::int64_t kTaskSize = 2048;

// Rows in tasks, and the rows that are too long for one.
class Schedule {
 public:
  Schedule(const std::int64_t* indptr, std::int64_t rows) : indptr_(indptr), rows_(rows) {
    const std::int64_t tasks = (work_before(rows) + kTaskSize - 1) / kTaskSize;
    first_row_.reserve(tasks + 1);
    first_piece_.push_back(0);
    std::int64_t row = 0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      row = first_row_at(task * kTaskSize, row);
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

  std::int64_t first_row_at(std::int64_t work, std::int64_t from) const {
    std::int64_t low = from, high = rows_;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (work_before(middle) < work) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  void add_long_row(std::int64_t row) {
    const std::int64_t length = indptr_[row + 1] - indptr_[row];
    long_rows_.push_back(row);
    first_piece_.push_back(first_piece_.back() + (length + kTaskSize - 1) / kTaskSize);
  }

  const std::int64_t* indptr_;
  std::int64_t rows_;
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

// The product of some columns. x and y of `a` point at the first of them in the first head,
// `pieces` at the first column of that head.
template <class T, class Index>
void multiply_columns(const SpmmKernels<T, Index>& kernels, const Schedule& schedule,
                      const SpmmOperands<T, Index>& a, const Heads& heads, Span columns,
                      Sum<T>* pieces, std::int64_t piece_stride, int threads) {
  for_each_task(schedule.pieces() + schedule.row_tasks(), threads, [&](std::int64_t task) {
    for (std::int64_t head = 0; head < heads.count; ++head) {
      const auto one = head_of(a, heads, head);
      if (task < schedule.pieces()) {
        Sum<T>* sums = pieces + task * piece_stride + head * a.columns + columns.begin;
        kernels.partial(one, schedule.nonzeros_of(task), columns, sums);
      } else {
        kernels.rows(one, schedule.rows_of(task - schedule.pieces()), columns);
      }
    }
  });
}

// Columns of X beside each other, each row as long as `columns`.
template <class T>
void pack(const T* x, std::int64_t x_stride, std::int64_t rows, std::int64_t columns, T* packed,
          int threads) {
  constexpr std::int64_t kTask = 1024, kAhead = 32, kLine = 64 / sizeof(T);
  for_each_task((rows + kTask - 1) / kTask, threads, [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kTask, rows);
    for (std::int64_t row = task * kTask; row < end; ++row) {
      const T* later = x + std::min(row + kAhead, rows - 1) * x_stride;
      for (std::int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(later + c);
      std::memcpy(packed + row * columns, x + row * x_stride, columns * sizeof(T));
    }
  });
}

// One head, `block` columns at a time, of which the second-level cache holds a packed copy.
template <class T, class Index>
void multiply_in_blocks(const SpmmKernels<T, Index>& kernels, const Schedule& schedule,
                        const SpmmOperands<T, Index>& a, std::int64_t block, BigArray<T>& packed,
                        Sum<T>* pieces, std::int64_t piece_stride, int threads) {
  for (std::int64_t begin = 0; begin < a.columns; begin += block) {
    const Span columns{begin, std::min(begin + block, a.columns)};
    SpmmOperands<T, Index> part = a;
    part.x = packed.data();
    part.x_stride = columns.end - begin;
    part.y += begin;
    pack(a.x + begin, a.x_stride, a.x_rows, part.x_stride, packed.data(), threads);
    multiply_columns(kernels, schedule, part, {1, 0, 0}, columns, pieces, piece_stride, threads);
  }
}

template <class T, class Index>
void spmm(const KernelTable& table, SpmmOperands<T, Index> a, const Heads& heads,
          const Access& access, int threads) {
  if (a.rows == 0 || a.columns == 0) return;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  const Schedule schedule(a.indptr, a.rows);
  const std::int64_t width = heads.count * a.columns;
  const auto pieces = std::make_unique_for_overwrite<Sum<T>[]>(schedule.pieces() * width);
  a.near = access.near;
  if (access.block < a.columns) {
    BigArray<T> packed(a.x_rows * access.block);
    for (std::int64_t head = 0; head < heads.count; ++head) {
      multiply_in_blocks(kernels, schedule, head_of(a, heads, head), access.block, packed,
                         pieces.get() + head * a.columns, width, threads);
    }
  } else {
    multiply_columns(kernels, schedule, a, heads, {0, a.columns}, pieces.get(), width, threads);
  }
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    for (std::int64_t head = 0; head < heads.count; ++head) {
      finish_long_row(head_of(a, heads, head), schedule.long_rows()[i], schedule.pieces_of(i),
                      pieces.get() + head * a.columns, width);
    }
  }
}

}  // namespace spgnn
