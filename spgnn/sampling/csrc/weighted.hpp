// Which of a row's entries are sampled, in proportion to weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "alias.hpp"
#include "buffer.hpp"
#include "choose.hpp"
#include "factors.hpp"
#include "hash.hpp"
#include "rows.hpp"

namespace spgnn {

// Streams of hashes of one vertex, which must not overlap.
inline constexpr std::uint64_t kWaits = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kKeys = std::uint64_t{2} << 40;

inline constexpr float kLeastShare = std::numeric_limits<float>::min();

// A row that entries are drawn from.
struct DrawnRow {
  std::int64_t number, start, degree;
};

// Where what is drawn of a row is written; all have room for kMoreRoom more.
inline constexpr std::int64_t kMoreRoom = MeanFactor::kLanes;
template <class Index>
struct Picks {
  Index* columns;
  std::uint32_t* offsets;  // in the row
  float* factors;
  float* shares;

  [[gnu::always_inline]] void set(std::int64_t j, const Entry<Index>& entry) const {
    columns[j] = entry.column;
    offsets[j] = entry.offset;
    shares[j] = entry.share;
  }
};

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
  static constexpr std::int64_t kFar = ComingRows<Index, Drawer>::kFar;
  static constexpr std::int64_t kNear = ComingRows<Index, Drawer>::kNear;
  explicit WeightedWithoutReplacement(const Rows<Index>& rows) : coming_(rows) {}

  // The i-th target's row is drawn from soon.
  [[gnu::always_inline]] void fetch(std::int64_t i, const DrawnRow& row, std::int64_t k,
                                    VertexDraws draws) {
    coming_.fetch(i, row, k + 1, draws);
  }
  [[gnu::always_inline]] void settle(std::int64_t i, std::int64_t k) { coming_.settle(i, k + 1); }

  // k of the row's entries.
  void operator()(std::int64_t i, std::int64_t degree, std::int64_t k, const Picks<Index>& picks) {
    const Coming& coming = coming_[i];
    if (wants_most(degree, k)) {
      const float time = draw_all(coming, degree, k, picks);
      weigh(time, k, picks);
    } else if (k > FilteredSet::kMost) {
      draw_some(HashedSet(memory_, k + 1), coming, degree, k, picks);
    } else if (degree <= Marks::kCount) {
      draw_some(MarkedSet(marks_), coming, degree, k, picks);
    } else {
      draw_some(FilteredSet(marks_), coming, degree, k, picks);
    }
  }

 private:
  using Coming = ComingRow<Drawer>;
  // Rows of at most so many entries may all be looked at.
  static constexpr std::int64_t kShort = 64;

  static bool wants_most(std::int64_t degree, std::int64_t k) {
    return degree <= kShort && 4 * degree <= 5 * (k + 1);
  }
  static std::int64_t patience(std::int64_t k) { return 8 * k + 32; }

  // Factors, where entries arrived until some time.
  static void weigh(float time, std::int64_t k, const Picks<Index>& picks) {
    for (std::int64_t j = 0; j < k; ++j) {
      picks.factors[j] = 1 / one_minus_exp(std::max(picks.shares[j], kLeastShare) * time);
    }
  }
  // And where so many did.
  static void weigh_counted(std::int64_t drawn, std::int64_t k, const Picks<Index>& picks) {
    if (drawn < static_cast<std::int64_t>(kMeanFactors.size())) {
      kMeanFactors[drawn].of(k, picks.shares, picks.factors);
    } else {
      MeanFactor(drawn).of(k, picks.shares, picks.factors);
    }
  }

  // Most of the row is wanted: drawing one by one would mostly meet what was drawn before. When
  // does each entry arrive? Until when they did.
  static float draw_all(const Coming& coming, std::int64_t degree, std::int64_t k,
                        const Picks<Index>& picks) {
    float arrivals[kShort];
    for (std::int64_t j = 0; j < degree; ++j) {
      arrivals[j] = quick_exponential(coming.draws[kKeys + j]);
    }
    const auto entry = [&](std::int64_t j) {
      return coming.drawer.entry(static_cast<std::uint32_t>(j));
    };
    for (std::int64_t j = 0; j < degree; ++j) arrivals[j] /= std::max(entry(j).share, kLeastShare);
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
      picks.set(taken, entry(j));
      taken += arrivals[j] >= 0;
    }
    return time;
  }

  // Entry by entry, until the one after the last; without a branch on what was met before.
  template <class Set>
  [[gnu::always_inline]] void draw_some(Set&& chosen, const Coming& coming, std::int64_t degree,
                                        std::int64_t k, const Picks<Index>& picks) {
    const Drawer drawer = coming.drawer;
    const VertexDraws draws = coming.draws;
    std::int64_t taken = 0, drawn = 0;
    const auto take = [&](const Entry<Index>& entry) {
      picks.set(taken, entry);
      taken += chosen.insert(entry.offset, picks.offsets, taken);
    };
    if (coming.placed) {
      for (; drawn <= k; ++drawn) take(drawer.at(coming.places[drawn]));
    } else {
      for (; drawn <= k; ++drawn) take(drawer.draw(draws[drawn]));
    }
    for (; taken <= k; ++drawn) {
      if (drawn == patience(k)) {
        weigh(draw_rest(chosen, coming, degree, k, taken, picks), k, picks);
        return;
      }
      take(drawer.draw(draws[drawn]));
    }
    weigh_counted(drawn, k, picks);
  }

  // Few heavy entries were drawn again and again: the rest by their times of arrival, which are
  // exponential from any moment on. Until when they arrived.
  template <class Set>
  float draw_rest(const Set& chosen, const Coming& coming, std::int64_t degree, std::int64_t k,
                  std::int64_t taken, const Picks<Index>& picks) {
    const std::int64_t drawn = taken;
    double time = 0;
    for (std::int64_t j = 0; j < patience(k); ++j) time += exponential(coming.draws[kWaits + j]);
    arrivals_.clear();
    for (std::uint32_t offset = 0; offset < degree; ++offset) {
      if (chosen.has(offset, picks.offsets, drawn)) continue;
      const double wait = exponential(coming.draws[kKeys + offset]);
      const float share = std::max(coming.drawer.entry(offset).share, kLeastShare);
      arrivals_.emplace_back(wait / share, offset);
    }
    const auto last = arrivals_.begin() + (k - taken);
    std::nth_element(arrivals_.begin(), last, arrivals_.end());
    std::sort(arrivals_.begin(), last);
    for (auto arrival = arrivals_.begin(); arrival != last; ++arrival) {
      picks.set(taken++, coming.drawer.entry(arrival->second));
    }
    return static_cast<float>(time + last->first);
  }

  ComingRows<Index, Drawer> coming_;
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
  static constexpr std::int64_t kFar = ComingRows<Index, Drawer>::kFar;
  static constexpr std::int64_t kNear = ComingRows<Index, Drawer>::kNear;
  explicit WeightedWithReplacement(const Rows<Index>& rows) : coming_(rows) {}

  [[gnu::always_inline]] void fetch(std::int64_t i, const DrawnRow& row, std::int64_t k,
                                    VertexDraws draws) {
    coming_.fetch(i, row, k, draws);
  }
  [[gnu::always_inline]] void settle(std::int64_t i, std::int64_t k) { coming_.settle(i, k); }

  void operator()(std::int64_t i, std::int64_t, std::int64_t k, const Picks<Index>& picks) const {
    const auto& coming = coming_[i];
    const auto drawn = static_cast<float>(k);
    for (std::int64_t j = 0; j < k; ++j) {
      picks.set(j, coming.placed ? coming.drawer.at(coming.places[j])
                                 : coming.drawer.draw(coming.draws[j]));
      picks.factors[j] = 1 / (drawn * picks.shares[j]);
    }
  }

 private:
  ComingRows<Index, Drawer> coming_;
};

}  // namespace spgnn
