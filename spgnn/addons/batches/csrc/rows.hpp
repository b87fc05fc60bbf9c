// The rows that are sampled from, with what is made of them once: order, sums and tables of
// weights; and what is drawn of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "big_array.hpp"
#include "buffer.hpp"
#include "hash.hpp"
#include "lanes.hpp"
#include "parallel.hpp"

namespace spgnn {

// Columns of each row in a canonical order, so that what is drawn depends on the graph alone.
// Pointers but the first two may be null.
template <class Index>
struct Rows {
  const std::int64_t* indptr;
  const Index* indices;
  const std::int64_t* ids;         // original id of each row; null: its number
  const std::int64_t* column_ids;  // and of each column
  const std::int64_t* order;  // where an entry stands in the caller's pattern; null: where it is
  const std::int64_t* times;  // of each entry, rising in a row
  const double* sums;         // of the weights of a row up to an entry
  const Bucket<Index>* buckets;
  std::int64_t rows;
  std::int64_t cols;

  std::uint64_t id(std::int64_t row) const { return ids ? ids[row] : row; }
  std::uint64_t column_id(std::int64_t column) const {
    return column_ids ? column_ids[column] : column;
  }
};

// Rows that entries are drawn for.
template <class Index>
struct Targets {
  const Index* rows;
  std::int64_t count;
  const std::int32_t* roots = nullptr;   // trees of different roots draw by themselves
  const std::int64_t* limits = nullptr;  // entries may not be later

  template <class Draws>
  VertexDraws draws(const Draws& hop, std::uint64_t id, std::int64_t i) const {
    return roots ? hop.of(id, roots[i]) : hop.of(id);
  }
};

// What a hop drew, target by target.
template <class Index>
struct Entries {
  Buffer<std::int64_t> indptr;
  Buffer<Index> columns;
  Buffer<std::int64_t> edge_ids;  // where asked for
  Buffer<float> weights;          // where entries stand for unequally many
  bool weighted = false;

  void resize(std::int64_t count, bool with_ids, bool with_weights) {
    columns = Buffer<Index>(count);
    if (with_ids) edge_ids = Buffer<std::int64_t>(count);
    if (with_weights) weights = Buffer<float>(count);
    weighted = with_weights;
  }
};

// Who takes the entries of a hop while others are still drawn.
template <class Index>
class Sink {
 public:
  // Before any is drawn: there is room for all of them. May throw.
  virtual void begin(const Entries<Index>& entries) = 0;
  // Those of targets [first, end) are there; called in order, one call after the other.
  virtual void take(const Entries<Index>& entries, std::int64_t first, std::int64_t end) = 0;

 protected:
  ~Sink() = default;
};

inline constexpr std::int64_t kRowsPerTask = 4096;

// Calls row(i, start, degree) for all rows, on all threads.
template <class Row>
void for_each_row(const std::int64_t* indptr, std::int64_t rows, int threads, const Row& row) {
  for_each_task((rows + kRowsPerTask - 1) / kRowsPerTask, threads, [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kRowsPerTask, rows);
    for (std::int64_t i = task * kRowsPerTask; i < end; ++i) {
      row(i, indptr[i], indptr[i + 1] - indptr[i]);
    }
  });
}

// Sums of the weights of each row up to and with each entry.
inline Buffer<double> row_sums(const std::int64_t* indptr, std::int64_t rows, const double* weights,
                               int threads) {
  Buffer<double> sums(indptr[rows]);
  for_each_row(indptr, rows, threads, [&](std::int64_t, std::int64_t start, std::int64_t degree) {
    double sum = 0;
    for (std::int64_t e = start; e < start + degree; ++e) sums[e] = sum += weights[e];
  });
  return sums;
}

// The alias tables of all rows (Vose, IEEE Transactions on Software Engineering, 1991), of buckets.
template <class Index>
BigArray<Bucket<Index>> alias_tables(const std::int64_t* indptr, const Index* indices,
                                     std::int64_t rows, const double* weights, int threads) {
  using Of = Bucket<Index>;
  BigArray<Of> tables(Of::begin(rows, indptr[rows]));
  for_each_row(indptr, rows, threads, [&](std::int64_t i, std::int64_t start, std::int64_t degree) {
    Of* row = tables.data() + Of::begin(i, start);
    const std::int64_t count = Of::of(degree), empty = count * Of::kPlaces - degree;
    double sum = 0;
    for (std::int64_t j = 0; j < degree; ++j) sum += weights[start + j];
    std::vector<double> chances(count);  // in units of 1 / count
    for (std::int64_t j = 0; j < degree; ++j) {
      const double share = weights[start + j] / sum;
      const std::int64_t place = j + empty;
      Of& bucket = row[place / Of::kPlaces];
      bucket.columns[place % Of::kPlaces] = indices[start + j];
      bucket.shares[place % Of::kPlaces] = static_cast<float>(share);
      chances[place / Of::kPlaces] += share * static_cast<double>(count);
    }
    std::vector<std::uint32_t> small, large;
    for (std::int64_t j = 0; j < count; ++j) {
      const auto number = static_cast<std::uint32_t>(j);
      row[j].keep = ~std::uint32_t{0};
      row[j].other = number;
      (chances[j] < 1 ? small : large).push_back(number);
    }
    while (!small.empty() && !large.empty()) {
      const std::uint32_t little = small.back(), much = large.back();
      small.pop_back();
      row[little].keep = static_cast<std::uint32_t>(chances[little] * 0x1p32);
      row[little].other = much;
      chances[much] -= 1 - chances[little];
      if (chances[much] >= 1) continue;
      large.pop_back();
      small.push_back(much);
    }
  });
  return tables;
}

// The order in which the samplers read a row: by time, then by original id.

// Entries of each row in order; nothing if they are. `ids` (of columns) and `times` (of entries)
// may be null.
template <class Index>
Buffer<std::int64_t> row_order(std::span<const std::int64_t> indptr, const Index* indices,
                               const std::int64_t* ids, const std::int64_t* times, int threads) {
  const auto before = [=](std::int64_t a, std::int64_t b) {
    if (times && times[a] != times[b]) return times[a] < times[b];
    const std::int64_t left = ids ? ids[indices[a]] : static_cast<std::int64_t>(indices[a]);
    const std::int64_t right = ids ? ids[indices[b]] : static_cast<std::int64_t>(indices[b]);
    return left < right;
  };
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  std::atomic<bool> ordered{true};
  for_each_row(indptr.data(), rows, threads,
               [&](std::int64_t, std::int64_t start, std::int64_t degree) {
                 for (std::int64_t e = start + 1; e < start + degree; ++e) {
                   if (before(e, e - 1)) ordered.store(false, std::memory_order_relaxed);
                 }
               });
  if (ordered) return {};
  Buffer<std::int64_t> order(indptr[rows]);
  for_each_row(indptr.data(), rows, threads,
               [&](std::int64_t, std::int64_t start, std::int64_t degree) {
                 std::int64_t* row = order.data() + start;
                 std::iota(row, row + degree, start);
                 std::sort(row, row + degree, [&](std::int64_t a, std::int64_t b) {
                   return before(a, b) || (!before(b, a) && a < b);
                 });
               });
  return order;
}

}  // namespace spgnn
