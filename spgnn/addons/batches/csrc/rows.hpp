// The rows that are sampled from, with their order, sums and tables of weights.
#pragma once

#include "big_array.hpp"
#include "buffer.hpp"
#include "lanes.hpp"
#include "parallel.hpp"

namespace spgnn {

// Columns of rows in a canonical order. Pointers but the first two may be null.
template <class Index> struct Rows {
  const i64* indptr;
  const Index* indices;
  const i64* ids;         // original id of each row; null: its number
  const i64* column_ids;  // and of each column
  const i64* order;       // where an entry stands in the caller's pattern; null: where it is
  const i64* times;       // of each entry, rising in a row
  const double* sums;     // of the weights of a row up to an entry
  const Bucket<Index>* buckets;
  i64 rows;
  i64 cols;

  u64 id(i64 row) const { return ids ? ids[row] : row; }
  u64 column_id(i64 column) const { return column_ids ? column_ids[column] : column; }
};

// Rows that entries are drawn for.
template <class Index> struct Targets {
  const Index* rows;
  i64 count;
  const i32* roots = nullptr;   // trees of different roots draw by themselves
  const i64* limits = nullptr;  // entries may not be later

  template <class Draws> VertexDraws draws(const Draws& hop, u64 id, i64 i) const {
    return roots ? hop.of(id, roots[i]) : hop.of(id);
  }
};

// What a hop drew, target by target.
template <class Index> struct Entries {
  Buffer<i64> indptr;
  Buffer<Index> columns;
  Buffer<i64> edge_ids;   // where asked for
  Buffer<float> weights;  // where entries stand for unequally many
  bool weighted = false;

  void resize(i64 count, bool with_ids, bool with_weights) {
    columns = Buffer<Index>(count);
    if (with_ids) edge_ids = Buffer<i64>(count);
    if (with_weights) weights = Buffer<float>(count);
    weighted = with_weights;
  }
};

// Who takes the entries of a hop while others are still drawn.
template <class Index> class Sink {
 public:
  // Before any is drawn: there is room for all of them. May throw.
  virtual void begin(const Entries<Index>& entries) = 0;
  // Those of targets [first, end) are there; called in order, one call after the other.
  virtual void take(const Entries<Index>& entries, i64 first, i64 end) = 0;

 protected:
  ~Sink() = default;
};

inline constexpr i64 kRowsPerTask = 4096;

// Calls row(i, start, degree) for all rows, on all threads.
template <class Row> void for_each_row(const i64* indptr, i64 rows, int threads, const Row& row) {
  for_each_task((rows + kRowsPerTask - 1) / kRowsPerTask, threads, [&](i64 task) {
    const i64 end = std::min((task + 1) * kRowsPerTask, rows);
    for (i64 i = task * kRowsPerTask; i < end; ++i) {
      row(i, indptr[i], indptr[i + 1] - indptr[i]);
    }
  });
}

// Sums of the weights of each row up to and with each entry.
inline Buffer<double> row_sums(const i64* indptr, i64 rows, const double* weights, int threads) {
  Buffer<double> sums(indptr[rows]);
  for_each_row(indptr, rows, threads, [&](i64, i64 start, i64 degree) {
    double sum = 0;
    for (i64 e = start; e < start + degree; ++e) sums[e] = sum += weights[e];
  });
  return sums;
}

// The alias tables of all rows (Vose, IEEE Transactions on Software Engineering, 1991), of buckets.
template <class Index>
BigArray<Bucket<Index>> alias_tables(const i64* indptr, const Index* indices, i64 rows,
                                     const double* weights, int threads) {
  using Of = Bucket<Index>;
  BigArray<Of> tables(Of::begin(rows, indptr[rows]));
  for_each_row(indptr, rows, threads, [&](i64 i, i64 start, i64 degree) {
    Of* row = tables.data() + Of::begin(i, start);
    const i64 count = Of::of(degree), empty = count * Of::kPlaces - degree;
    double sum = 0;
    for (i64 j = 0; j < degree; ++j) sum += weights[start + j];
    std::vector<double> chances(count);  // in units of 1 / count
    for (i64 j = 0; j < degree; ++j) {
      const double share = weights[start + j] / sum;
      const i64 place = j + empty;
      Of& bucket = row[place / Of::kPlaces];
      bucket.columns[place % Of::kPlaces] = indices[start + j];
      bucket.shares[place % Of::kPlaces] = static_cast<float>(share);
      chances[place / Of::kPlaces] += share * static_cast<double>(count);
    }
    std::vector<u32> small, large;
    for (i64 j = 0; j < count; ++j) {
      const auto number = static_cast<u32>(j);
      row[j].keep = ~u32{0};
      row[j].other = number;
      (chances[j] < 1 ? small : large).push_back(number);
    }
    while (!small.empty() && !large.empty()) {
      const u32 little = small.back(), much = large.back();
      small.pop_back();
      row[little].keep = static_cast<u32>(chances[little] * 0x1p32);
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

// Entries of each row in order; nothing if they are. `ids` (of columns) and `times` may be null.
template <class Index>
Buffer<i64> row_order(std::span<const i64> indptr, const Index* indices, const i64* ids,
                      const i64* times, int threads) {
  const auto before = [=](i64 a, i64 b) {
    if (times && times[a] != times[b]) return times[a] < times[b];
    const i64 left = ids ? ids[indices[a]] : static_cast<i64>(indices[a]);
    const i64 right = ids ? ids[indices[b]] : static_cast<i64>(indices[b]);
    return left < right;
  };
  const auto rows = std::ssize(indptr) - 1;
  std::atomic<bool> ordered{true};
  for_each_row(indptr.data(), rows, threads, [&](i64, i64 start, i64 degree) {
    for (i64 e = start + 1; e < start + degree; ++e) {
      if (before(e, e - 1)) ordered.store(false, std::memory_order_relaxed);
    }
  });
  if (ordered) return {};
  Buffer<i64> order(indptr[rows]);
  for_each_row(indptr.data(), rows, threads, [&](i64, i64 start, i64 degree) {
    i64* row = order.data() + start;
    std::iota(row, row + degree, start);
    std::sort(row, row + degree,
              [&](i64 a, i64 b) { return before(a, b) || (!before(b, a) && a < b); });
  });
  return order;
}

}  // namespace spgnn
