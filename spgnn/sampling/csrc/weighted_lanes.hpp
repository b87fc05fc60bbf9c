// Weighted draws of a row, several at once where they can be; the same ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.hpp"
#include "weighted.hpp"

namespace spgnn {

class LanesWithoutReplacement {
  using Index = std::int32_t;
  using Drawer = AliasDrawer<Index>;
  using OneByOne = WeightedWithoutReplacement<Index, Drawer>;

 public:
  static constexpr bool kWeighs = true;
  static constexpr std::int64_t kFar = OneByOne::kFar, kNear = OneByOne::kNear;
  static bool can(std::int64_t k) {
    return current_lanes() && k > 0 && k <= LaneKernels::kMostPicks;
  }

  explicit LanesWithoutReplacement(const Rows<Index>& rows)
      : rows_(rows), kernels_(*current_lanes()), one_by_one_(rows) {}

  // The i-th target's row is drawn from soon.
  [[gnu::always_inline]] void fetch(std::int64_t i, const DrawnRow& row, std::int64_t k,
                                    VertexDraws draws) {
    Coming& coming = coming_[i % kKept];
    Drawer& drawer = coming.drawer;
    drawer = Drawer(rows_, row.number, row.start, row.degree);
    coming.several =
        drawer.count() <= LaneRow::kMostBuckets && !OneByOne::wants_most(row.degree, k);
    if (!coming.several) {
      one_by_one_.fetch(i, row, k, draws);
      return;
    }
    coming.row = {drawer.row(), draws.state(), static_cast<std::uint32_t>(drawer.count()),
                  drawer.empty(), drawer.lines() <= k + 1};
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
  [[gnu::always_inline]] void settle(std::int64_t i, std::int64_t k) {
    Coming& coming = coming_[i % kKept];
    if (!coming.several) {
      one_by_one_.settle(i, k);
    } else {
      kernels_.settle(coming.row, coming.placed, coming.places);
    }
  }

  // k of the row's entries.
  Arrivals operator()(std::int64_t i, std::int64_t degree, std::int64_t k,
                      const Picks<Index>& picks) {
    const Coming& coming = coming_[i % kKept];
    if (!coming.several) return one_by_one_(i, degree, k, picks);
    const auto [taken, drawn] = kernels_.draw(coming.row, static_cast<int>(k), coming.places,
                                              coming.placed, coming.likely, picks);
    if (taken > k) return {drawn, 0};
    const VertexDraws draws(coming.row.state);
    return one_by_one_.go_on(coming.drawer, draws, degree, k, taken, drawn, picks);
  }

  void weigh(const Arrivals& arrivals, std::int64_t k, const float* shares, float* factors) const {
    const int count = static_cast<int>(k);
    if (arrivals.count == 0) {
      kernels_.weigh_until(arrivals.time, count, shares, factors);
    } else if (arrivals.count < static_cast<std::int64_t>(kMeanFactors.size())) {
      kernels_.weigh(kMeanFactors[arrivals.count].terms(), count, shares, factors);
    } else {
      OneByOne::weigh(arrivals, k, shares, factors);
    }
  }

 private:
  static constexpr std::int64_t kKept = 2 * kFar;
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
