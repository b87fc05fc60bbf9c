// Thirty-two columns at a time on AVX2 and AVX-512: what random words give to columns sixteen apart
// stays in the upper halves of words until codes are bytes.
#pragma once

#include "codes.hpp"

namespace spgnn::SPGNN_ISA {

#if defined(__AVX2__)
#define SPGNN_PAIRED

using PairedBytes [[gnu::vector_size(32)]] = std::uint8_t;

#if defined(__AVX512F__)

// The upper halves of words, those of `one` before those of `other`.
SPGNN_INLINE __m512i upper_halves(const WordVector& one, const WordVector& other) {
  using Halves [[gnu::vector_size(64)]] = std::uint16_t;
  const auto odd =
      by_lane<Halves>([](int lane) { return static_cast<std::uint16_t>(2 * lane + 1); });
  return _mm512_permutex2var_epi16(reinterpret_cast<__m512i>(one), reinterpret_cast<__m512i>(odd),
                                   reinterpret_cast<__m512i>(other));
}

// The same as bytes; above 255 they become 255.
SPGNN_INLINE PairedBytes upper_bytes(const Words& one, const Words& other) {
  constexpr __mmask32 kAll = 0xffffffff;
  return reinterpret_cast<PairedBytes>(
      _mm512_maskz_cvtusepi16_epi8(kAll, upper_halves(one.v[0], other.v[0])));
}

#else

// The upper halves of words, which are below 2¹⁵, as bytes: those of `one` before those of `other`;
// above 255 they become 255.
SPGNN_INLINE PairedBytes upper_bytes(const Words& one, const Words& other) {
  const auto halves = [&](auto i) __attribute__((always_inline)) {
    return _mm256_blend_epi16(_mm256_srli_epi32(reinterpret_cast<__m256i>(one.v[i]), 16),
                              reinterpret_cast<__m256i>(other.v[i]), 0xaa);
  };
  constexpr std::integral_constant<int, 0> kFirst;
  constexpr std::integral_constant<int, 1> kSecond;
  // Of each four neighbours of `one`, those of `other` lie between them.
  const auto mixed = _mm256_packus_epi16(halves(kFirst), halves(kSecond));
  const auto fours =
      _mm256_shuffle_epi8(mixed, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                     0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
  return reinterpret_cast<PairedBytes>(
      _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

#endif

// Thirty-two codes of kBits bits to 4 kBits bytes, code i at bit i · kBits.
template <int kBits>
SPGNN_INLINE void pack_codes(PairedBytes codes, std::uint8_t* to) {
  const auto bytes = reinterpret_cast<__m256i>(codes);
  if constexpr (kBits == 8) {
    std::memcpy(to, &bytes, 32);
  } else if constexpr (kBits == 1) {
#if defined(__AVX512F__)
    const __mmask32 packed = _mm256_test_epi8_mask(bytes, _mm256_set1_epi8(1));
#else
    const int packed = _mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7));
#endif
    std::memcpy(to, &packed, 4);
  } else {
    // Neighbours times 1 and 2^kBits, added.
    auto sums =
        _mm256_maddubs_epi16(_mm256_set1_epi16(static_cast<short>(1 | 256 << kBits)), bytes);
    if constexpr (kBits == 2) sums = _mm256_madd_epi16(sums, _mm256_set1_epi32(1 | 16 << 16));
    const auto lower = _mm256_castsi256_si128(sums), upper = _mm256_extracti128_si256(sums, 1);
    if constexpr (kBits == 4) {
      const auto packed = _mm_packus_epi16(lower, upper);
      std::memcpy(to, &packed, 16);
    } else {
      const auto halves = _mm_packus_epi32(lower, upper);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
    }
  }
}

#if defined(__AVX512F__)

// Floats rounded to bfloat16 by random halves; a NaN stays one.
SPGNN_INLINE void store_drawn(const Reals<float>& one, const Reals<float>& other,
                              const Words& lower, const Words& upper, std::uint8_t* to) {
  const auto drawn =
      [](const FloatVector& x, const WordVector& halves)
          __attribute__((always_inline)) { return reinterpret_cast<WordVector>(x) + halves; };
  WordVector first = drawn(one.v[0], lower.v[0]), second = drawn(other.v[0], upper.v[0]);
  if (_mm512_cmp_ps_mask(reinterpret_cast<__m512>(one.v[0]), reinterpret_cast<__m512>(other.v[0]),
                         _CMP_UNORD_Q)) [[unlikely]] {
    const auto quiet = [](const FloatVector& x,
                          const WordVector& found) __attribute__((always_inline)) {
      const auto is_nan = reinterpret_cast<WordVector>(x != x);
      return (is_nan & (reinterpret_cast<WordVector>(x) | 0x400000u)) | (~is_nan & found);
    };
    first = quiet(one.v[0], first), second = quiet(other.v[0], second);
  }
  store_vector(to, upper_halves(first, second));
}

#else

SPGNN_INLINE void store_drawn(const Reals<float>& x, const Words& drawn, std::uint8_t* to) {
  const auto upper = [&](auto i) __attribute__((always_inline)) {
    const auto number = reinterpret_cast<WordVector>(x.v[i]);
    return _mm256_srli_epi32(reinterpret_cast<__m256i>(number + drawn.v[i]), 16);
  };
  constexpr std::integral_constant<int, 0> kFirst;
  constexpr std::integral_constant<int, 1> kSecond;
  auto first = upper(kFirst), second = upper(kSecond);
  const auto odd = _mm256_cmp_ps(reinterpret_cast<__m256>(x.v[0]), reinterpret_cast<__m256>(x.v[1]),
                                 _CMP_UNORD_Q);
  if (_mm256_movemask_ps(odd)) [[unlikely]] {
    const auto quiet = [&](auto i, __m256i found) __attribute__((always_inline)) {
      const auto is_nan = reinterpret_cast<WordVector>(x.v[i] != x.v[i]);
      const auto number = (reinterpret_cast<WordVector>(x.v[i]) | 0x400000u) >> 16;
      return reinterpret_cast<__m256i>((is_nan & number) |
                                       (~is_nan & reinterpret_cast<WordVector>(found)));
    };
    first = quiet(kFirst, first), second = quiet(kSecond, second);
  }
  const auto packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
  std::memcpy(to, &packed, 32);
}

// Floats rounded to bfloat16 by random halves; a NaN stays one.
SPGNN_INLINE void store_drawn(const Reals<float>& one, const Reals<float>& other,
                              const Words& lower, const Words& upper, std::uint8_t* to) {
  store_drawn(one, lower, to);
  store_drawn(other, upper, to + 2 * kGroup);
}

#endif
#endif

}  // namespace spgnn::SPGNN_ISA
