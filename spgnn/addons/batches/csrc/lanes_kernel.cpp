// Weighted draws in the lanes of vectors.

#include <immintrin.h>

#include "lanes.hpp"

namespace spgnn::SPGNN_ISA {

namespace {

#define SPGNN_INLINE [[gnu::always_inline]] inline

SPGNN_INLINE __m256i loaded(const void* from) {
  return _mm256_load_si256(static_cast<const __m256i*>(from));
}
SPGNN_INLINE void stored(void* to, __m256i lanes) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), lanes);
}
// For numbers that are read one by one: GCC would take each out of the register, in two operations.
SPGNN_INLINE void stored_apart(u32 (&to)[kDrawLanes], __m256i lanes) {
  stored(to, lanes);
  asm volatile("" : "+m"(to));
}
SPGNN_INLINE __m256i lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }

struct Places {
  __m256i bytes, fractions;
  __m256 within;
};

SPGNN_INLINE Places finished(__m256i buckets, __m256i fractions, __m256i randoms) {
  const __m256i low = _mm256_and_si256(randoms, _mm256_set1_epi32(0xFFFFFF));
  const __m256 within = _mm256_mul_ps(_mm256_cvtepi32_ps(low), _mm256_set1_ps(0x1p-24F));
  return {_mm256_slli_epi32(buckets, 5), fractions, within};
}

struct Randoms {
  __m256i random, place;
};

// VertexDraws and AliasDrawer::place of four states.
SPGNN_INLINE Randoms drawn(__m256i x, __m256i count) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i y = _mm256_xor_si256(x, _mm256_set1_epi64x(VertexDraws::kMask));
  const __m256i x_high = _mm256_srli_epi64(x, 32), y_high = _mm256_srli_epi64(y, 32);
  const __m256i low = _mm256_mul_epu32(x, y), one = _mm256_mul_epu32(x, y_high);
  const __m256i other = _mm256_mul_epu32(x_high, y), high = _mm256_mul_epu32(x_high, y_high);
  const __m256i middle = _mm256_add_epi64(
      _mm256_srli_epi64(low, 32),
      _mm256_add_epi64(_mm256_blend_epi32(one, zero, 0xAA), _mm256_blend_epi32(other, zero, 0xAA)));
  const __m256i upper =
      _mm256_add_epi64(_mm256_add_epi64(high, _mm256_srli_epi64(middle, 32)),
                       _mm256_add_epi64(_mm256_srli_epi64(one, 32), _mm256_srli_epi64(other, 32)));
  const __m256i lower = _mm256_blend_epi32(low, _mm256_slli_epi64(middle, 32), 0xAA);
  const __m256i random = _mm256_xor_si256(upper, lower);
  const __m256i place = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(random, 32), count),
                                         _mm256_srli_epi64(_mm256_mul_epu32(random, count), 32));
  return {random, place};
}

// Of draws first, first + 1, …
SPGNN_INLINE Places placed_at(const LaneRow& row, u64 first) {
  constexpr u64 kStep = VertexDraws::kStep;
  const __m256i state = _mm256_set1_epi64x(row.state + first * kStep);
  const __m256i count = _mm256_set1_epi64x(row.count);
  // In the order that taking halves of both puts right.
  const Randoms a =
      drawn(_mm256_add_epi64(state, _mm256_setr_epi64x(0, kStep, 4 * kStep, 5 * kStep)), count);
  const Randoms b =
      drawn(_mm256_add_epi64(state, _mm256_setr_epi64x(2 * kStep, 3 * kStep, 6 * kStep, 7 * kStep)),
            count);
  const auto low = [](__m256i p, __m256i q) {
    return _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_castsi256_ps(p), _mm256_castsi256_ps(q), 0x88));
  };
  const auto high = [](__m256i p, __m256i q) {
    return _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_castsi256_ps(p), _mm256_castsi256_ps(q), 0xDD));
  };
  return finished(high(a.place, b.place), low(a.place, b.place), low(a.random, b.random));
}

// The lanes turned by so many.
template <int kBy> SPGNN_INLINE __m256i turned(__m256i lanes) {
  return _mm256_permutevar8x32_epi32(
      lanes, _mm256_setr_epi32((8 - kBy) & 7, (9 - kBy) & 7, (10 - kBy) & 7, (11 - kBy) & 7,
                               (12 - kBy) & 7, (13 - kBy) & 7, (14 - kBy) & 7, (15 - kBy) & 7));
}
template <int kBy> SPGNN_INLINE __m256i equals_before(__m256i lanes) {
  const __m256i equal = _mm256_cmpeq_epi32(lanes, turned<kBy>(lanes));
  return _mm256_blend_epi32(equal, _mm256_setzero_si256(), (1 << kBy) - 1);
}
template <int kBy> SPGNN_INLINE __m256i equals(__m256i lanes, __m256i others) {
  return _mm256_cmpeq_epi32(lanes, turned<kBy>(others));
}

SPGNN_INLINE __m256i any(__m256i a, __m256i b, __m256i c, __m256i d) {
  return _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
}

// Lanes that equal none before them, nor any of `others`.
SPGNN_INLINE u32 fresh_lanes(__m256i offsets, const __m256i* others, int count) {
  __m256i met = any(equals_before<1>(offsets), equals_before<2>(offsets), equals_before<3>(offsets),
                    equals_before<4>(offsets));
  met = any(met, equals_before<5>(offsets), equals_before<6>(offsets), equals_before<7>(offsets));
  for (int i = 0; i < count; ++i) {
    const __m256i those = loaded(others + i);
    met = _mm256_or_si256(met, any(equals<0>(offsets, those), equals<1>(offsets, those),
                                   equals<2>(offsets, those), equals<3>(offsets, those)));
    met = _mm256_or_si256(met, any(equals<4>(offsets, those), equals<5>(offsets, those),
                                   equals<6>(offsets, those), equals<7>(offsets, those)));
  }
  return 0xFFU ^ static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(met)));
}

// Of sixteen lanes, those that equal none before them.
SPGNN_INLINE u32 fresh_sixteen(__m256i first, __m256i second) {
  return fresh_lanes(first, nullptr, 0) | fresh_lanes(second, &first, 1) << kDrawLanes;
}

// Which lane goes where, a byte for each, by the mask of those that are kept.
struct Orders {
  u64 of[256];
};
constexpr Orders kOrders = [] {
  Orders orders{};
  for (u32 kept = 0; kept < 256; ++kept) {
    int to = 0;
    for (u64 lane = 0; lane < 8; ++lane) {
      if (kept >> lane & 1) orders.of[kept] |= lane << (8 * to++);
    }
  }
  return orders;
}();

class Compaction {
 public:
  SPGNN_INLINE explicit Compaction(u32 kept)
      : order_(_mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOrders.of + kept)))) {}
  SPGNN_INLINE __m256i operator()(__m256i lanes) const {
    return _mm256_permutevar8x32_epi32(lanes, order_);
  }

 private:
  __m256i order_;
};

using Lanes = Vectors<32>::Floats;
static_assert(sizeof(Bucket<i32>) == 32);

// All lanes from `count` on become the first one.
SPGNN_INLINE Places first_for_rest(const Places& places, int count) {
  const __m256i rest = _mm256_cmpgt_epi32(lane_numbers(), _mm256_set1_epi32(count - 1));
  const auto mended = [&](__m256i lanes) {
    return _mm256_blendv_epi8(lanes, _mm256_broadcastd_epi32(_mm256_castsi256_si128(lanes)), rest);
  };
  return {mended(places.bytes), mended(places.fractions), places.within};
}

SPGNN_INLINE const char* bucket_at(const LaneRow& row, u32 byte) {
  return reinterpret_cast<const char*>(row.buckets) + byte;
}

// Four buckets' pairs of `keep` and `other`.
SPGNN_INLINE __m256i pairs(const LaneRow& row, const u32* bytes) {
  const auto two = [&](int lane) {
    const __m128d low = _mm_load_sd(reinterpret_cast<const double*>(bucket_at(row, bytes[lane])));
    return _mm_loadh_pd(low, reinterpret_cast<const double*>(bucket_at(row, bytes[lane + 1])));
  };
  return _mm256_castpd_si256(_mm256_setr_m128d(two(0), two(4)));
}

// AliasDrawer::settled; `bytes` are the same numbers in memory.
SPGNN_INLINE __m256i settled(const LaneRow& row, const Places& places, const u32* bytes) {
  const __m256 a = _mm256_castsi256_ps(pairs(row, bytes));
  const __m256 b = _mm256_castsi256_ps(pairs(row, bytes + 2));
  const __m256i keep = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  const __m256i other = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
  // fraction ≥ keep
  const __m256i goes =
      _mm256_cmpeq_epi32(_mm256_max_epu32(places.fractions, keep), places.fractions);
  return _mm256_blendv_epi8(places.bytes, _mm256_slli_epi32(other, 5), goes);
}

struct Entries8 {
  __m256i offsets, columns;
  __m256 shares;
};

// Sixteen bytes of four buckets each, and of the four buckets behind them.
SPGNN_INLINE __m256 halves(const LaneRow& row, const u32* bytes, int lane, int from) {
  const auto at = [&](int i) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(bucket_at(row, bytes[i]) + from));
  };
  return _mm256_setr_m128(at(lane), at(lane + 4));
}

// AliasDrawer::at.
SPGNN_INLINE Entries8 entries(const LaneRow& row, __m256i settled_bytes, __m256 within,
                              const u32* bytes) {
  // Columns and the first share; then the other shares.
  __m256 a0 = halves(row, bytes, 0, 8), a1 = halves(row, bytes, 1, 8);
  __m256 a2 = halves(row, bytes, 2, 8), a3 = halves(row, bytes, 3, 8);
  const __m256 b0 = _mm256_unpacklo_ps(a0, a2), b1 = _mm256_unpacklo_ps(a1, a3);
  const __m256 b2 = _mm256_unpackhi_ps(a0, a2), b3 = _mm256_unpackhi_ps(a1, a3);
  const __m256 c0 = _mm256_unpacklo_ps(b0, b1), c1 = _mm256_unpackhi_ps(b0, b1);
  const __m256 c2 = _mm256_unpacklo_ps(b2, b3), first = _mm256_unpackhi_ps(b2, b3);
  a0 = halves(row, bytes, 0, 16), a1 = halves(row, bytes, 1, 16);
  a2 = halves(row, bytes, 2, 16), a3 = halves(row, bytes, 3, 16);
  const __m256 d0 = _mm256_unpackhi_ps(a0, a2), d1 = _mm256_unpackhi_ps(a1, a3);
  const __m256 second = _mm256_unpacklo_ps(d0, d1), third = _mm256_unpackhi_ps(d0, d1);
  const __m256 two = _mm256_add_ps(first, second);
  const __m256 sum = _mm256_mul_ps(within, _mm256_add_ps(two, third));
  const __m256 past_first = _mm256_cmp_ps(sum, first, _CMP_GE_OQ);
  const __m256 past_two = _mm256_cmp_ps(sum, two, _CMP_GE_OQ);
  const auto chosen = [&](__m256 p, __m256 q, __m256 r) {
    return _mm256_blendv_ps(_mm256_blendv_ps(p, q, past_first), r, past_two);
  };
  const __m256i buckets = _mm256_srli_epi32(settled_bytes, 5);
  __m256i offsets = _mm256_add_epi32(_mm256_add_epi32(buckets, buckets), buckets);
  offsets = _mm256_sub_epi32(offsets, _mm256_set1_epi32(static_cast<int>(row.empty)));
  offsets = _mm256_sub_epi32(offsets, _mm256_castps_si256(past_first));
  offsets = _mm256_sub_epi32(offsets, _mm256_castps_si256(past_two));
  return {offsets, _mm256_castps_si256(chosen(c0, c1, c2)), chosen(first, second, third)};
}

void place(const LaneRow& row, int count, LanePlaces& places) {
  for (int j = 0; j < count; j += kDrawLanes) {
    Places eight = placed_at(row, j);
    if (count - j < kDrawLanes) eight = first_for_rest(eight, count - j);
    stored(places.bytes + j, eight.bytes);
    stored(places.fractions + j, eight.fractions);
    _mm256_store_ps(places.within + j, eight.within);
  }
  if (row.whole) return;
  for (int j = 0; j < count; ++j) prefetch_soon(bucket_at(row, places.bytes[j]));
}

void settle(const LaneRow& row, int count, LanePlaces& places) {
  for (int j = 0; j < count; j += kDrawLanes) {
    const Places eight{loaded(places.bytes + j), loaded(places.fractions + j), {}};
    stored(places.bytes + j, settled(row, eight, places.bytes + j));
  }
  if (row.whole) return;
  for (int j = 0; j < count; ++j) prefetch_soon(bucket_at(row, places.bytes[j]));
}

// Eight entries from draw `first` on, of which `count` are draws.
SPGNN_INLINE Entries8 drawn_entries(const LaneRow& row, int first, int count) {
  alignas(32) u32 bytes[kDrawLanes];
  Places eight = placed_at(row, first);
  if (count < kDrawLanes) eight = first_for_rest(eight, count);
  stored_apart(bytes, eight.bytes);
  eight.bytes = settled(row, eight, bytes);
  stored_apart(bytes, eight.bytes);
  return entries(row, eight.bytes, eight.within, bytes);
}

// What was drawn of a row so far.
class Drawn {
 public:
  SPGNN_INLINE Drawn(const LaneRow& row, int k, const LanePlaces& places, int placed,
                     const Picks<i32>& picks)
      : row_(row), k_(k), places_(places), placed_(placed), picks_(picks) {}

  // Eight draws, or fewer.
  SPGNN_INLINE void eight() {
    int count;
    const Entries8 found = next(&count);
    keep(found, fresh_lanes(found.offsets, others_, batches_) & low_bits(count), count);
  }
  // The first sixteen, or fewer, which are searched for what comes twice at once.
  SPGNN_INLINE void sixteen() {
    int count, more;
    const Entries8 first = next(&count);
    drawn_ += count;
    const Entries8 second = next(&more);
    drawn_ -= count;
    const u32 fresh = fresh_sixteen(first.offsets, second.offsets);
    keep(first, fresh & low_bits(count), count);
    keep(second, fresh >> kDrawLanes & low_bits(more), more);
  }

  SPGNN_INLINE bool has_room() const {
    return batches_ < kMostBatches && drawn_ + kDrawLanes <= LaneKernels::kMostDraws;
  }
  SPGNN_INLINE bool enough(int likely) const { return drawn_ >= likely && taken_ > k_; }
  // Until the last one that was wanted.
  SPGNN_INLINE LaneDraws cut() const {
    const u64 last = _pdep_u64(u64{1} << k_, fresh_);
    return {k_ + 1, __builtin_ctzll(last) + 1};
  }
  SPGNN_INLINE LaneDraws all() const { return {taken_, drawn_}; }

 private:
  static constexpr int kMostBatches = 6;

  SPGNN_INLINE static u32 low_bits(int count) { return (1U << count) - 1; }

  // The entries of the next draws, and how many these are.
  SPGNN_INLINE Entries8 next(int* count) const {
    *count = kDrawLanes;
    if (drawn_ < placed_) {
      *count = placed_ - drawn_ < kDrawLanes ? placed_ - drawn_ : kDrawLanes;
      return entries(row_, loaded(places_.bytes + drawn_), _mm256_load_ps(places_.within + drawn_),
                     places_.bytes + drawn_);
    }
    // Of others, buckets were not asked for.
    if (!row_.whole && k_ + 2 - taken_ < kDrawLanes) *count = k_ + 2 - taken_;
    return drawn_entries(row_, drawn_, *count);
  }

  SPGNN_INLINE void keep(const Entries8& found, u32 kept, int count) {
    const Compaction compacted(kept);
    stored(picks_.columns + taken_, compacted(found.columns));
    stored(picks_.offsets + taken_, compacted(found.offsets));
    stored(picks_.shares + taken_, compacted(_mm256_castps_si256(found.shares)));
    __m256i offsets = found.offsets;
    // Lanes that do not count equal none that may come.
    if (count < kDrawLanes) {
      const __m256i rest = _mm256_cmpgt_epi32(lane_numbers(), _mm256_set1_epi32(count - 1));
      offsets = _mm256_or_si256(offsets, rest);
    }
    _mm256_store_si256(others_ + batches_++, offsets);
    fresh_ |= u64{kept} << drawn_;
    taken_ += __builtin_popcount(kept);
    drawn_ += count;
  }

  const LaneRow& row_;
  const int k_;
  const LanePlaces& places_;
  const int placed_;
  const Picks<i32>& picks_;
  alignas(32) __m256i others_[kMostBatches];
  int batches_ = 0, taken_ = 0, drawn_ = 0;
  u64 fresh_ = 0;  // draws
};

LaneDraws draw(const LaneRow& row, int k, const LanePlaces& places, int placed, int likely,
               const Picks<i32>& picks) {
  Drawn drawn(row, k, places, placed, picks);
  // Whether these are enough is hard to predict, so it is not looked at before it is likely.
  if (likely > kDrawLanes) drawn.sixteen();
  while (!drawn.enough(likely)) {
    if (!drawn.has_room()) return drawn.all();
    drawn.eight();
  }
  return drawn.cut();
}

void weigh(const FactorTerms& terms, int k, const float* shares, float* factors) {
  each_lanes<Lanes>(k, shares, factors, [&](Lanes share) { return mean_factors(terms, share); });
}

void weigh_until(float time, int k, const float* shares, float* factors) {
  each_lanes<Lanes>(k, shares, factors, [&](Lanes share) { return arrived_factors(time, share); });
}

#undef SPGNN_INLINE

}  // namespace

const LaneKernels lane_kernels{place, settle, draw, weigh, weigh_until};

}  // namespace spgnn::SPGNN_ISA
