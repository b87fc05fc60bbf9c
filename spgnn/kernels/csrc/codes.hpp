// Sixteen codes of one, two, four or eight bits each, side by side in bytes, and back.
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
#elif defined(__x86_64__)
  const auto part = [&](auto i) __attribute__((always_inline)) {
    return reinterpret_cast<__m128i>(words.v[i]);
  };
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
#elif defined(__x86_64__)
    const __m128i zero = _mm_setzero_si128(), all = reinterpret_cast<__m128i>(bytes);
    const auto halves = i < 2 ? _mm_unpacklo_epi8(all, zero) : _mm_unpackhi_epi8(all, zero);
    found.v[i] = reinterpret_cast<WordVector>(i % 2 ? _mm_unpackhi_epi16(halves, zero)
                                                    : _mm_unpacklo_epi16(halves, zero));
#else
    found.v[i] = by_lane<WordVector>(
        [&](int lane) { return std::uint32_t{bytes[i * Words::kLanes + lane]}; });
#endif
  });
  return found;
}

// What pack_codes wrote, as words.
template <int kBits>
SPGNN_INLINE Words unpack_codes(const std::uint8_t* from) {
  if constexpr (kBits == 8) return as_words(load_vector<Bytes>(from));
#if defined(__AVX2__)
  Words found;
  for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
    // The lanes of a vector need a word, or two of four bits each.
    constexpr int kOfVector = Words::kLanes * kBits, kFirst = i * kOfVector;
    WordVector words;
    if constexpr (kOfVector == 64) {
      std::uint64_t both;
      std::memcpy(&both, from, 8);
      const auto all = reinterpret_cast<WordVector>(LongVector{} + static_cast<std::int64_t>(both));
      words = __builtin_shuffle(
          all, by_lane<WordVector>([&](int lane) { return static_cast<unsigned>(lane / 8); }));
    } else {
      std::uint32_t word = 0;
      std::memcpy(&word, from + kFirst / 32 * 4, kBits == 1 ? 2 : 4);
      words = WordVector{} + word;
    }
    const auto shifts = by_lane<WordVector>(
        [](int lane) { return static_cast<unsigned>((kFirst + lane * kBits) % 32); });
    found.v[i] = (words >> shifts) & ((1u << kBits) - 1);
  });
  return found;
#else
  std::uint8_t codes[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    codes[i] =
        static_cast<std::uint8_t>(from[i * kBits / 8] >> (i * kBits % 8) & ((1 << kBits) - 1));
  }
  return as_words(load_vector<Bytes>(codes));
#endif
}

}  // namespace spgnn::SPGNN_ISA
