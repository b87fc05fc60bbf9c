// Products and numbers of nonzeros on threads, in tasks of about equally many nonzeros.
#pragma once

#include <unistd.h>

#include "kernel_table.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// Nonzeros (plus rows) of a task. A longer row is cut into pieces of this many nonzeros, counted
// from its first, so the order in which a row is summed depends on nothing but that row.
inline constexpr i64 kTaskSize = 2048;

// Rows in tasks, and the rows that are too long for one.
class Schedule {
 public:
  Schedule(const i64* indptr, i64 rows) : indptr_(indptr) {
    const i64 tasks = (work_before(rows) + kTaskSize - 1) / kTaskSize;
    first_row_.reserve(tasks + 1);
    first_piece_.push_back(0);
    i64 row = 0;
    for (i64 task = 0; task < tasks; ++task) {
      row = first_where(row, rows, [&](i64 r) { return work_before(r) >= task * kTaskSize; });
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

  i64 row_tasks() const { return std::ssize(first_row_) - 1; }
  i64 pieces() const { return first_piece_.back(); }
  const std::vector<i64>& long_rows() const { return long_rows_; }
  Span pieces_of(std::size_t long_row) const {
    return {first_piece_[long_row], first_piece_[long_row + 1]};
  }

  // The rows of a task without its last one if that is long (it can only be the last).
  Span rows_of(i64 task) const {
    Span rows{first_row_[task], first_row_[task + 1]};
    if (rows.begin < rows.end && is_long(rows.end - 1)) --rows.end;
    return rows;
  }

  Span nonzeros_of(i64 piece) const {
    const auto after = std::upper_bound(first_piece_.begin(), first_piece_.end(), piece);
    const std::size_t i = after - first_piece_.begin() - 1;
    const i64 begin = indptr_[long_rows_[i]] + (piece - first_piece_[i]) * kTaskSize;
    return {begin, std::min(begin + kTaskSize, indptr_[long_rows_[i] + 1])};
  }

 private:
  i64 work_before(i64 row) const { return indptr_[row] + row; }
  bool is_long(i64 row) const { return indptr_[row + 1] - indptr_[row] > kTaskSize; }

  void add_long_row(i64 row) {
    const i64 length = indptr_[row + 1] - indptr_[row];
    long_rows_.push_back(row);
    first_piece_.push_back(first_piece_.back() + (length + kTaskSize - 1) / kTaskSize);
  }

  const i64* indptr_;
  std::vector<i64> first_row_, long_rows_, first_piece_;
};

// Adds the pieces of one long row in their order and finishes it like any other row.
template <class T, class Index>
void finish_long_row(const SpmmOperands<T, Index>& a, i64 row, Span pieces, Sum<T>* partial,
                     i64 piece_stride) {
  Sum<T>* total = partial + pieces.begin * piece_stride;
  for (i64 piece = pieces.begin + 1; piece < pieces.end; ++piece) {
    for (i64 c = 0; c < a.columns; ++c) total[c] += partial[piece * piece_stride + c];
  }
  T* y = a.y[row];
  for (i64 c = 0; c < a.columns; ++c) {
    Sum<T> sum = total[c];
    if (a.row_scale) sum *= a.row_scale[row];
    if (a.accumulate) sum += widen(y[c]);
    y[c] = narrow<T>(sum);
  }
}

// The operands of one of several heads.
template <class T, class Index>
SpmmOperands<T, Index> head_of(SpmmOperands<T, Index> a, const Heads& heads, i64 head) {
  if (a.values) a.values.data += head;
  a.x.data += head * heads.x_stride;
  a.y.data += head * heads.y_stride;
  return a;
}

// An X of at most so many bytes is read without fetching ahead. 0: unknown; tests set it.
inline i64& near_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static i64 bytes = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L);
#else
  static i64 bytes = 0;
#endif
  return bytes;
}

// Of the last cache; 0 where it is unknown. Some systems say ten times as much as there is, or what
// many cores share, so it is taken to have no more than 32 second-level ones. Tests set it.
inline i64& last_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  static i64 bytes = std::min<i64>(std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L), 32 * near_bytes());
#else
  static i64 bytes = 0;
#endif
  return bytes;
}

// In how many blocks of its columns to multiply A, a pass for each (Md et al., DistGNN, SC'21): X
// comes from memory once a block. Each visit of a row must find some nonzeros.
template <class T, class Index> i64 source_blocks(const SpmmOperands<T, Index>& a) {
  constexpr i64 kBlocksInCache = 6, kLeastOfVisit = 6, kSample = 64;
  const i64 cache = last_cache_bytes();
  const i64 bytes = a.x_rows * a.columns * static_cast<i64>(sizeof(T));
  if (cache == 0 || bytes <= cache || a.accumulate || !std::is_same_v<T, Sum<T>>) return 1;
  const i64 blocks = std::min((bytes * kBlocksInCache + cache - 1) / cache,
                              a.indptr[a.rows] / a.rows / kLeastOfVisit);
  if (2 * bytes > blocks * cache) return 1;
  // Most rows must be that long: what is in a few long ones is in few columns too, which stay in
  // the cache. So do rows of X where the nonzeros of a row are near each other.
  const i64 size = (a.x_rows + blocks - 1) / blocks;
  i64 visits = 0, long_rows = 0;
  for (u64 i = 0; i < kSample; ++i) {
    const auto row = static_cast<i64>(mix64(i) % a.rows);
    i64 last = -1;
    for (i64 e = a.indptr[row]; e < a.indptr[row + 1]; ++e) {
      const i64 block = a.indices[e] / size;
      visits += block != last;
      last = block;
    }
    long_rows += a.indptr[row + 1] - a.indptr[row] >= blocks * kLeastOfVisit;
  }
  return 2 * visits >= kSample * blocks && 2 * long_rows >= kSample ? blocks : 1;
}

// Sums of rows go on from block to block in Y, so bits do not depend on how many there are.
template <class T, class Index>
void spmm_in_blocks(const SpmmKernels<T, Index>& kernels, const SpmmOperands<T, Index>& a,
                    const Schedule& schedule, i64 blocks, int threads) {
  std::vector<i64> next(a.indptr, a.indptr + a.rows);
  const i64 size = (a.x_rows + blocks - 1) / blocks, tasks = schedule.row_tasks();
  for (i64 i = 0; i < blocks; ++i) {
    const SourceBlock block{next.data(), (i + 1) * size, i == 0, i == blocks - 1};
    for_each_span(tasks, blocks, threads, [&](i64, Span some) {
      const i64 end = some.end < tasks ? schedule.rows_of(some.end).begin : a.rows;
      kernels.block(a, block, {schedule.rows_of(some.begin).begin, end});
    });
  }
}

// Whether an X of twice as many bytes, in the third-level cache, is better read as near: measured
// on a small random matrix when first needed; bits are the same.
inline bool is_beyond_near(const KernelTable& table) {
  static const bool beyond = [&table] {
    constexpr i64 kColumns = 32, kRows = 4096, kDegree = 16;
    const i64 x_rows = near_bytes() * 7 / 4 / (kColumns * sizeof(float));
    if (x_rows == 0 || x_rows > 1 << 20) return false;
    std::vector<i64> indptr(kRows + 1);
    std::vector<i32> indices(kRows * kDegree);
    const std::vector<float> values(indices.size(), 1), x(x_rows * kColumns);
    std::vector<float> y(kRows * kColumns);
    for (i64 row = 0; row <= kRows; ++row) indptr[row] = row * kDegree;
    for (std::size_t e = 0; e < indices.size(); ++e) {
      indices[e] = static_cast<i32>(mix64(e) % x_rows);
    }
    SpmmOperands<float, i32> a{
        indptr.data(), indices.data(),       kRows,  {values.data(), 1},   nullptr,
        nullptr,       {x.data(), kColumns}, x_rows, {y.data(), kColumns}, kColumns,
        false};
    const auto& kernels = std::get<SpmmKernels<float, i32>>(table.spmm);
    std::chrono::steady_clock::duration best[2] = {std::chrono::hours(1), std::chrono::hours(1)};
    for (int turn = 0; turn < 8; ++turn) {
      a.near = turn % 2 == 1;
      const auto begin = std::chrono::steady_clock::now();
      for (i64 row = 0; row < kRows; row += 64) kernels.rows(a, {row, row + 64});
      best[a.near] = std::min(best[a.near], std::chrono::steady_clock::now() - begin);
    }
    return best[1] < best[0];
  }();
  return beyond;
}

// X with its rows scaled, [x_rows, columns] without gaps, takes the place of X and its scale.
template <class T, class Index> void scale_rows(SpmmOperands<T, Index>& a, T* scaled, int threads) {
  for_each_span(a.x_rows, rows_of_span(a.columns * sizeof(T)), threads, [&](i64, Span rows) {
    T* to = scaled + rows.begin * a.columns;
    for (i64 row = rows.begin; row < rows.end; ++row, to += a.columns) {
      const T* x = a.x[row];
      for (i64 c = 0; c < a.columns; ++c) to[c] = x[c] * a.col_scale[row];
    }
  });
  a.x = {scaled, a.columns};
  a.col_scale = nullptr;
}

template <class T, class Index>
void spmm(const KernelTable& table, SpmmOperands<T, Index> a, const Heads& heads, int threads) {
  if (a.rows == 0 || a.columns == 0) return;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  const Schedule schedule(a.indptr, a.rows);
  const i64 width = heads.count * a.columns;
  const auto pieces = std::make_unique_for_overwrite<Sum<T>[]>(schedule.pieces() * width);
  const auto x_bytes = a.x_rows * width * static_cast<i64>(sizeof(T));
  a.near = x_bytes <= near_bytes() || (x_bytes <= 2 * near_bytes() && is_beyond_near(table));
  const i64 blocks = heads.count == 1 ? source_blocks(a) : 1;
  const i64 row_tasks = blocks > 1 ? 0 : schedule.row_tasks();
  for_each_task(schedule.pieces() + row_tasks, threads, [&](i64 task) {
    for (i64 head = 0; head < heads.count; ++head) {
      const auto one = head_of(a, heads, head);
      if (task < schedule.pieces()) {
        Sum<T>* sums = pieces.get() + task * width + head * a.columns;
        kernels.partial(one, schedule.nonzeros_of(task), sums);
      } else {
        kernels.rows(one, schedule.rows_of(task - schedule.pieces()));
      }
    }
  });
  if (blocks > 1) spmm_in_blocks(kernels, a, schedule, blocks, threads);
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    for (i64 head = 0; head < heads.count; ++head) {
      finish_long_row(head_of(a, heads, head), schedule.long_rows()[i], schedule.pieces_of(i),
                      pieces.get() + head * a.columns, width);
    }
  }
}

// SDDMM on threads; every product is by itself, so their order does not matter.

template <class T, class Index>
void sddmm(const KernelTable& table, const SddmmOperands<T, Index>& a, const Heads& heads,
           int threads) {
  constexpr i64 kTask = 2048;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  for_each_span(a.indptr[a.rows], kTask, threads, [&](i64, Span nonzeros) {
    for (i64 head = 0; head < heads.count; ++head) {
      auto one = a;
      one.x.data += head * heads.x_stride;
      one.g.data += head * heads.y_stride;
      one.products.data += head;
      kernels.sddmm(one, nonzeros);
    }
  });
}

// Softmax and sums over the nonzeros of rows, on threads. Numbers are [nonzeros, heads]; long rows
// are worked on in pieces, as in SpMM.

// Calls operation.summarise(nonzeros, summary) for each row, or for the pieces of a long one, whose
// summaries are merged in their order; then operation.finish(nonzeros, summary) for the same.
template <class S, class Operation>
void for_each_row(const i64* indptr, i64 rows, i64 summary_size, int threads,
                  const Operation& operation) {
  const Schedule schedule(indptr, rows);
  const i64 pieces = schedule.pieces();
  const auto summaries = std::make_unique_for_overwrite<S[]>(pieces * summary_size);
  const auto of_piece = [&](i64 piece) { return summaries.get() + piece * summary_size; };
  for_each_task(pieces + schedule.row_tasks(), threads, [&](i64 task) {
    if (task < pieces) {
      operation.summarise(schedule.nonzeros_of(task), of_piece(task));
      return;
    }
    const auto summary = std::make_unique_for_overwrite<S[]>(summary_size);
    const Span mine = schedule.rows_of(task - pieces);
    for (i64 row = mine.begin; row < mine.end; ++row) {
      const Span nonzeros{indptr[row], indptr[row + 1]};
      if (nonzeros.begin == nonzeros.end) continue;
      operation.summarise(nonzeros, summary.get());
      operation.finish(nonzeros, summary.get());
    }
  });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span all = schedule.pieces_of(i);
    for (i64 piece = all.begin + 1; piece < all.end; ++piece) {
      operation.merge(of_piece(all.begin), of_piece(piece));
    }
    for (i64 piece = all.begin + 1; piece < all.end; ++piece) {
      std::copy_n(of_piece(all.begin), summary_size, of_piece(piece));
    }
  }
  for_each_task(pieces, threads,
                [&](i64 piece) { operation.finish(schedule.nonzeros_of(piece), of_piece(piece)); });
}

// y = exp(x) / (sum of exp(x) over the row); zeros where all of a row is −∞.
template <class T> struct Softmax {
  const SegmentKernels<T>& kernels;
  const T* x;
  T* y;
  i64 heads, lanes;

  void summarise(Span nonzeros, Sum<T>* summary) const {
    const i64 count = (nonzeros.end - nonzeros.begin) * heads;
    kernels.summarise(x + nonzeros.begin * heads, count, heads, summary, summary + lanes);
  }

  void merge(Sum<T>* total, const Sum<T>* piece) const {
    for (i64 h = 0; h < heads; ++h) {
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
    const i64 count = (nonzeros.end - nonzeros.begin) * heads;
    Sum<T>* factor = summary + lanes;
    for (i64 h = 0; h < heads; ++h) factor[h] = factor[h] == 0 ? 0 : 1 / factor[h];
    kernels.exponentials(x + nonzeros.begin * heads, count, heads, summary, factor,
                         y + nonzeros.begin * heads);
  }
};

template <class T>
void softmax(const KernelTable& table, const i64* indptr, i64 rows, i64 heads, const T* x, T* y,
             int threads) {
  if (heads == 0) return;
  const auto& kernels = std::get<SegmentKernels<T>>(table.segments);
  const i64 lanes = kernels.lanes_of(heads);
  for_each_row<Sum<T>>(indptr, rows, 2 * lanes, threads, Softmax<T>{kernels, x, y, heads, lanes});
}

// y = sum of a · b over the row, or of a where b is null.
template <class T> struct RowSums {
  const SegmentKernels<T>& kernels;
  const T *a, *b;
  T* y;
  i64 heads;

  void summarise(Span nonzeros, Sum<T>* sum) const {
    const i64 first = nonzeros.begin * heads, count = nonzeros.end * heads - first;
    kernels.sum_products(a + first, b ? b + first : nullptr, count, heads, sum);
  }

  void merge(Sum<T>* total, const Sum<T>* piece) const {
    for (i64 h = 0; h < heads; ++h) total[h] += piece[h];
  }

  void finish(Span nonzeros, Sum<T>* sum) const {
    const i64 first = nonzeros.begin * heads, count = nonzeros.end * heads - first;
    kernels.spread(count, heads, sum, y + first);
  }
};

template <class T>
void row_sums(const KernelTable& table, const i64* indptr, i64 rows, i64 heads, const T* a,
              const T* b, T* y, int threads) {
  if (heads == 0) return;
  const auto& kernels = std::get<SegmentKernels<T>>(table.segments);
  for_each_row<Sum<T>>(indptr, rows, kernels.lanes_of(heads), threads,
                       RowSums<T>{kernels, a, b, y, heads});
}

// Sums, products and extremes over nonzeros with rows of their own, on threads.

template <class T>
void edge_sum(const KernelTable& table, const EdgeOperands<T>& a, EdgeOp op, int threads) {
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  const Schedule schedule(a.indptr, a.rows);
  const i64 pieces = schedule.pieces();
  const auto sums = std::make_unique_for_overwrite<Sum<T>[]>(pieces * a.columns);
  for_each_task(pieces + schedule.row_tasks(), threads, [&](i64 task) {
    if (task >= pieces) return kernels.rows(a, op, schedule.rows_of(task - pieces));
    const Span nonzeros = schedule.nonzeros_of(task);
    const i64 row = first_where(0, a.rows, [&](i64 r) { return a.indptr[r + 1] > nonzeros.begin; });
    kernels.partial(a, op, row, nonzeros, sums.get() + task * a.columns);
  });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span of_row = schedule.pieces_of(i);
    T* out = a.out[schedule.long_rows()[i]];
    for (i64 c = 0; c < a.columns; ++c) {
      Sum<T> sum{};
      for (i64 p = of_row.begin; p < of_row.end; ++p) sum += sums[p * a.columns + c];
      out[c] = narrow<T>(sum);
    }
  }
}

template <class T>
void edge_products(const KernelTable& table, const EdgeProducts<T>& a, EdgeOp op, int threads) {
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  for_each_span(a.indptr[a.rows], kTaskSize, threads,
                [&](i64, Span nonzeros) { kernels.products(a, op, nonzeros); });
}

template <class T>
void edge_extremes(const KernelTable& table, const EdgeExtremes<T>& a, EdgeOp op, int threads) {
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  const i64 rows = a.of.rows, weight = a.of.indptr[rows] + rows;
  const i64 tasks = (weight + kTaskSize - 1) / kTaskSize;
  const auto first_row = [&](i64 task) {
    return first_where(0, rows,
                       [&](i64 row) { return a.of.indptr[row] + row >= task * kTaskSize; });
  };
  for_each_task(tasks, threads,
                [&](i64 task) { kernels.extremes(a, op, {first_row(task), first_row(task + 1)}); });
}

// A task has some columns of all rows, so sums do not depend on the number of threads.
template <class T>
void extreme_adjoint(const KernelTable& table, const ExtremeAdjoint<T>& a, int threads) {
  constexpr i64 kLine = 64 / sizeof(T);
  const auto& kernels = std::get<EdgeKernels<T>>(*table.edges);
  const i64 each = std::max<i64>(kLine, (a.columns + threads - 1) / threads / kLine * kLine);
  for_each_span(a.columns, each, threads, [&](i64, Span columns) { kernels.adjoint(a, columns); });
}

}  // namespace spgnn
