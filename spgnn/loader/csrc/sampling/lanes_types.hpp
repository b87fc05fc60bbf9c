// Weighted draws of one row, several at once: what every instruction set provides.
//
// Draws are integers, and floating-point operations come in the same order, so samples are those of
// AliasDrawer to the last bit.
#pragma once

#include <cstdint>

#include "factor_terms.hpp"
#include "picks.hpp"
#include "rows.hpp"

namespace spgnn {

inline constexpr int kDrawLanes = 8;

// A row that is drawn from by its alias table.
struct LaneRow {
  // Of more buckets, one random number does not say enough (AliasDrawer::place).
  static constexpr std::int64_t kMostBuckets = 4096;

  const Bucket<std::int32_t>* buckets;
  std::uint64_t state;  // of its vertex's draws
  std::uint32_t count;  // of buckets
  std::uint32_t empty;  // places at the beginning
  bool whole;           // whether all of its buckets are asked for
};

// Where the first draws of a row point.
struct LanePlaces {
  static constexpr int kMost = 32;

  alignas(32) std::uint32_t bytes[kMost];  // of the bucket, from the row's first
  alignas(32) std::uint32_t fractions[kMost];
  alignas(32) float within[kMost];
};

// So many entries after so many draws.
struct LaneDraws {
  int taken, drawn;
};

struct LaneKernels {
  // As many may be wanted. Draws end here before their number makes WeightedWithoutReplacement
  // lose its patience, whatever k is.
  static constexpr int kMostPicks = 24, kMostDraws = 40;

  // The first `count` places of a row; then the buckets that these lead to. Of a row that is not
  // whole these are asked for.
  void (*place)(const LaneRow& row, int count, LanePlaces& places);
  void (*settle)(const LaneRow& row, int count, LanePlaces& places);
  // k + 1 entries, each once, in the order drawn, or fewer where that takes too many draws; but for
  // their factors. So many places are known, and so many draws are likely to be needed.
  LaneDraws (*draw)(const LaneRow& row, int k, const LanePlaces& places, int placed, int likely,
                    const Picks<std::int32_t>& picks);
  // Factors of k shares: mean ones, or those of a time of arrival.
  void (*weigh)(const FactorTerms& terms, int k, const float* shares, float* factors);
  void (*weigh_until)(float time, int k, const float* shares, float* factors);
};

namespace avx2 {
extern const LaneKernels lane_kernels;
}
namespace avx512 {
extern const LaneKernels lane_kernels;
}

}  // namespace spgnn
