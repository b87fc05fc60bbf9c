// SpMM on threads: tasks of about equally many nonzeros whose results do not depend on the number
// of threads.
#pragma once

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "bfloat16.hpp"
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

}  // namespace spgnn
