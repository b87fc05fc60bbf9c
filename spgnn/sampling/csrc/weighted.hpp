// Which of a row's entries are sampled, in proportion to weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "alias.hpp"
#include "choose.hpp"
#include "factors.hpp"
#include "hash.hpp"
#include "rows.hpp"

namespace spgnn {

// Streams of hashes of one vertex, which must not overlap.
inline constexpr std::uint64_t kWaits = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kKeys = std::uint64_t{2} << 40;

// What was drawn of a row: so many entries arrived, or (0) they did until some time.
struct Arrivals {
  std::int64_t count;
  float time;
};

// Drawn one by one, each in proportion to its weight among those that are left.
//
// Entries that were drawn before are passed over, which is the same.
template <class Index, class Drawer>
class WeightedWithoutReplacement {
 public:
  static constexpr bool kWeighs = true;
  using Entry = Drawer;
  explicit WeightedWithoutReplacement(const Rows<Index>& rows) : rows_(rows) {}

  [[gnu::always_inline]] void prefetch(std::int64_t row, std::int64_t start, std::int64_t degree,
                                       std::int64_t k, VertexDraws draws) {
    const Drawer drawer(rows_, start, degree);
    const bool whole = degree <= kLines * (k + 1);
    if (whole) drawer.prefetch_row();
    if (wants_most(degree, k)) return;
    std::uint64_t* early = early_[row % kRowsKept];
    if (degree <= kHalves) {
      for (std::int64_t j = 0; j <= k; j += 2) {
        early[j] = drawer.place(draws.half(j));
        early[j + 1] = drawer.place(draws.half(j + 1));
      }
    } else {
      for (std::int64_t j = 0; j <= k; ++j) early[j] = drawer.place(draws[j]);
    }
    for (std::int64_t j = 0; j <= k && !whole; ++j) drawer.prefetch_place(early[j]);
  }
  [[gnu::always_inline]] void prefetch_chosen(std::int64_t start, std::int64_t degree,
                                              std::int64_t k, const std::int64_t* offsets) const {
    if (degree <= kLines * (k + 1)) return;
    const Drawer drawer(rows_, start, degree);
    for (std::int64_t j = 0; j < k; ++j) {
      drawer.prefetch_entry(static_cast<std::uint32_t>(offsets[j]));
    }
  }

  // There is room for kMoreRoom more than k.
  static constexpr std::int64_t kMoreRoom = 1;
  Arrivals operator()(std::int64_t row, std::int64_t start, std::int64_t degree, std::int64_t k,
                      VertexDraws draws, std::int64_t* offsets) {
    const Drawer drawer(rows_, start, degree);
    if (wants_most(degree, k)) return draw_all(drawer, degree, k, draws, offsets);
    if (k > kMostEarly) {
      return draw_some(HashedSet(memory_, k + 1), nullptr, drawer, degree, k, draws, offsets);
    }
    const std::uint64_t* early = early_[row % kRowsKept];
    if (degree <= Marks::kCount) {
      return draw_some(MarkedSet(marks_), early, drawer, degree, k, draws, offsets);
    }
    return draw_some(FilteredSet(marks_), early, drawer, degree, k, draws, offsets);
  }

  // Factors from shares of a row's weights; whole vectors of both are read and written.
  static void weigh(const Arrivals& arrivals, std::int64_t k, const float* shares, float* factors) {
    if (arrivals.count == 0) {
      for (std::int64_t j = 0; j < k; ++j) {
        factors[j] = 1 / one_minus_exp(std::max(shares[j], kLeastShare) * arrivals.time);
      }
      return;
    }
    if (arrivals.count < static_cast<std::int64_t>(kMeanFactors.size())) {
      kMeanFactors[arrivals.count].of(k, shares, factors);
    } else {
      MeanFactor(arrivals.count).of(k, shares, factors);
    }
  }

 private:
  // Rows of at most so many entries: of which all may be looked at; all of which are fetched (times
  // what is drawn); which 32 random bits tell apart, to a millionth.
  static constexpr std::int64_t kShort = 64, kLines = 8, kHalves = 4096;
  static constexpr std::int64_t kMostEarly = FilteredSet::kMost;
  // Rows whose random numbers are kept: more than are fetched ahead.
  static constexpr std::int64_t kRowsKept = 16;

  static bool wants_most(std::int64_t degree, std::int64_t k) {
    return degree <= kShort && 4 * degree <= 5 * (k + 1);
  }
  static std::int64_t patience(std::int64_t k) { return 8 * k + 32; }
  [[gnu::always_inline]] static std::uint64_t random(VertexDraws draws, std::int64_t j,
                                                     std::int64_t degree) {
    return degree <= kHalves ? draws.half(j) : draws[j];
  }

  // Most of the row is wanted: drawing one by one would mostly meet what was drawn before. When
  // does each entry arrive?
  static Arrivals draw_all(const Drawer& drawer, std::int64_t degree, std::int64_t k,
                           VertexDraws draws, std::int64_t* offsets) {
    float arrivals[kShort];
    for (std::int64_t j = 0; j < degree; ++j) {
      arrivals[j] = quick_exponential(draws[kKeys + j]);
    }
    for (std::int64_t j = 0; j < degree; ++j) {
      arrivals[j] /= std::max(drawer.share(static_cast<std::uint32_t>(j)), kLeastShare);
    }
    // The last ones are left out, the latest first.
    float time = 0;
    for (std::int64_t left = degree; left > k; --left) {
      std::int64_t latest = 0;
      for (std::int64_t j = 1; j < degree; ++j)
        latest = arrivals[j] > arrivals[latest] ? j : latest;
      time = std::exchange(arrivals[latest], -1.0F);
    }
    std::int64_t taken = 0;
    for (std::int64_t j = 0; j < degree; ++j) {
      offsets[taken] = j;
      taken += arrivals[j] >= 0;
    }
    return {0, time};
  }

  // Entry by entry, until the one after the last; without a branch on what was met before. The
  // first k + 1 random numbers, which are used in any case, may be known.
  template <class Set>
  [[gnu::always_inline]] Arrivals draw_some(Set&& chosen, const std::uint64_t* early,
                                            const Drawer& drawer, std::int64_t degree,
                                            std::int64_t k, VertexDraws draws,
                                            std::int64_t* offsets) {
    std::int64_t taken = 0, drawn = 0;
    const auto take = [&](std::uint64_t place) {
      const std::uint32_t offset = drawer.at(place);
      offsets[taken] = offset;
      taken += chosen.insert(offset, offsets, taken);
    };
    for (; early && drawn <= k; ++drawn) take(early[drawn]);
    for (; taken <= k; ++drawn) {
      if (drawn == patience(k)) return draw_rest(chosen, drawer, degree, k, taken, draws, offsets);
      take(drawer.place(random(draws, drawn, degree)));
    }
    return {drawn, 0};
  }

  // Few heavy entries were drawn again and again: the rest by their times of arrival, which are
  // exponential from any moment on.
  template <class Set>
  Arrivals draw_rest(const Set& chosen, const Drawer& drawer, std::int64_t degree, std::int64_t k,
                     std::int64_t taken, VertexDraws draws, std::int64_t* offsets) {
    const std::int64_t drawn = taken;
    double time = 0;
    for (std::int64_t j = 0; j < patience(k); ++j) time += exponential(draws[kWaits + j]);
    arrivals_.clear();
    for (std::uint32_t offset = 0; offset < degree; ++offset) {
      if (chosen.has(offset, offsets, drawn)) continue;
      const double wait = exponential(draws[kKeys + offset]);
      arrivals_.emplace_back(wait / std::max(drawer.share(offset), kLeastShare), offset);
    }
    const auto last = arrivals_.begin() + (k - taken);
    std::nth_element(arrivals_.begin(), last, arrivals_.end());
    std::sort(arrivals_.begin(), last);
    for (auto arrival = arrivals_.begin(); arrival != last; ++arrival) {
      offsets[taken++] = arrival->second;
    }
    return {0, static_cast<float>(time + last->first)};
  }

  static constexpr float kLeastShare = std::numeric_limits<float>::min();

  const Rows<Index>& rows_;
  std::uint64_t early_[kRowsKept][kMostEarly + 2];
  Marks marks_;
  std::vector<std::uint32_t> memory_;
  std::vector<std::pair<double, std::uint32_t>> arrivals_;
};

// Drawn one by one, each in proportion to its weight; one over the expected number of times makes
// sums unbiased (Hansen & Hurwitz, Annals of Mathematical Statistics, 1943).
template <class Index, class Drawer>
class WeightedWithReplacement {
 public:
  static constexpr bool kWeighs = true;
  using Entry = Drawer;
  explicit WeightedWithReplacement(const Rows<Index>& rows) : rows_(rows) {}

  [[gnu::always_inline]] void prefetch(std::int64_t, std::int64_t start, std::int64_t degree,
                                       std::int64_t k, VertexDraws draws) const {
    const Drawer drawer(rows_, start, degree);
    for (std::int64_t j = 0; j < k; ++j) drawer.prefetch_place(drawer.place(draws[j]));
  }

  [[gnu::always_inline]] void prefetch_chosen(std::int64_t start, std::int64_t degree,
                                              std::int64_t k, const std::int64_t* offsets) const {
    const Drawer drawer(rows_, start, degree);
    for (std::int64_t j = 0; j < k; ++j) {
      drawer.prefetch_entry(static_cast<std::uint32_t>(offsets[j]));
    }
  }

  static constexpr std::int64_t kMoreRoom = 0;
  Arrivals operator()(std::int64_t, std::int64_t start, std::int64_t degree, std::int64_t k,
                      VertexDraws draws, std::int64_t* offsets) const {
    const Drawer drawer(rows_, start, degree);
    for (std::int64_t j = 0; j < k; ++j) offsets[j] = drawer.at(drawer.place(draws[j]));
    return {k, 0};
  }

  static void weigh(const Arrivals& arrivals, std::int64_t k, const float* shares, float* factors) {
    const auto drawn = static_cast<float>(arrivals.count);
    for (std::int64_t j = 0; j < k; ++j) factors[j] = 1 / (drawn * shares[j]);
  }

 private:
  const Rows<Index>& rows_;
};

}  // namespace spgnn
