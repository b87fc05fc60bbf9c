// Codes of few bits, packed into bytes: sixteen at a time, and thirty-two on AVX2 and AVX-512.
#pragma once

#include "sixteen.hpp"

namespace spgnn::SPGNN_ISA {

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
#else
  Bytes found;
  for (int i = 0; i < kGroup; ++i) {
    const u32 word = words.v[i / Words::kLanes][i % Words::kLanes];
    found[i] = static_cast<u8>(word < 255 ? word : 255);
  }
  return found;
#endif
}

// The first bytes of sixteen, zeros after them.
SPGNN_INLINE Bytes first_bytes(Bytes bytes, int count) {
  alignas(16) static constexpr u8 kOnes[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                               255, 255, 255, 255, 255, 255, 255, 255};
  return bytes & load_vector<Bytes>(kOnes + kGroup - count);
}

// Sixteen codes of kBits bits to 2 kBits bytes, code i at bit i · kBits; `to` has room for 16.
template <int kBits> SPGNN_INLINE void pack_codes(Bytes codes, u8* to) {
  if constexpr (kBits == 8) return store_vector(to, codes);
#if defined(__AVX2__)
  if constexpr (kBits == 4) {
    const auto bytes = reinterpret_cast<__m128i>(codes);
    const auto pairs =
        _mm_and_si128(_mm_or_si128(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi16(0xff));
    return _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(pairs, pairs));
  }
#endif
  constexpr int kEach = 8 / kBits;
  for (int byte = 0; byte < kGroup / kEach; ++byte) {
    unsigned packed = 0;
    for (int i = 0; i < kEach; ++i) packed |= unsigned{codes[byte * kEach + i]} << (i * kBits);
    to[byte] = static_cast<u8>(packed);
  }
}

// Sixteen bytes to words.
SPGNN_INLINE Words as_words(Bytes bytes) {
  Words found;
  for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    constexpr __mmask16 kAll = 0xffff;
    found.v[i] = reinterpret_cast<WordVector>(
        _mm512_maskz_cvtepu8_epi32(kAll, reinterpret_cast<__m128i>(bytes)));
#elif defined(__AVX2__)
    found.v[i] = reinterpret_cast<WordVector>(
        _mm256_cvtepu8_epi32(_mm_srli_si128(reinterpret_cast<__m128i>(bytes), i * 8)));
#else
    found.v[i] =
        by_lane<WordVector>([&](int lane) { return u32{bytes[i * Words::kLanes + lane]}; });
#endif
  });
  return found;
}

// What pack_codes wrote, as words.
template <int kBits> SPGNN_INLINE Words unpack_codes(const u8* from) {
  if constexpr (kBits == 8) return as_words(load_vector<Bytes>(from));
#if defined(__AVX2__)
  Words found;
  for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
    // The lanes of a vector need a word, or two of four bits each.
    constexpr int kOfVector = Words::kLanes * kBits, kFirst = i * kOfVector;
    WordVector words;
    if constexpr (kOfVector == 64) {
      u64 both;
      std::memcpy(&both, from, 8);
      const auto all = reinterpret_cast<WordVector>(LongVector{} + static_cast<i64>(both));
      words = __builtin_shuffle(
          all, by_lane<WordVector>([&](int lane) { return static_cast<unsigned>(lane / 8); }));
    } else {
      u32 word = 0;
      std::memcpy(&word, from + kFirst / 32 * 4, kBits == 1 ? 2 : 4);
      words = WordVector{} + word;
    }
    const auto shifts = by_lane<WordVector>(
        [](int lane) { return static_cast<unsigned>((kFirst + lane * kBits) % 32); });
    found.v[i] = (words >> shifts) & ((1u << kBits) - 1);
  });
  return found;
#else
  u8 codes[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<u8>(from[i * kBits / 8] >> (i * kBits % 8) & ((1 << kBits) - 1));
  }
  return as_words(load_vector<Bytes>(codes));
#endif
}

// Thirty-two columns at a time: random words for columns sixteen apart stay in upper halves.

#if defined(__AVX2__)
#define SPGNN_PAIRED

using PairedBytes [[gnu::vector_size(32)]] = u8;

#if defined(__AVX512F__)

// The upper halves of words, those of `one` before those of `other`.
SPGNN_INLINE __m512i upper_halves(const WordVector& one, const WordVector& other) {
  using Halves [[gnu::vector_size(64)]] = u16;
  const auto odd = by_lane<Halves>([](int lane) { return static_cast<u16>(2 * lane + 1); });
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

// The upper halves of words below 2¹⁵ as bytes, those of `one` first; above 255 they become 255.
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
template <int kBits> SPGNN_INLINE void pack_codes(PairedBytes codes, u8* to) {
  const auto bytes = reinterpret_cast<__m256i>(codes);
  if constexpr (kBits == 8) {
    store_vector(to, codes);
  } else if constexpr (kBits == 1) {
    const int packed = _mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7));
    std::memcpy(to, &packed, 4);
  } else {  // neighbours times 1 and 2^kBits, added
    auto sums =
        _mm256_maddubs_epi16(_mm256_set1_epi16(static_cast<short>(1 | 256 << kBits)), bytes);
    if constexpr (kBits == 2) sums = _mm256_madd_epi16(sums, _mm256_set1_epi32(1 | 16 << 16));
    const auto lower = _mm256_castsi256_si128(sums), upper = _mm256_extracti128_si256(sums, 1);
    if constexpr (kBits == 4) return store_vector(to, _mm_packus_epi16(lower, upper));
    const auto halves = _mm_packus_epi32(lower, upper);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
  }
}

#if defined(__AVX512F__)

// Floats rounded to bfloat16 by random halves; every NaN becomes the same one.
SPGNN_INLINE void store_drawn(const Reals<float>& one, const Reals<float>& other,
                              const Words& lower, const Words& upper, u8* to) {
  const auto drawn =
      [](const FloatVector& x, const WordVector& halves)
          __attribute__((always_inline)) { return reinterpret_cast<WordVector>(x) + halves; };
  WordVector first = drawn(one.v[0], lower.v[0]), second = drawn(other.v[0], upper.v[0]);
  if (_mm512_cmp_ps_mask(reinterpret_cast<__m512>(one.v[0]), reinterpret_cast<__m512>(other.v[0]),
                         _CMP_UNORD_Q)) [[unlikely]] {
    const auto quiet = [](const FloatVector& x, const WordVector& found)
                           __attribute__((always_inline)) {
                             const auto is_nan = reinterpret_cast<WordVector>(x != x);
                             return (is_nan & 0x7fc00000u) | (~is_nan & found);
                           };
    first = quiet(one.v[0], first), second = quiet(other.v[0], second);
  }
  store_vector(to, upper_halves(first, second));
}

#else

SPGNN_INLINE void store_drawn(const Reals<float>& x, const Words& drawn, u8* to) {
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
      return reinterpret_cast<__m256i>((is_nan & 0x7fc0u) |
                                       (~is_nan & reinterpret_cast<WordVector>(found)));
    };
    first = quiet(kFirst, first), second = quiet(kSecond, second);
  }
  const auto packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
  std::memcpy(to, &packed, 32);
}

// Floats rounded to bfloat16 by random halves; every NaN becomes the same one.
SPGNN_INLINE void store_drawn(const Reals<float>& one, const Reals<float>& other,
                              const Words& lower, const Words& upper, u8* to) {
  store_drawn(one, lower, to);
  store_drawn(other, upper, to + 2 * kGroup);
}

#endif
#endif

}  // namespace spgnn::SPGNN_ISA
