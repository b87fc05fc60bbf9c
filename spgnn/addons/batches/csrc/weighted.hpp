// Weighted draws, and factors that make sums over them unbiased, from shares of a row's weights.
//
// If entries arrive as a Poisson process of rate 1, entry i arrives first after an exponential time
// of rate share(i). With t the arrival of the first entry *not* taken, an entry was taken with
// probability 1 − exp(−share·t), and one over that makes sums unbiased (bottom-k sketches: Cohen &
// Kaplan, PODC 2007). Where only the number of arrivals is known, its mean over t does as well.
#pragma once

#include "choose.hpp"
#include "drawers.hpp"
#include "lanes.hpp"
#include "rows.hpp"

namespace spgnn {

// An exponential number from 64 random bits.
inline double exponential(u64 random) { return -std::log(unit(random)); }

// The same to seven digits, without a branch: log x = n·log 2 + 2·artanh((m − 1) / (m + 1)).
inline float quick_exponential(u64 random) {
  const auto bits = static_cast<i32>(random >> 33) | 1;
  const auto x = std::bit_cast<i32>(static_cast<float>(bits));
  const i32 shifted = x - 0x3F3504F3;  // so that m is in [√½, √2)
  const float m = std::bit_cast<float>((shifted & 0x007FFFFF) + 0x3F3504F3);
  const auto n = static_cast<float>((shifted >> 23) - 31);
  const float s = (m - 1) / (m + 1), t = s * s;
  return -(n * 0.693147181F +
           2 * s * (1 + t * (1.0F / 3 + t * (1.0F / 5 + t * (1.0F / 7 + t / 9)))));
}

using FourLanes = Vectors<16>::Floats;

// The mean of 1 / (1 − exp(−share·t)) where t is the sum of n ≥ 2 exponential numbers: it is
// Σ_j (1 + j·share)^−n, for a light share by Euler and Maclaurin, to five digits.
class MeanFactor {
 public:
  constexpr explicit MeanFactor(i64 arrivals) : terms_() {
    terms_.arrivals = arrivals;
    const auto n = static_cast<float>(arrivals);
    terms_.most = 3.1F / (n + 6);
    // Terms are written in x = n·share, which keeps their coefficients small.
    const float step = 1 / n;
    float c = 1.0F / 12;
    spread(terms_.times, n);
    spread(terms_.integral, n / (n - 1));
    spread(terms_.coefficients[0], c);
    for (int i = 1; i < FactorTerms::kTerms; ++i) {
      const auto odd = static_cast<float>(2 * i - 1);
      c *= (1 + odd * step) * (1 + (odd + 1) * step) * kRatios[i - 1];
      spread(terms_.coefficients[i], c);
    }
  }

  // Of some shares; whole vectors are read and written.
  void of(i64 count, const float* shares, float* factors) const {
    each_lanes<FourLanes>(count, shares, factors,
                          [&](FourLanes four) { return mean_factors(terms_, four); });
  }
  const FactorTerms& terms() const { return terms_; }

 private:
  static constexpr void spread(float* lanes, float value) {
    for (int lane = 0; lane < FactorTerms::kWidest; ++lane) lanes[lane] = value;
  }

  // B_2p / (2p)! over the one before.
  static constexpr float kRatios[FactorTerms::kTerms - 1] = {-12.0F / 720,
                                                             -720.0F / 30240,
                                                             -30240.0F / 1209600,
                                                             -1209600.0F / 47900160,
                                                             -5.28419014e-10F * 47900160,
                                                             1.33825365e-11F / -5.28419014e-10F};

  FactorTerms terms_;
};

// Of usual numbers of arrivals, made once; by number.
inline constexpr auto kMeanFactors = []<std::size_t... kNumbers>(std::index_sequence<kNumbers...>) {
  return std::array{MeanFactor(std::max<i64>(kNumbers, 2))...};
}(std::make_index_sequence<129>());

// Streams of hashes of one vertex, which must not overlap.
inline constexpr u64 kWaits = u64{1} << 40;
inline constexpr u64 kKeys = u64{2} << 40;

// Drawn one by one, by weight among those that are left: what was drawn before is passed over.
template <class Index, class Drawer> class WeightedWithoutReplacement {
 public:
  static constexpr bool kWeighs = true;
  static constexpr i64 kFar = ComingRows<Index, Drawer>::kFar;
  static constexpr i64 kNear = ComingRows<Index, Drawer>::kNear;
  explicit WeightedWithoutReplacement(const Rows<Index>& rows) : coming_(rows) {}

  // The i-th target's row is drawn from soon.
  [[gnu::always_inline]] void fetch(i64 i, const DrawnRow& row, i64 k, VertexDraws draws) {
    coming_.fetch(i, row, k + 1, draws);
  }
  [[gnu::always_inline]] void settle(i64 i, i64 k) { coming_.settle(i, k + 1); }

  // k of the row's entries; what they stand for is for `weigh` to find.
  Arrivals operator()(i64 i, i64 degree, i64 k, const Picks<Index>& picks) {
    const Coming& coming = coming_[i];
    if (wants_most(degree, k)) return {0, draw_all(coming, degree, k, picks)};
    return sets_.with_set(
        degree, k + 1, [&](auto&& chosen) { return draw_some(chosen, coming, degree, k, picks); });
  }

  // The rest of k of a row's entries, after so many draws.
  Arrivals go_on(const Drawer& drawer, VertexDraws draws, i64 degree, i64 k, i64 taken, i64 drawn,
                 const Picks<Index>& picks) {
    return sets_.with_set(degree, k + 1, [&](auto&& chosen) {
      for (i64 j = 0; j < taken; ++j) chosen.insert(picks.offsets[j], picks.offsets, j);
      return draw_rest(chosen, drawer, draws, degree, k, taken, drawn, picks);
    });
  }

  // Factors of k entries; whole vectors are written.
  static void weigh(const Arrivals& arrivals, i64 k, const float* shares, float* factors) {
    if (arrivals.count == 0) {
      each_lanes<FourLanes>(k, shares, factors,
                            [&](FourLanes four) { return arrived_factors(arrivals.time, four); });
    } else if (arrivals.count < std::ssize(kMeanFactors)) {
      kMeanFactors[arrivals.count].of(k, shares, factors);
    } else {
      MeanFactor(arrivals.count).of(k, shares, factors);
    }
  }

  // Whether times of arrival of all entries are fewer numbers than draws would be.
  static bool wants_most(i64 degree, i64 k) {
    return degree <= kShort && 4 * degree <= 5 * (k + 1);
  }

 private:
  using Coming = ComingRow<Drawer>;
  // Rows of at most so many entries may all be looked at.
  static constexpr i64 kShort = 64;

  static i64 patience(i64 k) { return 8 * k + 32; }

  // Most of the row is wanted: by times of arrival. Returns until when they arrived.
  static float draw_all(const Coming& coming, i64 degree, i64 k, const Picks<Index>& picks) {
    float arrivals[kShort];
    for (i64 j = 0; j < degree; ++j) { arrivals[j] = quick_exponential(coming.draws[kKeys + j]); }
    const auto entry = [&](i64 j) { return coming.drawer.entry(static_cast<u32>(j)); };
    for (i64 j = 0; j < degree; ++j) arrivals[j] /= std::max(entry(j).share, kLeastShare);
    // The last ones are left out, the latest first.
    float time = 0;
    for (i64 left = degree; left > k; --left) {
      i64 latest = 0;
      for (i64 j = 1; j < degree; ++j) latest = arrivals[j] > arrivals[latest] ? j : latest;
      time = std::exchange(arrivals[latest], -1.0F);
    }
    i64 taken = 0;
    for (i64 j = 0; j < degree; ++j) {
      set_pick(picks, taken, entry(j));
      taken += arrivals[j] >= 0;
    }
    return time;
  }

  // Entry by entry, until the one after the last; without a branch on what was met before.
  template <class Set>
  [[gnu::always_inline]] Arrivals draw_some(Set& chosen, const Coming& coming, i64 degree, i64 k,
                                            const Picks<Index>& picks) {
    const Drawer drawer = coming.drawer;
    const VertexDraws draws = coming.draws;
    i64 taken = 0;
    const auto take = [&](const Entry<Index>& entry) {
      set_pick(picks, taken, entry);
      taken += chosen.insert(entry.offset, picks.offsets, taken);
    };
    if (coming.placed) {
      for (i64 j = 0; j <= k; ++j) take(drawer.at(coming.places[j]));
    } else {
      for (i64 j = 0; j <= k; ++j) take(drawer.draw(draws[j]));
    }
    return draw_rest(chosen, drawer, draws, degree, k, taken, k + 1, picks);
  }

  // After so many draws: more, until there are k + 1 entries.
  template <class Set>
  [[gnu::always_inline]] Arrivals draw_rest(Set& chosen, const Drawer& drawer, VertexDraws draws,
                                            i64 degree, i64 k, i64 taken, i64 drawn,
                                            const Picks<Index>& picks) {
    for (; taken <= k; ++drawn) {
      if (drawn == patience(k)) {
        return {0, arrive(chosen, drawer, draws, degree, k, taken, picks)};
      }
      const Entry<Index> entry = drawer.draw(draws[drawn]);
      set_pick(picks, taken, entry);
      taken += chosen.insert(entry.offset, picks.offsets, taken);
    }
    return {drawn, 0};
  }

  // Few heavy entries came again and again: the rest by times of arrival. Until when they arrived.
  template <class Set>
  float arrive(const Set& chosen, const Drawer& drawer, VertexDraws draws, i64 degree, i64 k,
               i64 taken, const Picks<Index>& picks) {
    const i64 drawn = taken;
    double time = 0;
    for (i64 j = 0; j < patience(k); ++j) time += exponential(draws[kWaits + j]);
    arrivals_.clear();
    for (u32 offset = 0; offset < degree; ++offset) {
      if (chosen.has(offset, picks.offsets, drawn)) continue;
      const double wait = exponential(draws[kKeys + offset]);
      const float share = std::max(drawer.entry(offset).share, kLeastShare);
      arrivals_.emplace_back(wait / share, offset);
    }
    const auto last = arrivals_.begin() + (k - taken);
    std::nth_element(arrivals_.begin(), last, arrivals_.end());
    std::sort(arrivals_.begin(), last);
    for (auto arrival = arrivals_.begin(); arrival != last; ++arrival) {
      set_pick(picks, taken++, drawer.entry(arrival->second));
    }
    return static_cast<float>(time + last->first);
  }

  ComingRows<Index, Drawer> coming_;
  OffsetSets sets_;
  std::vector<std::pair<double, u32>> arrivals_;
};

// Drawn one by one, each in proportion to its weight; one over the expected number of times makes
// sums unbiased (Hansen & Hurwitz, Annals of Mathematical Statistics, 1943).
template <class Index, class Drawer> class WeightedWithReplacement {
 public:
  static constexpr bool kWeighs = true;
  static constexpr i64 kFar = ComingRows<Index, Drawer>::kFar;
  static constexpr i64 kNear = ComingRows<Index, Drawer>::kNear;
  explicit WeightedWithReplacement(const Rows<Index>& rows) : coming_(rows) {}

  [[gnu::always_inline]] void fetch(i64 i, const DrawnRow& row, i64 k, VertexDraws draws) {
    coming_.fetch(i, row, k, draws);
  }
  [[gnu::always_inline]] void settle(i64 i, i64 k) { coming_.settle(i, k); }

  Arrivals operator()(i64 i, i64, i64 k, const Picks<Index>& picks) const {
    const auto& coming = coming_[i];
    for (i64 j = 0; j < k; ++j) {
      set_pick(
          picks, j,
          coming.placed ? coming.drawer.at(coming.places[j]) : coming.drawer.draw(coming.draws[j]));
    }
    return {k, 0};
  }
  static void weigh(const Arrivals&, i64 k, const float* shares, float* factors) {
    const auto drawn = static_cast<float>(k);
    for (i64 j = 0; j < k; ++j) factors[j] = 1 / (drawn * shares[j]);
  }

 private:
  ComingRows<Index, Drawer> coming_;
};

// Weighted draws of a row, several at once where they can be; the same ones.

class LanesWithoutReplacement {
  using Index = i32;
  using Drawer = AliasDrawer<Index>;
  using OneByOne = WeightedWithoutReplacement<Index, Drawer>;

 public:
  static constexpr bool kWeighs = true;
  static constexpr i64 kFar = OneByOne::kFar, kNear = OneByOne::kNear;
  static bool can(i64 k) { return current_lanes() && k > 0 && k <= LaneKernels::kMostPicks; }

  explicit LanesWithoutReplacement(const Rows<Index>& rows)
      : rows_(rows), kernels_(*current_lanes()), one_by_one_(rows) {}

  // The i-th target's row is drawn from soon.
  [[gnu::always_inline]] void fetch(i64 i, const DrawnRow& row, i64 k, VertexDraws draws) {
    Coming& coming = coming_[i % kKept];
    Drawer& drawer = coming.drawer;
    drawer = Drawer(rows_, row.number, row.start, row.degree);
    coming.several =
        drawer.count() <= LaneRow::kMostBuckets && !OneByOne::wants_most(row.degree, k);
    if (!coming.several) {
      one_by_one_.fetch(i, row, k, draws);
      return;
    }
    coming.row = {drawer.row(), draws.state(), static_cast<u32>(drawer.count()), drawer.empty(),
                  drawer.lines() <= k + 1};
    const auto pairs = static_cast<float>((k + 1) * k);
    const float repeated = kRepeated * pairs / static_cast<float>(row.degree - k) + kMargin;
    coming.likely =
        std::min(static_cast<int>(static_cast<float>(k + 1) + repeated), LaneKernels::kMostDraws);
    if (coming.row.whole) {
      drawer.prefetch_row();
      coming.placed =
          std::min((coming.likely + kDrawLanes - 1) / kDrawLanes * kDrawLanes, LanePlaces::kMost);
    } else {
      coming.placed = coming.likely = std::min(coming.likely, LanePlaces::kMost);
    }
    kernels_.place(coming.row, coming.placed, coming.places);
  }
  [[gnu::always_inline]] void settle(i64 i, i64 k) {
    Coming& coming = coming_[i % kKept];
    if (!coming.several) {
      one_by_one_.settle(i, k);
    } else {
      kernels_.settle(coming.row, coming.placed, coming.places);
    }
  }

  // k of the row's entries.
  Arrivals operator()(i64 i, i64 degree, i64 k, const Picks<Index>& picks) {
    const Coming& coming = coming_[i % kKept];
    if (!coming.several) return one_by_one_(i, degree, k, picks);
    const auto [taken, drawn] = kernels_.draw(coming.row, static_cast<int>(k), coming.places,
                                              coming.placed, coming.likely, picks);
    if (taken > k) return {drawn, 0};
    const VertexDraws draws(coming.row.state);
    return one_by_one_.go_on(coming.drawer, draws, degree, k, taken, drawn, picks);
  }

  void weigh(const Arrivals& arrivals, i64 k, const float* shares, float* factors) const {
    const int count = static_cast<int>(k);
    if (arrivals.count == 0) {
      kernels_.weigh_until(arrivals.time, count, shares, factors);
    } else if (arrivals.count < std::ssize(kMeanFactors)) {
      kernels_.weigh(kMeanFactors[arrivals.count].terms(), count, shares, factors);
    } else {
      OneByOne::weigh(arrivals, k, shares, factors);
    }
  }

 private:
  static constexpr i64 kKept = 2 * kFar;
  // Of k (k + 1) / 2 pairs of draws so many are equal, if weights are as unequal as random ones.
  static constexpr float kRepeated = 0.7F, kMargin = 0.75F;
  static_assert(LaneKernels::kMostPicks + 1 <= LanePlaces::kMost);

  // A row that is drawn from soon.
  struct Coming {
    LaneRow row;
    Drawer drawer;
    bool several;
    int placed;  // so many places are known
    int likely;  // so many draws
    LanePlaces places;
  };

  const Rows<Index>& rows_;
  const LaneKernels& kernels_;
  OneByOne one_by_one_;
  Coming coming_[kKept];
};

}  // namespace spgnn
