// How one entry of a row is drawn in proportion to its weight: by an alias table, or by a search;
// and rows that are drawn from soon.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffer.hpp"
#include "hash.hpp"
#include "lanes.hpp"
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

// A row that entries are drawn from.
struct DrawnRow {
  std::int64_t number, start, degree;
};

template <class Index>
[[gnu::always_inline]] inline void set_pick(const Picks<Index>& picks, std::int64_t j,
                                            const Entry<Index>& entry) {
  picks.columns[j] = entry.column;
  picks.offsets[j] = entry.offset;
  picks.shares[j] = entry.share;
}

// A row that is drawn from soon.
template <class Drawer>
struct ComingRow {
  static constexpr std::int64_t kMostPlaces = 65;

  Drawer drawer;
  VertexDraws draws;
  bool placed;  // whether its first places are known, for it is too long to be fetched whole
  Place places[kMostPlaces];
};

// Rows are drawn from in three steps, with what other rows need on its way from memory meanwhile:
// of the row that comes in kFar rows it is known where random numbers point, of that in kNear rows
// to which entries that leads.
template <class Index, class Drawer>
class ComingRows {
 public:
  static constexpr std::int64_t kFar = 16, kNear = 8;
  using Coming = ComingRow<Drawer>;

  explicit ComingRows(const Rows<Index>& rows) : rows_(rows) {}

  [[gnu::always_inline]] void fetch(std::int64_t i, const DrawnRow& row, std::int64_t count,
                                    VertexDraws draws) {
    Coming& coming = coming_[i % kKept];
    const Drawer drawer(rows_, row.number, row.start, row.degree);
    coming.drawer = drawer;
    coming.draws = draws;
    coming.placed = drawer.lines() > count && count <= Coming::kMostPlaces;
    if (!coming.placed) {
      if (drawer.lines() <= count) drawer.prefetch_row();
      return;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      coming.places[j] = drawer.place(draws[j]);
      drawer.prefetch(coming.places[j]);
    }
  }
  [[gnu::always_inline]] void settle(std::int64_t i, std::int64_t count) {
    Coming& coming = coming_[i % kKept];
    if (!coming.placed) return;
    const Drawer drawer = coming.drawer;
    for (std::int64_t j = 0; j < count; ++j) {
      coming.places[j] = drawer.settled(coming.places[j]);
      drawer.prefetch(coming.places[j]);
    }
  }
  const Coming& operator[](std::int64_t i) const { return coming_[i % kKept]; }

 private:
  static constexpr std::int64_t kKept = 2 * kFar;

  const Rows<Index>& rows_;
  Coming coming_[kKept];
};

}  // namespace spgnn
