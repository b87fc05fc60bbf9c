// Weighted draws of one row, several at once, and factors of several shares: what instruction sets
// provide. Operations come in one order, so samples are those of AliasDrawer to the last bit.
#pragma once

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "inlined.hpp"
#include "instruction_sets.hpp"

namespace spgnn {

// Random numbers that are functions of what they are for: names mixed by SplitMix64's finaliser,
// draws of a name by wyrand (Wang Yi, wyhash, 2019).

// What every draw of a sample is a hash of, beside hop, vertex and column.
struct Draw {
  u64 seed, epoch, batch;
};

// The draws of one vertex: column 0, 1, ….
class VertexDraws {
 public:
  static constexpr u64 kStep = 0xA0761D6478BD642FULL, kMask = 0xE7037ED1A0B428DBULL;

  VertexDraws() = default;
  explicit VertexDraws(u64 state) : state_(state) {}
  u64 operator[](u64 column) const {
    const u64 x = state_ + column * kStep;
    const auto product = static_cast<unsigned __int128>(x) * (x ^ kMask);
    return static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
  }
  u64 state() const { return state_; }

 private:
  u64 state_ = 0;
};

// The draws of one hop of one batch.
class HopDraws {
 public:
  HopDraws(const Draw& draw, u64 hop)
      : state_(mixed(mixed(mixed(mixed(draw.seed) ^ draw.epoch) ^ draw.batch) ^ hop)) {}
  VertexDraws of(u64 id) const { return VertexDraws(mixed(state_ ^ id)); }
  // The draws of a vertex in one of many trees.
  VertexDraws of(u64 id, u64 root) const {
    return VertexDraws(mixed(mixed(state_ ^ id) ^ mixed(root)));
  }

 private:
  u64 state_;
};

// A number in [0, limit) from 64 random bits.
inline u64 below(u64 random, u64 limit) {
  return static_cast<u64>((static_cast<unsigned __int128>(random) * limit) >> 64);
}

// A number in (0, 1) from 64 random bits.
inline double unit(u64 random) { return (static_cast<double>(random >> 11) + 0.5) * 0x1p-53; }

// Into the second level of the cache: only some ten lines can be on their way to the first.
[[gnu::always_inline]] inline void prefetch_soon(const void* line) {
  __builtin_prefetch(line, 0, 2);
}

// Three entries of a row in an alias table (Walker, 1977): the bucket stands for itself with a
// chance of keep / 2^32, else for bucket `other`. Columns and shares come along, so that mostly one
// line of the cache says everything. A row's first bucket has the empty places; row i's begins at
// (indptr[i] + 2 i) / 3.
template <class Index> struct alignas(sizeof(Index) == 4 ? 32 : 16) Bucket {
  static constexpr i64 kPlaces = 3;

  u32 keep, other;
  Index columns[kPlaces];
  float shares[kPlaces];

  static constexpr i64 of(i64 entries) { return (entries + kPlaces - 1) / kPlaces; }
  static constexpr i64 begin(i64 row, i64 start) { return (start + (kPlaces - 1) * row) / kPlaces; }
};

// What is written behind them until the next row is: all have room for so many more.
inline constexpr i64 kMoreRoom = 40;
template <class Index> struct Picks {
  Index* columns;
  u32* offsets;  // in the row
  float* shares;
};

// How it was drawn: so many arrived, or (0) until some time.
struct Arrivals {
  i64 count;
  float time;
};

// The terms of MeanFactor. Numbers are kept once for each lane of the widest vector.
struct FactorTerms {
  static constexpr int kWidest = 8, kTerms = 7;

  i64 arrivals;
  float most;  // shares above are heavy
  alignas(32) float times[kWidest], integral[kWidest], coefficients[kTerms][kWidest];
};

// Vectors of so many bytes.
template <std::size_t kBytes> struct Vectors;
template <> struct Vectors<16> {
  using Floats [[gnu::vector_size(16)]] = float;
  using Numbers [[gnu::vector_size(16)]] = i32;
  using Halves [[gnu::vector_size(16)]] = i64;
};
template <> struct Vectors<32> {
  using Floats [[gnu::vector_size(32)]] = float;
  using Numbers [[gnu::vector_size(32)]] = i32;
  using Halves [[gnu::vector_size(32)]] = i64;
};

template <class Lanes> [[gnu::always_inline]] inline Lanes lanes_at(const float* values) {
  Lanes lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

// Whole vectors of `count` numbers are read and written.
template <class Lanes, class Of>
[[gnu::always_inline]] inline void each_lanes(i64 count, const float* from, float* to,
                                              const Of& of) {
  constexpr i64 kLanes = sizeof(Lanes) / sizeof(float);
  for (i64 j = 0; j < count; j += kLanes) {
    const Lanes found = of(lanes_at<Lanes>(from + j));
    std::memcpy(to + j, &found, sizeof(found));
  }
}

// Whether any lane of a comparison holds.
template <class Mask> [[gnu::always_inline]] inline bool any_lane(Mask mask) {
  const auto halves = reinterpret_cast<typename Vectors<sizeof(Mask)>::Halves>(mask);
  i64 any = 0;
  for (std::size_t i = 0; i < sizeof(Mask) / sizeof(any); ++i) any |= halves[i];
  return any != 0;
}

// 1 − exp(−x) for x ≥ 0, to seven digits, without a branch; of a number or of lanes.
template <class Floats> [[gnu::always_inline]] inline Floats one_minus_exp(Floats x) {
  const Floats y = x < 80.0F ? x : Floats{} + 80.0F;
  const Floats small = y * (1 - y * 0.5F * (1 - y * (1.0F / 3) * (1 - y * 0.25F * (1 - y * 0.2F))));
  // exp(−y) = 2^−(n + f): a polynomial for the fraction, the exponent's bits for the rest.
  const Floats halvings = y * 1.44269504F;
  Floats whole, scale;
  if constexpr (std::is_same_v<Floats, float>) {
    const auto n = static_cast<i32>(halvings);
    whole = static_cast<float>(n);
    scale = std::bit_cast<float>((127 - n) << 23);
  } else {
    const auto n = __builtin_convertvector(halvings, typename Vectors<sizeof(Floats)>::Numbers);
    whole = __builtin_convertvector(n, Floats);
    scale = reinterpret_cast<Floats>((127 - n) << 23);
  }
  const Floats f = (halvings - whole) * 0.693147181F;
  const Floats by7 = 1 - f * (1.0F / 7), by6 = 1 - f * (1.0F / 6) * by7, by5 = 1 - f * 0.2F * by6;
  const Floats by3 = 1 - f * (1.0F / 3) * (1 - f * 0.25F * by5);
  const Floats large = 1 - (1 - f * (1 - f * 0.5F * by3)) * scale;
  return y < 0.25F ? small : large;
}

inline constexpr float kLeastShare = std::numeric_limits<float>::min();

// The factors of shares if the first entry that is not taken arrives at a time.
template <class Lanes>
[[gnu::always_inline]] inline Lanes arrived_factors(float time, Lanes share) {
  const Lanes at_least = share > kLeastShare ? share : Lanes{} + kLeastShare;
  return 1 / one_minus_exp(at_least * time);
}

// The mean factors of light shares, without a branch.
template <class Lanes>
[[gnu::always_inline]] inline Lanes light_factors(const FactorTerms& terms, Lanes share) {
  const Lanes x = lanes_at<Lanes>(terms.times) * share, y = x * x, y2 = y * y;
  const Lanes c0 = lanes_at<Lanes>(terms.coefficients[0]);
  const Lanes c1 = lanes_at<Lanes>(terms.coefficients[1]);
  const Lanes c2 = lanes_at<Lanes>(terms.coefficients[2]);
  const Lanes c3 = lanes_at<Lanes>(terms.coefficients[3]);
  const Lanes c4 = lanes_at<Lanes>(terms.coefficients[4]);
  const Lanes c5 = lanes_at<Lanes>(terms.coefficients[5]);
  const Lanes c6 = lanes_at<Lanes>(terms.coefficients[6]);
  // In pairs, which do not wait for each other.
  const Lanes sum = c0 + y * c1 + y2 * (c2 + y * c3 + y2 * (c4 + y * c5 + y2 * c6));
  return lanes_at<Lanes>(terms.integral) / x + 0.5F + x * sum;
}

// The mean factors of any shares.
template <class Lanes>
[[gnu::always_inline]] inline Lanes mean_factors(const FactorTerms& terms, Lanes share) {
  constexpr float kNothing = 1e-7F;
  if (!any_lane(share > terms.most)) return light_factors(terms, share);
  // Of heavy ones the first terms apart, until the rest is that of a light share.
  Lanes sum{}, term = sum + 1;
  while (true) {
    const auto goes_on = (share > terms.most) & (term > kNothing);
    if (!any_lane(goes_on)) break;
    const Lanes base = 1 / (1 + share);
    Lanes next = term;
    Lanes square = base;
    for (i64 n = terms.arrivals; n > 0; n >>= 1) {
      if (n & 1) next *= square;
      square *= square;
    }
    sum = goes_on ? sum + term : sum;
    term = goes_on ? next : term;
    share = goes_on ? share * base : share;
  }
  return term > kNothing ? sum + term * light_factors(terms, share) : sum;
}

inline constexpr int kDrawLanes = 8;

// A row that is drawn from by its alias table.
struct LaneRow {
  // Of more buckets, one random number does not say enough (AliasDrawer::place).
  static constexpr i64 kMostBuckets = 4096;

  const Bucket<i32>* buckets;
  u64 state;   // of its vertex's draws
  u32 count;   // of buckets
  u32 empty;   // places at the beginning
  bool whole;  // whether all of its buckets are asked for
};

// Where the first draws of a row point.
struct LanePlaces {
  static constexpr int kMost = 32;

  alignas(32) u32 bytes[kMost];  // of the bucket, from the row's first
  alignas(32) u32 fractions[kMost];
  alignas(32) float within[kMost];
};

// So many entries after so many draws.
struct LaneDraws {
  int taken, drawn;
};

struct LaneKernels {
  // Draws end here before WeightedWithoutReplacement loses its patience, whatever k is.
  static constexpr int kMostPicks = 24, kMostDraws = 40;

  // The first `count` places of a row; then their buckets, which are fetched of a row not whole.
  void (*place)(const LaneRow& row, int count, LanePlaces& places);
  void (*settle)(const LaneRow& row, int count, LanePlaces& places);
  // k + 1 entries, each once, in the order drawn, or fewer where that takes too many draws.
  LaneDraws (*draw)(const LaneRow& row, int k, const LanePlaces& places, int placed, int likely,
                    const Picks<i32>& picks);
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

// Null: one draw after the other.
inline const LaneKernels* current_lanes() {
#ifdef SPGNN_AVX512
  if (current_isa() == Isa::kAvx512) return &avx512::lane_kernels;
#endif
#ifdef SPGNN_AVX2
  if (current_isa() == Isa::kAvx2) return &avx2::lane_kernels;
#endif
  return nullptr;
}

}  // namespace spgnn
