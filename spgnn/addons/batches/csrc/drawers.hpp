// How an entry of a row is drawn in proportion to its weight: by an alias table, or a search.
#pragma once

#include "buffer.hpp"
#include "lanes.hpp"
#include "rows.hpp"

namespace spgnn {

// One draw: where its random number points, and which entry it turned out to be.
struct Place {
  u32 bucket, fraction;
  float within;
};
template <class Index> struct Entry {
  u32 offset;  // in the row
  Index column;
  float share;
};

// One look-up, in steps that may be far apart. Chances are exact to 2^-24 of a bucket's weight.
template <class Index> class AliasDrawer {
 public:
  AliasDrawer() = default;
  AliasDrawer(const Rows<Index>& rows, i64 row, i64 start, i64 degree)
      : row_(rows.buckets + Bucket<Index>::begin(row, start)), count_(Bucket<Index>::of(degree)),
        empty_(static_cast<u32>(count_ * Bucket<Index>::kPlaces - degree)) {}

  const Bucket<Index>* row() const { return row_; }
  i64 count() const { return count_; }
  u32 empty() const { return empty_; }

  // Lines of the cache.
  i64 lines() const { return (count_ * sizeof(*row_) + 63) / 64; }
  [[gnu::always_inline]] void prefetch_row() const {
    const char* row = reinterpret_cast<const char*>(row_);
    for (u64 byte = 0; byte < count_ * sizeof(*row_); byte += 64) { prefetch_soon(row + byte); }
  }

  [[gnu::always_inline]] Place place(u64 random) const {
    const auto product = static_cast<unsigned __int128>(random) * count_;
    // Of few buckets, these bits have not said which it is.
    const u64 rest = count_ <= kFew ? random : mixed(random);
    return {static_cast<u32>(product >> 64), static_cast<u32>(product >> 32),
            static_cast<float>(static_cast<i32>(rest & 0xFFFFFF)) * 0x1p-24F};
  }
  [[gnu::always_inline]] void prefetch(const Place& place) const {
    prefetch_soon(row_ + place.bucket);
  }
  // The bucket that the place stands for; both are known, for which it is is nothing to predict.
  [[gnu::always_inline]] Place settled(Place place) const {
    const u32 keep = row_[place.bucket].keep, other = row_[place.bucket].other;
    const u32 swap = 0U - static_cast<u32>(place.fraction >= keep);
    place.bucket ^= (place.bucket ^ other) & swap;
    return place;
  }
  // Of a settled place.
  [[gnu::always_inline]] Entry<Index> at(const Place& place) const {
    const Bucket<Index>& bucket = row_[place.bucket];
    const float first = bucket.shares[0], two = first + bucket.shares[1];
    const float sum = place.within * (two + bucket.shares[2]);
    const auto j = static_cast<u32>(sum >= first) + static_cast<u32>(sum >= two);
    return {place.bucket * kPlaces + j - empty_, bucket.columns[j], bucket.shares[j]};
  }
  [[gnu::always_inline]] Entry<Index> draw(u64 random) const { return at(settled(place(random))); }

  Entry<Index> entry(u32 offset) const {
    const u32 place = offset + empty_;
    const Bucket<Index>& bucket = row_[place / kPlaces];
    return {offset, bucket.columns[place % kPlaces], bucket.shares[place % kPlaces]};
  }

 private:
  static constexpr u32 kPlaces = Bucket<Index>::kPlaces;
  static constexpr i64 kFew = 4096;

  const Bucket<Index>* row_ = nullptr;
  i64 count_ = 0;
  u32 empty_ = 0;
};

// The same for the first entries of a row, which no table was made for.
template <class Index> class SumDrawer {
 public:
  SumDrawer() = default;
  SumDrawer(const Rows<Index>& rows, i64, i64 start, i64 degree)
      : row_(rows.sums + start), columns_(rows.indices + start), degree_(degree) {}

  static i64 lines() { return 0; }
  [[gnu::always_inline]] void prefetch_row() const {}
  [[gnu::always_inline]] Place place(u64 random) const {
    const double sum = unit(random) * row_[degree_ - 1];
    const i64 offset = std::upper_bound(row_, row_ + degree_, sum) - row_;
    return {static_cast<u32>(std::min(offset, degree_ - 1)), 0, 0};
  }
  [[gnu::always_inline]] void prefetch(const Place& place) const {
    __builtin_prefetch(columns_ + place.bucket);
  }
  [[gnu::always_inline]] Place settled(const Place& place) const { return place; }
  [[gnu::always_inline]] Entry<Index> at(const Place& place) const { return entry(place.bucket); }
  [[gnu::always_inline]] Entry<Index> draw(u64 random) const { return at(place(random)); }

  Entry<Index> entry(u32 offset) const {
    const double before = offset > 0 ? row_[offset - 1] : 0;
    const double share = (row_[offset] - before) / row_[degree_ - 1];
    return {offset, columns_[offset], static_cast<float>(share)};
  }

 private:
  const double* row_ = nullptr;
  const Index* columns_ = nullptr;
  i64 degree_ = 0;
};

// A row that entries are drawn from.
struct DrawnRow {
  i64 number, start, degree;
};

template <class Index>
[[gnu::always_inline]] inline void set_pick(const Picks<Index>& picks, i64 j,
                                            const Entry<Index>& entry) {
  picks.columns[j] = entry.column;
  picks.offsets[j] = entry.offset;
  picks.shares[j] = entry.share;
}

// A row that is drawn from soon.
template <class Drawer> struct ComingRow {
  static constexpr i64 kMostPlaces = 65;

  Drawer drawer;
  VertexDraws draws;
  bool placed;  // whether its first places are known, for it is too long to be fetched whole
  Place places[kMostPlaces];
};

// Rows are drawn from in three steps, with memory for others on its way meanwhile: kFar rows before
// it is known where random numbers point, kNear rows before to which entries that leads.
template <class Index, class Drawer> class ComingRows {
 public:
  static constexpr i64 kFar = 16, kNear = 8;
  using Coming = ComingRow<Drawer>;

  explicit ComingRows(const Rows<Index>& rows) : rows_(rows) {}

  [[gnu::always_inline]] void fetch(i64 i, const DrawnRow& row, i64 count, VertexDraws draws) {
    Coming& coming = coming_[i % kKept];
    const Drawer drawer(rows_, row.number, row.start, row.degree);
    coming.drawer = drawer;
    coming.draws = draws;
    coming.placed = drawer.lines() > count && count <= Coming::kMostPlaces;
    if (!coming.placed) {
      if (drawer.lines() <= count) drawer.prefetch_row();
      return;
    }
    for (i64 j = 0; j < count; ++j) {
      coming.places[j] = drawer.place(draws[j]);
      drawer.prefetch(coming.places[j]);
    }
  }
  [[gnu::always_inline]] void settle(i64 i, i64 count) {
    Coming& coming = coming_[i % kKept];
    if (!coming.placed) return;
    const Drawer drawer = coming.drawer;
    for (i64 j = 0; j < count; ++j) {
      coming.places[j] = drawer.settled(coming.places[j]);
      drawer.prefetch(coming.places[j]);
    }
  }
  const Coming& operator[](i64 i) const { return coming_[i % kKept]; }

 private:
  static constexpr i64 kKept = 2 * kFar;

  const Rows<Index>& rows_;
  Coming coming_[kKept];
};

}  // namespace spgnn
