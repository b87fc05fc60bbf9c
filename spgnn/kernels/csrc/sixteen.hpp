// Sixteen neighbouring numbers at a time, in as many vectors as that takes: what packs rows into
// few bits has the same groups on every instruction set, and so the same bits.
#pragma once

#include <type_traits>

#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kGroup = 16;

#define SPGNN_INLINE [[gnu::always_inline]] inline

using Bytes [[gnu::vector_size(16)]] = std::uint8_t;
using SomeBytes [[gnu::vector_size(kVectorBytes / 4)]] = std::uint8_t;
using IntVector [[gnu::vector_size(kVectorBytes)]] = std::int32_t;

template <class Each>
struct Group {
  using Vector = Each;
  using Element = std::remove_cvref_t<decltype(Vector{}[0])>;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Element));
  static constexpr int kVectors = kGroup / kLanes;
  Vector v[kVectors];
};

template <class S>
using Reals = Group<std::conditional_t<sizeof(S) == 8, DoubleVector, FloatVector>>;
using Words = Group<WordVector>;

// f(number of a vector) for each of a group.
template <class AnyGroup, class Function>
SPGNN_INLINE void for_each_vector(Function f) {
#pragma GCC unroll 8
  for (int i = 0; i < AnyGroup::kVectors; ++i) f(i);
}

// Lanes of vector i of a group of which only the first so many count.
template <class AnyGroup>
SPGNN_INLINE int lanes_in(int i, int lanes) {
  const int left = lanes - i * AnyGroup::kLanes;
  return left < 0 ? 0 : left < AnyGroup::kLanes ? left : AnyGroup::kLanes;
}

// The first `lanes` numbers and zeros after them; reads no byte beyond.
template <class T>
SPGNN_INLINE Reals<Sum<T>> load_group(const T* p, int lanes) {
  using Found = Reals<Sum<T>>;
  Found found;
  for_each_vector<Found>([&](int i) {
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
template <class T>
SPGNN_INLINE void store_group(T* p, const Reals<Sum<T>>& group, int lanes) {
  using Found = Reals<Sum<T>>;
  for_each_vector<Found>([&](int i) {
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

// Floats that bfloat16 holds, as bfloat16.
SPGNN_INLINE void store_upper_halves(Bfloat16* p, const Words& group) {
  for_each_vector<Words>([&](int i) {
    store_vector(p + i * Words::kLanes, __builtin_convertvector(group.v[i] >> 16, HalfVector));
  });
}

// To the nearest integer, ties to even.
SPGNN_INLINE Words nearest_integers(const Reals<float>& group) {
  Words found;
  for_each_vector<Words>([&](int i) {
#if defined(__AVX512F__)
    constexpr __mmask16 kAll = 0xffff;
    found.v[i] = reinterpret_cast<WordVector>(
        _mm512_maskz_cvtps_epi32(kAll, reinterpret_cast<__m512>(group.v[i])));
#elif defined(__AVX2__)
    found.v[i] =
        reinterpret_cast<WordVector>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(group.v[i])));
#elif defined(__x86_64__)
    found.v[i] =
        reinterpret_cast<WordVector>(_mm_cvtps_epi32(reinterpret_cast<__m128>(group.v[i])));
#else
    for (int lane = 0; lane < Words::kLanes; ++lane) {
      found.v[i][lane] = static_cast<std::uint32_t>(__builtin_lrintf(group.v[i][lane]));
    }
#endif
  });
  return found;
}

SPGNN_INLINE Words nearest_integers(const Reals<double>& group) {
  std::int32_t numbers[kGroup];
  for_each_vector<Reals<double>>([&](int i) {
    std::int32_t* to = numbers + i * Reals<double>::kLanes;
#if defined(__AVX512F__)
    constexpr __mmask8 kAll = 0xff;
    const auto found = _mm512_maskz_cvtpd_epi32(kAll, reinterpret_cast<__m512d>(group.v[i]));
    std::memcpy(to, &found, sizeof(found));
#elif defined(__AVX2__)
    const auto found = _mm256_cvtpd_epi32(reinterpret_cast<__m256d>(group.v[i]));
    std::memcpy(to, &found, sizeof(found));
#else
    for (int lane = 0; lane < Reals<double>::kLanes; ++lane) {
      to[lane] = static_cast<std::int32_t>(__builtin_lrint(group.v[i][lane]));
    }
#endif
  });
  Words found;
  std::memcpy(&found, numbers, sizeof(found));
  return found;
}

// Integers below 2³¹ as reals.
template <class S>
SPGNN_INLINE Reals<S> as_reals(const Words& words) {
  Reals<S> found;
  if constexpr (sizeof(S) == 4) {
    for_each_vector<Words>([&](int i) {
      found.v[i] = __builtin_convertvector(reinterpret_cast<IntVector>(words.v[i]), FloatVector);
    });
  } else {
    using HalfInts [[gnu::vector_size(kVectorBytes / 2)]] = std::int32_t;
    HalfInts halves[Reals<double>::kVectors];
    static_assert(sizeof(halves) == sizeof(words));
    std::memcpy(halves, &words, sizeof(words));
    for_each_vector<Reals<double>>(
        [&](int i) { found.v[i] = __builtin_convertvector(halves[i], DoubleVector); });
  }
  return found;
}

// Float to double, exactly.
SPGNN_INLINE Reals<double> doubled(const Reals<float>& group) {
  using HalfFloats [[gnu::vector_size(kVectorBytes / 2)]] = float;
  HalfFloats halves[Reals<double>::kVectors];
  std::memcpy(halves, &group, sizeof(group));
  Reals<double> found;
  for_each_vector<Reals<double>>(
      [&](int i) { found.v[i] = __builtin_convertvector(halves[i], DoubleVector); });
  return found;
}
SPGNN_INLINE Reals<double> doubled(const Reals<double>& group) { return group; }

// Double to float, to the nearest.
SPGNN_INLINE Reals<float> single(const Reals<double>& group) {
  using HalfFloats [[gnu::vector_size(kVectorBytes / 2)]] = float;
  HalfFloats halves[Reals<double>::kVectors];
  for_each_vector<Reals<double>>(
      [&](int i) { halves[i] = __builtin_convertvector(group.v[i], HalfFloats); });
  Reals<float> found;
  std::memcpy(&found, halves, sizeof(found));
  return found;
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

// Codes to bytes; those above 255 become 255.
SPGNN_INLINE Bytes as_bytes(const Words& words) {
#if defined(__AVX512F__)
  constexpr __mmask16 kAll = 0xffff;
  return reinterpret_cast<Bytes>(
      _mm512_maskz_cvtusepi32_epi8(kAll, reinterpret_cast<__m512i>(words.v[0])));
#elif defined(__AVX2__)
  const __m256i halves =
      _mm256_permute4x64_epi64(_mm256_packus_epi32(reinterpret_cast<__m256i>(words.v[0]),
                                                   reinterpret_cast<__m256i>(words.v[1])),
                               0xd8);
  return reinterpret_cast<Bytes>(
      _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#elif defined(__x86_64__)
  const auto part = [&](int i) { return reinterpret_cast<__m128i>(words.v[i]); };
  return reinterpret_cast<Bytes>(
      _mm_packus_epi16(_mm_packs_epi32(part(0), part(1)), _mm_packs_epi32(part(2), part(3))));
#else
  Bytes found;
  for (int i = 0; i < kGroup; ++i) {
    const std::uint32_t word = words.v[i / Words::kLanes][i % Words::kLanes];
    found[i] = static_cast<std::uint8_t>(word < 255 ? word : 255);
  }
  return found;
#endif
}

// The first bytes of sixteen, zeros after them.
SPGNN_INLINE Bytes first_bytes(Bytes bytes, int count) {
  alignas(16) static constexpr std::uint8_t kOnes[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                         255, 255, 255, 255, 255, 255, 255, 255};
  return bytes & load_vector<Bytes>(kOnes + kGroup - count);
}

// Sixteen codes of kBits bits to 2 kBits bytes, code i at bit i · kBits; `to` has room for 16.
template <int kBits>
SPGNN_INLINE void pack_codes(Bytes codes, std::uint8_t* to) {
#if defined(__x86_64__)
  const auto bytes = reinterpret_cast<__m128i>(codes);
  if constexpr (kBits == 8) {
    std::memcpy(to, &bytes, 16);
  } else if constexpr (kBits == 4) {
    const auto pairs =
        _mm_and_si128(_mm_or_si128(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi16(0xff));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(pairs, pairs));
  } else if constexpr (kBits == 2) {
    const auto pairs = _mm_or_si128(bytes, _mm_srli_epi32(bytes, 6));
    const auto fours =
        _mm_and_si128(_mm_or_si128(pairs, _mm_srli_epi32(pairs, 12)), _mm_set1_epi32(0xff));
    const auto halves = _mm_packs_epi32(fours, fours);
    const int packed = _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves));
    std::memcpy(to, &packed, 4);
  } else {
    const int packed = _mm_movemask_epi8(_mm_slli_epi16(bytes, 7));
    std::memcpy(to, &packed, 2);
  }
#else
  constexpr int kEach = 8 / kBits;
  for (int byte = 0; byte < kGroup / kEach; ++byte) {
    unsigned packed = 0;
    for (int i = 0; i < kEach; ++i) packed |= unsigned{codes[byte * kEach + i]} << (i * kBits);
    to[byte] = static_cast<std::uint8_t>(packed);
  }
#endif
}

// The other way round, to words.
template <int kBits>
SPGNN_INLINE Words unpack_codes(const std::uint8_t* from) {
  constexpr int kLanes = Words::kLanes;
  Words found;
  for_each_vector<Words>([&](int i) {
    if constexpr (kBits == 8) {
      found.v[i] = __builtin_convertvector(load_vector<SomeBytes>(from + i * kLanes), WordVector);
    } else {
      constexpr int kOfWord = 32 / kBits;  // codes in a word
      WordVector word, shift;
      std::uint32_t words[2] = {};
      std::memcpy(words, from, 2 * kBits);
      for (int lane = 0; lane < kLanes; ++lane) {
        const int code = i * kLanes + lane;
        word[lane] = words[code / kOfWord];
        shift[lane] = static_cast<std::uint32_t>(code % kOfWord * kBits);
      }
      found.v[i] = (word >> shift) & ((1u << kBits) - 1);
    }
  });
  return found;
}

}  // namespace spgnn::SPGNN_ISA
