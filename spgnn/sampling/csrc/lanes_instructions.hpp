// What instruction sets do differently about eight weighted draws; a part of lanes_kernel.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "hash.hpp"
#include "lanes_types.hpp"

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
SPGNN_INLINE void stored_apart(std::uint32_t (&to)[kDrawLanes], __m256i lanes) {
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

#ifdef __AVX512F__

// VertexDraws and AliasDrawer::place of draws first, first + 1, …
SPGNN_INLINE Places placed_at(const LaneRow& row, std::uint64_t first) {
  constexpr std::uint64_t kStep = VertexDraws::kStep;
  const __m512i steps =
      _mm512_setr_epi64(0, kStep, 2 * kStep, 3 * kStep, 4 * kStep, 5 * kStep, 6 * kStep, 7 * kStep);
  const __m512i low_half = _mm512_set1_epi64(0xFFFFFFFF);
  const __m512i x = _mm512_add_epi64(_mm512_set1_epi64(row.state + first * kStep), steps);
  const __m512i y = _mm512_xor_si512(x, _mm512_set1_epi64(VertexDraws::kMask));
  const __m512i x_high = _mm512_srli_epi64(x, 32), y_high = _mm512_srli_epi64(y, 32);
  const __m512i low = _mm512_mul_epu32(x, y), one = _mm512_mul_epu32(x, y_high);
  const __m512i other = _mm512_mul_epu32(x_high, y), high = _mm512_mul_epu32(x_high, y_high);
  const __m512i middle = _mm512_add_epi64(
      _mm512_srli_epi64(low, 32),
      _mm512_add_epi64(_mm512_and_si512(one, low_half), _mm512_and_si512(other, low_half)));
  const __m512i upper =
      _mm512_add_epi64(_mm512_add_epi64(high, _mm512_srli_epi64(middle, 32)),
                       _mm512_add_epi64(_mm512_srli_epi64(one, 32), _mm512_srli_epi64(other, 32)));
  const __m512i lower = _mm512_mask_blend_epi32(0xAAAA, low, _mm512_slli_epi64(middle, 32));
  const __m512i random = _mm512_xor_si512(upper, lower);
  const __m512i count = _mm512_set1_epi64(row.count);
  const __m512i place = _mm512_add_epi64(_mm512_mul_epu32(_mm512_srli_epi64(random, 32), count),
                                         _mm512_srli_epi64(_mm512_mul_epu32(random, count), 32));
  return finished(_mm512_cvtepi64_epi32(_mm512_srli_epi64(place, 32)), _mm512_cvtepi64_epi32(place),
                  _mm512_cvtepi64_epi32(random));
}

// Lanes that equal none before them, nor any of `others`.
SPGNN_INLINE std::uint32_t fresh_lanes(__m256i offsets, const __m256i* others, int count) {
  if (count == 0) {
    const __m256i equal = _mm256_conflict_epi32(offsets);
    return _mm256_testn_epi32_mask(equal, equal);
  }
  std::uint32_t fresh = 0xFF;
  for (int i = 0; i < count; ++i) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(loaded(others + i)), offsets, 1);
    const __m512i equal = _mm512_conflict_epi32(both);
    fresh &= static_cast<std::uint32_t>(_mm512_testn_epi32_mask(equal, equal)) >> 8;
  }
  return fresh;
}

// Of sixteen lanes, those that equal none before them.
SPGNN_INLINE std::uint32_t fresh_sixteen(__m256i first, __m256i second) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  const __m512i equal = _mm512_conflict_epi32(both);
  return _mm512_testn_epi32_mask(equal, equal);
}

class Compaction {
 public:
  explicit Compaction(std::uint32_t kept) : kept_(static_cast<__mmask8>(kept)) {}
  SPGNN_INLINE __m256i operator()(__m256i lanes) const {
    return _mm256_maskz_compress_epi32(kept_, lanes);
  }

 private:
  __mmask8 kept_;
};

#else

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
SPGNN_INLINE Places placed_at(const LaneRow& row, std::uint64_t first) {
  constexpr std::uint64_t kStep = VertexDraws::kStep;
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
template <int kBy>
SPGNN_INLINE __m256i turned(__m256i lanes) {
  return _mm256_permutevar8x32_epi32(
      lanes, _mm256_setr_epi32((8 - kBy) & 7, (9 - kBy) & 7, (10 - kBy) & 7, (11 - kBy) & 7,
                               (12 - kBy) & 7, (13 - kBy) & 7, (14 - kBy) & 7, (15 - kBy) & 7));
}
template <int kBy>
SPGNN_INLINE __m256i equals_before(__m256i lanes) {
  const __m256i equal = _mm256_cmpeq_epi32(lanes, turned<kBy>(lanes));
  return _mm256_blend_epi32(equal, _mm256_setzero_si256(), (1 << kBy) - 1);
}
template <int kBy>
SPGNN_INLINE __m256i equals(__m256i lanes, __m256i others) {
  return _mm256_cmpeq_epi32(lanes, turned<kBy>(others));
}

SPGNN_INLINE __m256i any(__m256i a, __m256i b, __m256i c, __m256i d) {
  return _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
}

// Lanes that equal none before them, nor any of `others`.
SPGNN_INLINE std::uint32_t fresh_lanes(__m256i offsets, const __m256i* others, int count) {
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
  return 0xFFU ^ static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(met)));
}

// Of sixteen lanes, those that equal none before them.
SPGNN_INLINE std::uint32_t fresh_sixteen(__m256i first, __m256i second) {
  return fresh_lanes(first, nullptr, 0) | fresh_lanes(second, &first, 1) << kDrawLanes;
}

// Which lane goes where, a byte for each, by the mask of those that are kept.
struct Orders {
  std::uint64_t of[256];
};
constexpr Orders kOrders = [] {
  Orders orders{};
  for (std::uint32_t kept = 0; kept < 256; ++kept) {
    int to = 0;
    for (std::uint64_t lane = 0; lane < 8; ++lane) {
      if (kept >> lane & 1) orders.of[kept] |= lane << (8 * to++);
    }
  }
  return orders;
}();

class Compaction {
 public:
  SPGNN_INLINE explicit Compaction(std::uint32_t kept)
      : order_(_mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOrders.of + kept)))) {}
  SPGNN_INLINE __m256i operator()(__m256i lanes) const {
    return _mm256_permutevar8x32_epi32(lanes, order_);
  }

 private:
  __m256i order_;
};

#endif

}  // namespace

}  // namespace spgnn::SPGNN_ISA
