// How one entry of a row is drawn in proportion to its weight: by an alias table, or by a search.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "big_array.hpp"
#include "buffer.hpp"
#include "hash.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// One look-up, in a table made once.
template <class Index>
class AliasDrawer {
 public:
  AliasDrawer(const Rows<Index>& rows, std::int64_t start, std::int64_t degree)
      : row_(rows.aliases + start), degree_(degree) {}

  // Where in the row a random number points: which entry, and where in it.
  [[gnu::always_inline]] std::uint64_t place(std::uint64_t random) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(random) * degree_) >> 32);
  }
  [[gnu::always_inline]] void prefetch_place(std::uint64_t place) const {
    __builtin_prefetch(row_ + (place >> 32));
  }
  [[gnu::always_inline]] void prefetch_entry(std::uint32_t offset) const {
    __builtin_prefetch(row_ + offset);
  }
  [[gnu::always_inline]] void prefetch_row() const {
    const char* row = reinterpret_cast<const char*>(row_);
    for (std::uint64_t byte = 0; byte < degree_ * sizeof(*row_); byte += 64) {
      __builtin_prefetch(row + byte);
    }
  }
  [[gnu::always_inline]] std::uint32_t at(std::uint64_t place) const {
    const auto slot = static_cast<std::uint32_t>(place >> 32);
    const auto fraction = static_cast<std::uint32_t>(place);
    // Both are loaded, for which is taken is nothing to predict.
    const std::uint32_t keep = row_[slot].keep, other = row_[slot].other;
    const std::uint32_t swap = 0U - static_cast<std::uint32_t>(fraction >= keep);
    return slot ^ ((slot ^ other) & swap);
  }
  float share(std::uint32_t offset) const { return row_[offset].share; }
  Index column(std::uint32_t offset) const { return row_[offset].column; }

 private:
  const Alias<Index>* row_;
  std::uint64_t degree_;
};

// The same for the first entries of a row, which no table was made for.
template <class Index>
class SumDrawer {
 public:
  SumDrawer(const Rows<Index>& rows, std::int64_t start, std::int64_t degree)
      : row_(rows.sums + start), columns_(rows.indices + start), degree_(degree) {}

  [[gnu::always_inline]] std::uint64_t place(std::uint64_t random) const { return random; }
  [[gnu::always_inline]] void prefetch_place(std::uint64_t) const {}
  [[gnu::always_inline]] void prefetch_entry(std::uint32_t offset) const {
    __builtin_prefetch(columns_ + offset);
  }
  [[gnu::always_inline]] void prefetch_row() const {}
  std::uint32_t at(std::uint64_t place) const {
    const double sum = unit(place) * row_[degree_ - 1];
    const std::int64_t offset = std::upper_bound(row_, row_ + degree_, sum) - row_;
    return static_cast<std::uint32_t>(std::min(offset, degree_ - 1));
  }
  float share(std::uint32_t offset) const {
    const double before = offset > 0 ? row_[offset - 1] : 0;
    return static_cast<float>((row_[offset] - before) / row_[degree_ - 1]);
  }
  Index column(std::uint32_t offset) const { return columns_[offset]; }

 private:
  const double* row_;
  const Index* columns_;
  std::int64_t degree_;
};

inline constexpr std::int64_t kRowsPerTask = 4096;

// Calls row(start, degree) for all rows, on all threads.
template <class Row>
void for_each_row(const std::int64_t* indptr, std::int64_t rows, int threads, const Row& row) {
  for_each_task((rows + kRowsPerTask - 1) / kRowsPerTask, threads, [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kRowsPerTask, rows);
    for (std::int64_t i = task * kRowsPerTask; i < end; ++i) {
      row(indptr[i], indptr[i + 1] - indptr[i]);
    }
  });
}

// Sums of the weights of each row up to and with each entry.
inline Buffer<double> row_sums(const std::int64_t* indptr, std::int64_t rows, const double* weights,
                               int threads) {
  Buffer<double> sums(indptr[rows]);
  for_each_row(indptr, rows, threads, [&](std::int64_t start, std::int64_t degree) {
    double sum = 0;
    for (std::int64_t e = start; e < start + degree; ++e) sums[e] = sum += weights[e];
  });
  return sums;
}

// The alias tables of all rows (Vose, IEEE Transactions on Software Engineering, 1991).
template <class Index>
BigArray<Alias<Index>> alias_tables(const std::int64_t* indptr, const Index* indices,
                                    std::int64_t rows, const double* weights, int threads) {
  BigArray<Alias<Index>> tables(indptr[rows]);
  for_each_row(indptr, rows, threads, [&](std::int64_t start, std::int64_t degree) {
    Alias<Index>* row = tables.data() + start;
    double sum = 0;
    for (std::int64_t j = 0; j < degree; ++j) sum += weights[start + j];
    std::vector<double> chances(degree);  // in units of 1 / degree
    std::vector<std::uint32_t> small, large;
    for (std::int64_t j = 0; j < degree; ++j) {
      const double share = weights[start + j] / sum;
      const auto offset = static_cast<std::uint32_t>(j);
      row[j] = {~std::uint32_t{0}, offset, indices[start + j], static_cast<float>(share)};
      chances[j] = share * static_cast<double>(degree);
      (chances[j] < 1 ? small : large).push_back(offset);
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

}  // namespace spgnn
