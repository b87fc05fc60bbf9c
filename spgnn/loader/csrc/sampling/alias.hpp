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

// One draw: where its random number points, and which entry it turned out to be.
struct Place {
  std::uint32_t bucket, fraction;
  float within;
};
template <class Index>
struct Entry {
  std::uint32_t offset;  // in the row
  Index column;
  float share;
};

// One look-up, in a table made once; in steps, so that memory may be asked for what the next one
// reads. Chances are exact to 2^-24 of the weight of a bucket.
template <class Index>
class AliasDrawer {
 public:
  AliasDrawer() = default;
  AliasDrawer(const Rows<Index>& rows, std::int64_t row, std::int64_t start, std::int64_t degree)
      : row_(rows.buckets + Bucket<Index>::begin(row, start)),
        count_(Bucket<Index>::of(degree)),
        empty_(static_cast<std::uint32_t>(count_ * Bucket<Index>::kPlaces - degree)) {}

  const Bucket<Index>* row() const { return row_; }
  std::int64_t count() const { return count_; }
  std::uint32_t empty() const { return empty_; }

  // Lines of the cache.
  std::int64_t lines() const { return (count_ * sizeof(*row_) + 63) / 64; }
  [[gnu::always_inline]] void prefetch_row() const {
    const char* row = reinterpret_cast<const char*>(row_);
    for (std::uint64_t byte = 0; byte < count_ * sizeof(*row_); byte += 64) {
      prefetch_soon(row + byte);
    }
  }

  [[gnu::always_inline]] Place place(std::uint64_t random) const {
    const auto product = static_cast<unsigned __int128>(random) * count_;
    // Of few buckets, these bits have not said which it is.
    const std::uint64_t rest = count_ <= kFew ? random : mixed(random);
    return {static_cast<std::uint32_t>(product >> 64), static_cast<std::uint32_t>(product >> 32),
            static_cast<float>(static_cast<std::int32_t>(rest & 0xFFFFFF)) * 0x1p-24F};
  }
  [[gnu::always_inline]] void prefetch(const Place& place) const {
    prefetch_soon(row_ + place.bucket);
  }
  // The bucket that the place stands for; both are known, for which it is is nothing to predict.
  [[gnu::always_inline]] Place settled(Place place) const {
    const std::uint32_t keep = row_[place.bucket].keep, other = row_[place.bucket].other;
    const std::uint32_t swap = 0U - static_cast<std::uint32_t>(place.fraction >= keep);
    place.bucket ^= (place.bucket ^ other) & swap;
    return place;
  }
  // Of a settled place.
  [[gnu::always_inline]] Entry<Index> at(const Place& place) const {
    const Bucket<Index>& bucket = row_[place.bucket];
    const float first = bucket.shares[0], two = first + bucket.shares[1];
    const float sum = place.within * (two + bucket.shares[2]);
    const auto j =
        static_cast<std::uint32_t>(sum >= first) + static_cast<std::uint32_t>(sum >= two);
    return {place.bucket * kPlaces + j - empty_, bucket.columns[j], bucket.shares[j]};
  }
  [[gnu::always_inline]] Entry<Index> draw(std::uint64_t random) const {
    return at(settled(place(random)));
  }

  Entry<Index> entry(std::uint32_t offset) const {
    const std::uint32_t place = offset + empty_;
    const Bucket<Index>& bucket = row_[place / kPlaces];
    return {offset, bucket.columns[place % kPlaces], bucket.shares[place % kPlaces]};
  }

 private:
  static constexpr std::uint32_t kPlaces = Bucket<Index>::kPlaces;
  static constexpr std::int64_t kFew = 4096;

  const Bucket<Index>* row_ = nullptr;
  std::int64_t count_ = 0;
  std::uint32_t empty_ = 0;
};

// The same for the first entries of a row, which no table was made for.
template <class Index>
class SumDrawer {
 public:
  SumDrawer() = default;
  SumDrawer(const Rows<Index>& rows, std::int64_t, std::int64_t start, std::int64_t degree)
      : row_(rows.sums + start), columns_(rows.indices + start), degree_(degree) {}

  static std::int64_t lines() { return 0; }
  [[gnu::always_inline]] void prefetch_row() const {}
  [[gnu::always_inline]] Place place(std::uint64_t random) const {
    const double sum = unit(random) * row_[degree_ - 1];
    const std::int64_t offset = std::upper_bound(row_, row_ + degree_, sum) - row_;
    return {static_cast<std::uint32_t>(std::min(offset, degree_ - 1)), 0, 0};
  }
  [[gnu::always_inline]] void prefetch(const Place& place) const {
    __builtin_prefetch(columns_ + place.bucket);
  }
  [[gnu::always_inline]] Place settled(const Place& place) const { return place; }
  [[gnu::always_inline]] Entry<Index> at(const Place& place) const { return entry(place.bucket); }
  [[gnu::always_inline]] Entry<Index> draw(std::uint64_t random) const { return at(place(random)); }

  Entry<Index> entry(std::uint32_t offset) const {
    const double before = offset > 0 ? row_[offset - 1] : 0;
    const double share = (row_[offset] - before) / row_[degree_ - 1];
    return {offset, columns_[offset], static_cast<float>(share)};
  }

 private:
  const double* row_ = nullptr;
  const Index* columns_ = nullptr;
  std::int64_t degree_ = 0;
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

}  // namespace spgnn
