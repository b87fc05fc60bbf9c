// Sixteen numbers at a time, whatever the vectors: the same bits on every instruction set.
#pragma once

#include <type_traits>
#include <utility>

#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kGroup = 16;

#define SPGNN_INLINE [[gnu::always_inline]] inline

using Bytes [[gnu::vector_size(16)]] = u8;
using IntVector [[gnu::vector_size(kVectorBytes)]] = i32;

template <class Each> struct Group {
  using Vector = Each;
  using Element = std::remove_cvref_t<decltype(Vector{}[0])>;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Element));
  static constexpr int kVectors = kGroup / kLanes;
  Vector v[kVectors];
};

template <class S>
using Reals = Group<std::conditional_t<sizeof(S) == 8, DoubleVector, FloatVector>>;
using Words = Group<WordVector>;

// f(number of a vector), a constant, for all of a group: else arrays do not stay in registers.
template <class AnyGroup, class Function> SPGNN_INLINE void for_each_vector(Function f) {
  [&]<int... kNumber>(std::integer_sequence<int, kNumber...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, kNumber>()), ...);
  }(std::make_integer_sequence<int, AnyGroup::kVectors>());
}

// A vector of f(lane).
template <class Vector, class Function> SPGNN_INLINE Vector by_lane(Function f) {
  constexpr int kLanes = sizeof(Vector) / sizeof(Vector{}[0]);
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) __attribute__((always_inline)) {
    return Vector{f(kLane)...};
  }(std::make_integer_sequence<int, kLanes>());
}

// Lanes of vector i of a group of which only the first so many count.
template <class AnyGroup> SPGNN_INLINE int lanes_in(int i, int lanes) {
  const int left = lanes - i * AnyGroup::kLanes;
  return left < 0 ? 0 : left < AnyGroup::kLanes ? left : AnyGroup::kLanes;
}

// The first `lanes` numbers and zeros after them; reads no byte beyond.
template <class T> SPGNN_INLINE Reals<Sum<T>> load_group(const T* p, int lanes) {
  using Found = Reals<Sum<T>>;
  Found found;
  for_each_vector<Found>([&](auto i) __attribute__((always_inline)) {
    const T* from = p + i * Found::kLanes;
    const int some = lanes_in<Found>(i, lanes);
    if constexpr (sizeof(T) == 2) {
      const auto halves =
          lanes == kGroup ? load_vector<HalfVector>(from) : load_halves(some ? from : p, some);
      found.v[i] = reinterpret_cast<FloatVector>(widen_halves(halves) << 16);
    } else {
      using Vector = typename Found::Vector;
      found.v[i] =
          lanes == kGroup ? load_vector<Vector>(from) : load_vector<Vector>(some ? from : p, some);
    }
  });
  return found;
}

// Writes the first `lanes` numbers, bfloat16 rounded to the nearest.
template <class T> SPGNN_INLINE void store_group(T* p, const Reals<Sum<T>>& group, int lanes) {
  using Found = Reals<Sum<T>>;
  for_each_vector<Found>([&](auto i) __attribute__((always_inline)) {
    const int some = lanes_in<Found>(i, lanes);
    T* to = some ? p + i * Found::kLanes : p;
    if constexpr (sizeof(T) == 2) {
      const auto halves = __builtin_convertvector(round_to_bfloat16(group.v[i]) >> 16, HalfVector);
      if (lanes == kGroup) {
        store_vector(to, halves);
      } else {
        store_halves(to, halves, some);
      }
    } else if (lanes == kGroup) {
      store_vector(to, group.v[i]);
    } else {
      store_vector(to, group.v[i], some);
    }
  });
}

// The first `lanes` of floats that bfloat16 holds, as bfloat16.
SPGNN_INLINE void store_upper_halves(u8* p, const Reals<float>& group, int lanes) {
  for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
    const auto halves =
        __builtin_convertvector(reinterpret_cast<WordVector>(group.v[i]) >> 16, HalfVector);
    const int some = lanes_in<Words>(i, lanes);
    u8* const to = some ? p + 2 * i * Words::kLanes : p;
    if (lanes == kGroup) {
      store_vector(to, halves);
    } else {
      store_halves(to, halves, some);
    }
  });
}

// To the nearest integer, ties to even.
SPGNN_INLINE Words nearest_integers(const Reals<float>& group) {
  Words found;
  for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    constexpr __mmask16 kAll = 0xffff;
    found.v[i] = reinterpret_cast<WordVector>(
        _mm512_maskz_cvtps_epi32(kAll, reinterpret_cast<__m512>(group.v[i])));
#elif defined(__AVX2__)
    found.v[i] =
        reinterpret_cast<WordVector>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(group.v[i])));
#else
    for (int lane = 0; lane < Words::kLanes; ++lane) {
      found.v[i][lane] = static_cast<u32>(__builtin_lrintf(group.v[i][lane]));
    }
#endif
  });
  return found;
}

SPGNN_INLINE Words nearest_integers(const Reals<double>& group) {
  i32 numbers[kGroup];
  for_each_vector<Reals<double>>([&](auto i) __attribute__((always_inline)) {
    i32* to = numbers + i * Reals<double>::kLanes;
    for (int lane = 0; lane < Reals<double>::kLanes; ++lane) {
      to[lane] = static_cast<i32>(__builtin_lrint(group.v[i][lane]));
    }
  });
  Words found;
  std::memcpy(&found, numbers, sizeof(found));
  return found;
}

// The numbers of one half of a vector as doubles.
template <class Vector> SPGNN_INLINE DoubleVector doubles(const Vector& v, int half) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (std::is_same_v<Vector, FloatVector>) {
    const auto all = reinterpret_cast<__m256>(v);
    return reinterpret_cast<DoubleVector>(
        _mm256_cvtps_pd(half ? _mm256_extractf128_ps(all, 1) : _mm256_castps256_ps128(all)));
  } else {
    const auto all = reinterpret_cast<__m256i>(v);
    return reinterpret_cast<DoubleVector>(
        _mm256_cvtepi32_pd(half ? _mm256_extracti128_si256(all, 1) : _mm256_castsi256_si128(all)));
  }
#else
  std::remove_cvref_t<decltype(v[0])> numbers[kVectorBytes / 4];
  std::memcpy(numbers, &v, sizeof(v));
  const auto* const from = numbers + half * (kVectorBytes / 8);
#if defined(__AVX512F__)
  constexpr __mmask8 kAll = 0xff;
  if constexpr (std::is_same_v<Vector, FloatVector>) {
    return reinterpret_cast<DoubleVector>(_mm512_maskz_cvtps_pd(kAll, load_vector<__m256>(from)));
  } else {
    return reinterpret_cast<DoubleVector>(
        _mm512_maskz_cvtepi32_pd(kAll, load_vector<__m256i>(from)));
  }
#else
  return by_lane<DoubleVector>([&](int lane) { return static_cast<double>(from[lane]); });
#endif
#endif
}

// Integers below 2³¹ as reals.
template <class S> SPGNN_INLINE Reals<S> as_reals(const Words& words) {
  Reals<S> found;
  for_each_vector<Reals<S>>([&](auto i) __attribute__((always_inline)) {
    if constexpr (sizeof(S) == 4) {
      found.v[i] = __builtin_convertvector(reinterpret_cast<IntVector>(words.v[i]), FloatVector);
    } else {
      const auto integers = reinterpret_cast<IntVector>(words.v[i / 2]);
      found.v[i] = doubles(integers, i % 2);
    }
  });
  return found;
}

// Float to double, exactly.
SPGNN_INLINE Reals<double> doubled(const Reals<float>& group) {
  Reals<double> found;
  for_each_vector<Reals<double>>(
      [&](auto i) __attribute__((always_inline)) { found.v[i] = doubles(group.v[i / 2], i % 2); });
  return found;
}
SPGNN_INLINE Reals<double> doubled(const Reals<double>& group) { return group; }

// Double to float, to the nearest.
SPGNN_INLINE Reals<float> single(const Reals<double>& group) {
  float numbers[kGroup];
  for_each_vector<Reals<double>>([&](auto i) __attribute__((always_inline)) {
    constexpr int kLanes = Reals<double>::kLanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      numbers[i * kLanes + lane] = static_cast<float>(group.v[i][lane]);
    }
  });
  return load_group(numbers, kGroup);
}
SPGNN_INLINE Reals<float> single(const Reals<float>& group) { return group; }

// The smaller and the larger of two lanes; of a NaN and a number, the one or the other.
#if defined(__AVX512F__)
SPGNN_INLINE FloatVector smaller(FloatVector a, FloatVector b) {
  constexpr __mmask16 kAll = 0xffff;
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_min_ps(kAll, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
}
SPGNN_INLINE FloatVector larger(FloatVector a, FloatVector b) {
  constexpr __mmask16 kAll = 0xffff;
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_max_ps(kAll, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
}
#elif defined(__AVX2__)
SPGNN_INLINE FloatVector smaller(FloatVector a, FloatVector b) {
  return reinterpret_cast<FloatVector>(
      _mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
}
SPGNN_INLINE FloatVector larger(FloatVector a, FloatVector b) {
  return reinterpret_cast<FloatVector>(
      _mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
}
#else
SPGNN_INLINE FloatVector smaller(FloatVector a, FloatVector b) { return a < b ? a : b; }
SPGNN_INLINE FloatVector larger(FloatVector a, FloatVector b) { return a > b ? a : b; }
#endif
SPGNN_INLINE DoubleVector smaller(DoubleVector a, DoubleVector b) { return a < b ? a : b; }
SPGNN_INLINE DoubleVector larger(DoubleVector a, DoubleVector b) { return a > b ? a : b; }

// Whether the other way to see a NaN, x · 0 added up, takes longer: each sum waits for the last.
#if defined(__AVX2__) && !defined(__AVX512F__)
template <class S> inline constexpr bool kUnordered = sizeof(S) == 4;

// What was found before; in each lane a NaN once there was one in it.
SPGNN_INLINE FloatVector unordered(FloatVector found, const Reals<float>& group) {
  return reinterpret_cast<FloatVector>(
      _mm256_or_ps(reinterpret_cast<__m256>(found),
                   _mm256_cmp_ps(reinterpret_cast<__m256>(group.v[0]),
                                 reinterpret_cast<__m256>(group.v[1]), _CMP_UNORD_Q)));
}
#else
template <class S> inline constexpr bool kUnordered = false;
#endif

}  // namespace spgnn::SPGNN_ISA
