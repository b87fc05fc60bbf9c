// Weighted draws, eight at a time; compiled once for each instruction set, SPGNN_ISA.
//
// No function that other files also compile may be called here, unless it is always inlined: the
// linker would keep one of them for all.
#include <immintrin.h>

#include <cstdint>

#include "lanes_instructions.hpp"
#include "lanes_types.hpp"
#include "prefetch.hpp"

namespace spgnn::SPGNN_ISA {

namespace {

using Lanes = Vectors<32>::Floats;
static_assert(sizeof(Bucket<std::int32_t>) == 32);

// All lanes from `count` on become the first one.
SPGNN_INLINE Places first_for_rest(const Places& places, int count) {
  const __m256i rest = _mm256_cmpgt_epi32(lane_numbers(), _mm256_set1_epi32(count - 1));
  const auto mended = [&](__m256i lanes) {
    return _mm256_blendv_epi8(lanes, _mm256_broadcastd_epi32(_mm256_castsi256_si128(lanes)), rest);
  };
  return {mended(places.bytes), mended(places.fractions), places.within};
}

SPGNN_INLINE const char* bucket_at(const LaneRow& row, std::uint32_t byte) {
  return reinterpret_cast<const char*>(row.buckets) + byte;
}

// Four buckets' pairs of `keep` and `other`.
SPGNN_INLINE __m256i pairs(const LaneRow& row, const std::uint32_t* bytes) {
  const auto two = [&](int lane) {
    const __m128d low = _mm_load_sd(reinterpret_cast<const double*>(bucket_at(row, bytes[lane])));
    return _mm_loadh_pd(low, reinterpret_cast<const double*>(bucket_at(row, bytes[lane + 1])));
  };
  return _mm256_castpd_si256(_mm256_setr_m128d(two(0), two(4)));
}

// AliasDrawer::settled; `bytes` are the same numbers in memory.
SPGNN_INLINE __m256i settled(const LaneRow& row, const Places& places, const std::uint32_t* bytes) {
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
SPGNN_INLINE __m256 halves(const LaneRow& row, const std::uint32_t* bytes, int lane, int from) {
  const auto at = [&](int i) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(bucket_at(row, bytes[i]) + from));
  };
  return _mm256_setr_m128(at(lane), at(lane + 4));
}

// AliasDrawer::at.
SPGNN_INLINE Entries8 entries(const LaneRow& row, __m256i settled_bytes, __m256 within,
                              const std::uint32_t* bytes) {
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
  alignas(32) std::uint32_t bytes[kDrawLanes];
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
                     const Picks<std::int32_t>& picks)
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
    const std::uint32_t fresh = fresh_sixteen(first.offsets, second.offsets);
    keep(first, fresh & low_bits(count), count);
    keep(second, fresh >> kDrawLanes & low_bits(more), more);
  }

  SPGNN_INLINE bool has_room() const {
    return batches_ < kMostBatches && drawn_ + kDrawLanes <= LaneKernels::kMostDraws;
  }
  SPGNN_INLINE bool enough(int likely) const { return drawn_ >= likely && taken_ > k_; }
  // Until the last one that was wanted.
  SPGNN_INLINE LaneDraws cut() const {
    const std::uint64_t last = _pdep_u64(std::uint64_t{1} << k_, fresh_);
    return {k_ + 1, __builtin_ctzll(last) + 1};
  }
  SPGNN_INLINE LaneDraws all() const { return {taken_, drawn_}; }

 private:
  static constexpr int kMostBatches = 6;

  SPGNN_INLINE static std::uint32_t low_bits(int count) { return (1U << count) - 1; }

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

  SPGNN_INLINE void keep(const Entries8& found, std::uint32_t kept, int count) {
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
    fresh_ |= std::uint64_t{kept} << drawn_;
    taken_ += __builtin_popcount(kept);
    drawn_ += count;
  }

  const LaneRow& row_;
  const int k_;
  const LanePlaces& places_;
  const int placed_;
  const Picks<std::int32_t>& picks_;
  alignas(32) __m256i others_[kMostBatches];
  int batches_ = 0, taken_ = 0, drawn_ = 0;
  std::uint64_t fresh_ = 0;  // draws
};

LaneDraws draw(const LaneRow& row, int k, const LanePlaces& places, int placed, int likely,
               const Picks<std::int32_t>& picks) {
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
