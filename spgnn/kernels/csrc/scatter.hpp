// Attention backward by rows, on threads: rows in batches, whose nonzeros are weighed first, row by
// row, and then sent to their sources, each of which has one owner. Sums are added in the order of
// rows, whoever adds them.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "attention.hpp"
#include "dispatch.hpp"
#include "scatter_types.hpp"

namespace spgnn {

template <class T>
class AttentionScatter {
  using S = Sum<T>;

 public:
  AttentionScatter(const WeighingTable& table, const AttentionOperands<T>& a,
                   const AttentionLoops& loops, const AttentionSent<T>& sent, bool v2, int threads)
      : kernel_(std::get<WeighingKernels<T>>(table).weigh[v2]),
        a_(a),
        loops_(loops),
        sent_(sent),
        threads_(threads),
        columns_(std::make_unique_for_overwrite<std::int64_t[]>(kBatch)),
        weights_(std::make_unique_for_overwrite<S[]>(2 * kBatch * a.padded)),
        of_a_(v2 ? packed_columns(a.padded, a.width) : 0),
        begins_(1, 0) {}

  // The gradient of the vector, [heads, width], goes to `vector` in GATv2.
  void run(S* vector) {
    for (std::int64_t row = 0; row < a_.rows; ++row) {
      const std::int64_t count = nonzeros_of(row);
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
    for (std::int64_t h = 0; h < a_.heads; ++h) {
      for (std::int64_t c = 0; c < a_.width; ++c)
        vector[h * a_.width + c] = of_a_[c * a_.padded + h];
    }
  }

 private:
  static constexpr std::int64_t kBatch = 1 << 14;  // nonzeros
  static constexpr std::int64_t kTask = 1 << 9;    // of a thread at a time, at least

  std::int64_t nonzeros_of(std::int64_t row) const {
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
  void work_off(std::int64_t end) {
    const auto rows = weighed({first_, end});
    std::vector<Span> tasks;
    for (std::int64_t begin = first_; begin < end;) {
      std::int64_t row = begin;
      const std::int64_t least = begins_[begin - first_] + kTask;
      while (row < end && begins_[row - first_] < least) ++row;
      tasks.push_back({begin, row});
      begin = row;
    }
    const auto size = static_cast<std::int64_t>(of_a_.size());
    const auto count = static_cast<std::int64_t>(tasks.size());
    std::vector<S> shares(count * size);
    for_each_task(count, threads_, [&](std::int64_t i) {
      call(rows, {Ask::kRows, tasks[i], {0, 0}, nullptr, shares.data() + i * size, 0, 0});
    });
    for (std::int64_t i = 0; i < count * size; ++i) of_a_[i % size] += shares[i];
    if (count) scatter(rows);
    begins_.assign(1, 0);
    first_ = end;
  }

  // A row of more nonzeros than a batch has: its softmax first, then piece by piece.
  void long_row(std::int64_t row, std::int64_t count) {
    std::vector<S> summary(3 * a_.padded);
    const Span alone{row, row + 1};
    call(weighed(alone), {Ask::kSummary, alone, {0, 0}, summary.data(), nullptr, 0, 0});
    for (std::int64_t begin = 0; begin < count; begin += kBatch) {
      const Span piece{begin, std::min(begin + kBatch, count)};
      begins_ = {0, piece.end - piece.begin};
      const auto rows = weighed(alone);
      call(rows, {Ask::kPiece, alone, piece, summary.data(), of_a_.data(), 0, 0});
      scatter(rows);
    }
    begins_.assign(1, 0);
  }

  void scatter(const WeighedRows<S>& rows) {
    for_each_task(threads_, threads_, [&](std::int64_t owner) {
      const auto number = static_cast<std::uint32_t>(owner);
      const auto owners = static_cast<std::uint32_t>(threads_);
      call(rows, {Ask::kScatter, rows.rows, {0, 0}, nullptr, nullptr, number, owners});
    });
  }

  std::decay_t<decltype(WeighingKernels<T>::weigh[0])> kernel_;
  const AttentionOperands<T>& a_;
  const AttentionLoops& loops_;
  const AttentionSent<T>& sent_;
  int threads_;
  std::unique_ptr<std::int64_t[]> columns_;
  std::unique_ptr<S[]> weights_;
  std::vector<S> of_a_;
  std::vector<std::int64_t> begins_;
  std::int64_t first_ = 0;
};

}  // namespace spgnn
