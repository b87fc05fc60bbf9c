// Attention on threads.
#pragma once

#include "kernel_table.hpp"
#include "parallel.hpp"
#include "spmm.hpp"
#include "types.hpp"

namespace spgnn {

// Calls row_task(rows, their indptr, room) and piece_task(piece, row, indptr, room).
template <class T, class RowTask, class PieceTask>
void for_each_piece(const Schedule& schedule, const AttentionOperands<T>& a, int threads,
                    const RowTask& row_task, const PieceTask& piece_task) {
  const auto bytes = attention_room(a.padded, a.width, sizeof(Sum<T>));
  std::vector<i64> row_of_piece;
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span pieces = schedule.pieces_of(i);
    row_of_piece.insert(row_of_piece.end(), pieces.end - pieces.begin, schedule.long_rows()[i]);
  }
  for_each_task(schedule.pieces() + schedule.row_tasks(), threads, [&](i64 task) {
    const auto room = std::make_unique_for_overwrite<char[]>(bytes);
    if (task < schedule.pieces()) {
      const Span nonzeros = schedule.nonzeros_of(task);
      const i64 indptr[] = {nonzeros.begin, nonzeros.end};
      piece_task(task, row_of_piece[task], indptr, room.get());
    } else {
      const Span rows = schedule.rows_of(task - schedule.pieces());
      row_task(task, rows, a.indptr + rows.begin, room.get());
    }
  });
}

template <class T>
void attend(const KernelTable& table, const AttentionOperands<T>& a,
            const AttentionTarget<T>& target, bool v2, int threads) {
  using S = Sum<T>;
  if (a.rows == 0 || a.heads == 0) return;
  const auto& kernels = std::get<AttentionKernels<T>>(*table.attention);
  const auto kernel = v2 ? kernels.attend_v2 : kernels.attend;
  const Schedule schedule(a.indptr, a.rows);
  const i64 columns = a.heads * a.width, size = 2 * columns + 3 * a.heads;
  const auto sums = std::make_unique_for_overwrite<S[]>(schedule.pieces() * size);
  const auto of_piece = [&](i64 piece) {
    S* m = sums.get() + piece * size;
    S* o = m + 3 * a.heads;
    const bool twice = target.triples.p != nullptr;
    return Triples<S>{m, m + a.heads, o, twice ? o + columns : nullptr,
                      twice ? m + 2 * a.heads : nullptr};
  };
  for_each_piece(
      schedule, a, threads,
      [&](i64, Span rows, const i64* indptr, char* room) { kernel(a, target, rows, indptr, room); },
      [&](i64 piece, i64 row, const i64* indptr, char* room) {
        auto triple = of_piece(piece);
        // Kernels count rows from the first of all.
        triple.m -= row * a.heads, triple.n -= row * a.heads, triple.o -= row * columns;
        if (triple.p) triple.p -= row * columns, triple.pi -= row * a.heads;
        kernel(a, {triple, Ending::kStored, nullptr, nullptr}, {row, row + 1}, indptr, room);
      });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span pieces = schedule.pieces_of(i);
    const auto first = of_piece(pieces.begin);
    for (i64 piece = pieces.begin + 1; piece < pieces.end; ++piece) {
      kernels.merge(first, of_piece(piece), a.heads, a.width);
    }
    kernels.end(target, schedule.long_rows()[i], first, a.heads, a.width);
  }
}

// Which gradients: of the transpose's rows for GAT and GATv2, or of GATv2's rows.
template <class T>
void attend_backward(const KernelTable& table, const AttentionOperands<T>& a,
                     const AttentionGradients<T>& gradients, int side, int threads) {
  using S = Sum<T>;
  if (a.rows == 0 || a.heads == 0) return;
  const auto& kernels = std::get<AttentionKernels<T>>(*table.attention);
  const auto kernel = kernels.backward[side];
  const Schedule schedule(a.indptr, a.rows);
  const i64 width = a.heads * a.width, size = width + a.heads;
  const auto sums = std::make_unique_for_overwrite<S[]>(schedule.pieces() * size);
  // The gradient in a is summed by task, in the order of tasks.
  const i64 packed = packed_columns(a.padded, a.width);
  const i64 tasks = schedule.pieces() + schedule.row_tasks();
  const auto of_a = std::make_unique<S[]>(gradients.a ? tasks * packed : 0);
  const auto of_task = [&](i64 task) {
    auto mine = gradients;
    if (mine.a) mine.a = of_a.get() + task * packed;
    return mine;
  };
  for_each_piece(
      schedule, a, threads,
      [&](i64 task, Span rows, const i64* indptr, char* room) {
        kernel(a, of_task(task), rows, indptr, room);
      },
      [&](i64 piece, i64 row, const i64* indptr, char* room) {
        auto mine = of_task(piece);
        mine.sums = sums.get() + (piece - row) * size;
        kernel(a, mine, {row, row + 1}, indptr, room);
      });
  for (std::size_t i = 0; i < schedule.long_rows().size(); ++i) {
    const Span pieces = schedule.pieces_of(i);
    S* sum = sums.get() + pieces.begin * size;
    for (i64 piece = pieces.begin + 1; piece < pieces.end; ++piece) {
      for (i64 c = 0; c < size; ++c) sum[c] += sums[piece * size + c];
    }
    const i64 row = schedule.long_rows()[i];
    for (i64 c = 0; c < width; ++c) gradients.rows[row * width + c] = narrow<T>(sum[c]);
    if (gradients.numbers) { std::copy_n(sum + width, a.heads, gradients.numbers + row * a.heads); }
  }
  if (!gradients.a) return;
  for (i64 h = 0; h < a.heads; ++h) {
    for (i64 c = 0; c < a.width; ++c) {
      S sum = 0;
      for (i64 task = 0; task < tasks; ++task) { sum += of_a[task * packed + c * a.padded + h]; }
      gradients.a[h * a.width + c] = sum;
    }
  }
}

// Attention backward by rows, in batches: nonzeros are weighed row by row, then sent to their
// sources, each of which has one owner, in the order of rows.

template <class T> class AttentionScatter {
  using S = Sum<T>;

 public:
  AttentionScatter(const WeighingTable& table, const AttentionOperands<T>& a,
                   const AttentionLoops& loops, const AttentionSent<T>& sent, bool v2, int threads)
      : kernel_(std::get<WeighingKernels<T>>(table).weigh[v2]), a_(a), loops_(loops), sent_(sent),
        threads_(threads), columns_(std::make_unique_for_overwrite<i64[]>(kBatch)),
        weights_(std::make_unique_for_overwrite<S[]>(2 * kBatch * a.padded)),
        of_a_(v2 ? packed_columns(a.padded, a.width) : 0), begins_(1, 0) {}

  // The gradient of the vector, [heads, width], goes to `vector` in GATv2.
  void run(S* vector) {
    for (i64 row = 0; row < a_.rows; ++row) {
      const i64 count = nonzeros_of(row);
      if (count > kBatch) {
        work_off(row);
        long_row(row, count);
        first_ = row + 1;
        continue;
      }
      if (begins_.back() + count > kBatch) work_off(row);
      begins_.push_back(begins_.back() + count);
    }
    work_off(a_.rows);
    if (of_a_.empty()) return;
    for (i64 h = 0; h < a_.heads; ++h) {
      for (i64 c = 0; c < a_.width; ++c) vector[h * a_.width + c] = of_a_[c * a_.padded + h];
    }
  }

 private:
  static constexpr i64 kBatch = 1 << 14;  // nonzeros
  static constexpr i64 kTask = 1 << 9;    // of a thread at a time, at least

  i64 nonzeros_of(i64 row) const {
    return a_.indptr[row + 1] - a_.indptr[row] + (loops_.there && loops_.there[row]);
  }

  WeighedRows<S> weighed(Span rows) {
    return {rows, begins_.data(), columns_.get(), weights_.get(),
            weights_.get() + kBatch * a_.padded};
  }

  void call(const WeighedRows<S>& rows, const WeighingTask<S>& task) {
    const auto bytes = weighing_room(a_.padded, a_.width, sizeof(S));
    const auto room = std::make_unique_for_overwrite<char[]>(bytes);
    kernel_(a_, loops_, sent_, rows, task, room.get());
  }

  // The rows of a batch, up to a row.
  void work_off(i64 end) {
    const auto rows = weighed({first_, end});
    std::vector<Span> tasks;
    for (i64 begin = first_; begin < end;) {
      i64 row = begin;
      const i64 least = begins_[begin - first_] + kTask;
      while (row < end && begins_[row - first_] < least) ++row;
      tasks.push_back({begin, row});
      begin = row;
    }
    const auto size = std::ssize(of_a_);
    const auto count = std::ssize(tasks);
    std::vector<S> shares(count * size);
    for_each_task(count, threads_, [&](i64 i) {
      call(rows, {Ask::kRows, tasks[i], {0, 0}, nullptr, shares.data() + i * size, 0, 0});
    });
    for (i64 i = 0; i < count * size; ++i) of_a_[i % size] += shares[i];
    if (count) scatter(rows);
    begins_.assign(1, 0);
    first_ = end;
  }

  // A row of more nonzeros than a batch has: its softmax first, then piece by piece.
  void long_row(i64 row, i64 count) {
    std::vector<S> summary(3 * a_.padded);
    const Span alone{row, row + 1};
    call(weighed(alone), {Ask::kSummary, alone, {0, 0}, summary.data(), nullptr, 0, 0});
    for (i64 begin = 0; begin < count; begin += kBatch) {
      const Span piece{begin, std::min(begin + kBatch, count)};
      begins_ = {0, piece.end - piece.begin};
      const auto rows = weighed(alone);
      call(rows, {Ask::kPiece, alone, piece, summary.data(), of_a_.data(), 0, 0});
      scatter(rows);
    }
    begins_.assign(1, 0);
  }

  void scatter(const WeighedRows<S>& rows) {
    for_each_task(threads_, threads_, [&](i64 owner) {
      const auto number = static_cast<u32>(owner);
      const auto owners = static_cast<u32>(threads_);
      call(rows, {Ask::kScatter, rows.rows, {0, 0}, nullptr, nullptr, number, owners});
    });
  }

  std::decay_t<decltype(WeighingKernels<T>::weigh[0])> kernel_;
  const AttentionOperands<T>& a_;
  const AttentionLoops& loops_;
  const AttentionSent<T>& sent_;
  int threads_;
  std::unique_ptr<i64[]> columns_;
  std::unique_ptr<S[]> weights_;
  std::vector<S> of_a_;
  std::vector<i64> begins_;
  i64 first_ = 0;
};

}  // namespace spgnn
