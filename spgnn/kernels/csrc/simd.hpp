// Packs of lanes for the instruction set this file is compiled for, on GCC/Clang vector types.
// Everything lives in a namespace named after the instruction set (see types.hpp for why).
#pragma once

#include <cstring>

#include "types.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spgnn::SPGNN_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

using FloatVector [[gnu::vector_size(kVectorBytes)]] = float;
using DoubleVector [[gnu::vector_size(kVectorBytes)]] = double;
using WordVector [[gnu::vector_size(kVectorBytes)]] = std::uint32_t;
using LongVector [[gnu::vector_size(kVectorBytes)]] = std::int64_t;
using HalfVector [[gnu::vector_size(kVectorBytes / 2)]] = std::uint16_t;

template <class Vector, class T>
inline Vector load_vector(const T* p) {
  Vector v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All ones in as many 32-bit words as are wanted, zeros after them.
inline __m256i first_words(int count) {
  alignas(32) static constexpr std::int32_t kOnes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return load_vector<__m256i>(kOnes + 8 - count);
}
#endif

// The first lanes of a vector, zeros after them; reads no byte beyond.
template <class Vector, class T>
inline Vector load_vector(const T* p, int lanes) {
  Vector v{};
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    auto mask = static_cast<__mmask16>((1u << lanes) - 1);
    v = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(mask, p));
  } else if constexpr (sizeof(T) == 8) {
    auto mask = static_cast<__mmask8>((1u << lanes) - 1);
    v = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi64(mask, p));
  } else {
    auto mask = static_cast<__mmask32>((std::uint64_t{1} << lanes) - 1);
    v = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi16(mask, p));
  }
#else
  const std::size_t bytes = static_cast<std::size_t>(lanes) * sizeof(T);
#if defined(__AVX2__)
  if (bytes % 4 == 0) {
    const auto words = first_words(static_cast<int>(bytes / 4));
    return reinterpret_cast<Vector>(_mm256_maskload_epi32(reinterpret_cast<const int*>(p), words));
  }
#endif
  std::memcpy(&v, p, bytes);
#endif
  return v;
}

template <class Vector, class T>
inline void store_vector(T* p, Vector v) {
  std::memcpy(p, &v, sizeof(v));
}

template <class Vector, class T>
inline void store_vector(T* p, Vector v, int lanes) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>((1u << lanes) - 1),
                             reinterpret_cast<__m512i>(v));
  } else if constexpr (sizeof(T) == 8) {
    _mm512_mask_storeu_epi64(p, static_cast<__mmask8>((1u << lanes) - 1),
                             reinterpret_cast<__m512i>(v));
  } else {
    _mm512_mask_storeu_epi16(p, static_cast<__mmask32>((std::uint64_t{1} << lanes) - 1),
                             reinterpret_cast<__m512i>(v));
  }
#else
  std::memcpy(p, &v, static_cast<std::size_t>(lanes) * sizeof(T));
#endif
}

// The same for half a vector of 16-bit numbers.
inline HalfVector load_halves(const void* p, int lanes) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>((1u << lanes) - 1);
  return reinterpret_cast<HalfVector>(_mm256_maskz_loadu_epi16(mask, p));
#else
  HalfVector v{};
  std::memcpy(&v, p, static_cast<std::size_t>(lanes) * 2);
  return v;
#endif
}

// GCC 12 takes four instructions for a conversion that is one, and calls the form without a mask
// uninitialised.
inline WordVector widen_halves(HalfVector v) {
#if defined(__AVX512F__)
  constexpr __mmask16 kAll = 0xffff;
  return reinterpret_cast<WordVector>(
      _mm512_maskz_cvtepu16_epi32(kAll, reinterpret_cast<__m256i>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<WordVector>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, WordVector);
#endif
}

inline void store_halves(void* p, HalfVector v, int lanes) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>((1u << lanes) - 1);
  _mm256_mask_storeu_epi16(p, mask, reinterpret_cast<__m256i>(v));
#else
  std::memcpy(p, &v, static_cast<std::size_t>(lanes) * 2);
#endif
}

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorRegisters = 16;
#endif

// Keeps a load apart from the operation on what it loads: together they wait in the scheduler of
// the vector unit, which has few places (with values and 16 columns, reddit-sayit took 1.2 times as
// long).
template <class Vector>
[[gnu::always_inline]] inline Vector loaded(Vector v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
  return v;
}

// Keeps a product apart from the sum that it goes into: of two products that are added, compilers
// fuse whichever they like, and bits would depend on what else a loop does.
template <class Vector>
[[gnu::always_inline]] inline Vector rounded(Vector v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

// Pairwise, always in the same order.
template <class T, class Vector>
inline T sum_lanes(Vector v) {
  constexpr int kLanes = sizeof(Vector) / sizeof(T);
  T lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// A pack holds kLanes neighbouring elements of T, widened to Sum<T>.
template <class T, class Vector>
struct NativePack {
  using Element = T;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kVectors = 1;
  Vector v{};

  static NativePack load(const T* p) { return {load_vector<Vector>(p)}; }
  static NativePack load(const T* p, int lanes) { return {load_vector<Vector>(p, lanes)}; }
  void store(T* p) const { store_vector(p, v); }
  void store(T* p, int lanes) const { store_vector(p, v, lanes); }

  void add(const NativePack& x) { v += x.v; }
  void add_product(T w, const NativePack& x) { v += w * loaded(x.v); }
  void add_product(const NativePack& x, const NativePack& y) { v += x.v * y.v; }
  void scale(T w) { v = rounded(w * loaded(v)); }
  T total() const { return sum_lanes<T>(v); }
};

// Round to nearest, ties to even; every NaN becomes the same one. The
// low halves of the words are rubbish.
inline WordVector round_to_bfloat16(FloatVector v) {
  auto bits = reinterpret_cast<WordVector>(v);
  WordVector rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  auto is_nan = reinterpret_cast<WordVector>(v != v);
  return (is_nan & 0x7fc00000u) | (~is_nan & rounded);
}

// Two bfloat16 in each 32-bit word: the even ones are its low half, the odd ones its high half.
// Keeping them in two vectors widens with one shift and one mask, without shuffles.
struct Bfloat16Pack {
  using Element = Bfloat16;
  static constexpr int kLanes = kVectorBytes / 2;
  static constexpr int kVectors = 2;
  FloatVector even{}, odd{};

  static Bfloat16Pack widen(WordVector raw) {
    raw = loaded(raw);  // or compilers load twice, once for each operation
    return {reinterpret_cast<FloatVector>(raw << 16),
            reinterpret_cast<FloatVector>(raw & 0xffff0000u)};
  }
  static Bfloat16Pack load(const Bfloat16* p) { return widen(load_vector<WordVector>(p)); }
  static Bfloat16Pack load(const Bfloat16* p, int lanes) {
    return widen(load_vector<WordVector>(p, lanes));
  }

  WordVector narrow() const {
    return (round_to_bfloat16(even) >> 16) | (round_to_bfloat16(odd) & 0xffff0000u);
  }
  void store(Bfloat16* p) const { store_vector(p, narrow()); }
  void store(Bfloat16* p, int lanes) const { store_vector(p, narrow(), lanes); }
  void store(float* p) const { store(p, kLanes); }
  void store(float* p, int lanes) const {
    for (int i = 0; i < lanes; ++i) p[i] = i % 2 == 0 ? even[i / 2] : odd[i / 2];
  }

  void add(const Bfloat16Pack& x) { even += x.even, odd += x.odd; }
  void add_product(float w, const Bfloat16Pack& x) { even += w * x.even, odd += w * x.odd; }
  void add_product(const Bfloat16Pack& x, const Bfloat16Pack& y) {
    even += x.even * y.even, odd += x.odd * y.odd;
  }
  void scale(float w) { even = rounded(w * even), odd = rounded(w * odd); }
  float total() const { return sum_lanes<float>(even + odd); }
};

// Half as many bfloat16, for matrices too narrow to fill the other pack: its loads would reach into
// the next cache line, and half of its sums would be of nothing.
struct NarrowBfloat16Pack {
  using Element = Bfloat16;
  static constexpr int kLanes = kVectorBytes / 4;
  static constexpr int kVectors = 1;
  FloatVector v{};

  static NarrowBfloat16Pack widen(HalfVector raw) {
    return {reinterpret_cast<FloatVector>(widen_halves(raw) << 16)};
  }
  static NarrowBfloat16Pack load(const Bfloat16* p) { return widen(load_vector<HalfVector>(p)); }
  static NarrowBfloat16Pack load(const Bfloat16* p, int lanes) {
    return widen(load_halves(p, lanes));
  }
  HalfVector narrow() const {
    return __builtin_convertvector(round_to_bfloat16(v) >> 16, HalfVector);
  }
  void store(Bfloat16* p) const { store_vector(p, narrow()); }
  void store(Bfloat16* p, int lanes) const { store_halves(p, narrow(), lanes); }
  void store(float* p) const { store_vector(p, v); }
  void store(float* p, int lanes) const { store_vector(p, v, lanes); }

  void add(const NarrowBfloat16Pack& x) { v += x.v; }
  void add_product(float w, const NarrowBfloat16Pack& x) { v += w * x.v; }
  void scale(float w) { v = rounded(w * v); }
};

// A vector of numbers in which sums are taken, and of how many.
template <class S>
using LanesOf = std::conditional_t<sizeof(S) == 4, FloatVector, DoubleVector>;
template <class S>
inline constexpr int kLanesOf = kVectorBytes / static_cast<int>(sizeof(S));

template <class T>
using Pack =
    std::conditional_t<std::is_same_v<T, Bfloat16>, Bfloat16Pack, NativePack<T, LanesOf<T>>>;

// Neighbouring numbers, widened: a whole vector, or the first lanes and zeros after them.
template <class T>
[[gnu::always_inline]] inline LanesOf<Sum<T>> load_wide(const T* p, int lanes = kLanesOf<Sum<T>>) {
  using Vector = LanesOf<Sum<T>>;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return lanes == kLanesOf<float> ? NarrowBfloat16Pack::load(p).v
                                    : NarrowBfloat16Pack::load(p, lanes).v;
  } else {
    return lanes == kLanesOf<T> ? load_vector<Vector>(p) : load_vector<Vector>(p, lanes);
  }
}

// Asking for memory before it is needed.

inline constexpr int kCacheLine = 64;

constexpr int lines_of(std::int64_t bytes) {
  return static_cast<int>((bytes + kCacheLine - 1) / kCacheLine);
}

// Functions that do nothing but fetch must be inlined: GCC takes them to have no effect, and drops
// calls of them.
[[gnu::always_inline]] inline void prefetch_lines(const void* p, int lines) {
  for (int i = 0; i < lines; ++i) {
    __builtin_prefetch(static_cast<const char*>(p) + i * kCacheLine);
  }
}

// Rows that do not begin at a cache line may reach into one more.
[[gnu::always_inline]] inline void prefetch_last_line(const void* p, std::int64_t bytes) {
  __builtin_prefetch(static_cast<const char*>(p) + bytes - 1);
}

// A place in an array, which may lie beyond its end.
class Stream {
 public:
  Stream() = default;
  template <class Element>
  Stream(const Element* array, std::int64_t from)
      : address_(reinterpret_cast<std::uintptr_t>(array) + from * sizeof(Element)),
        bytes_(sizeof(Element)) {}

  [[gnu::always_inline]] void prefetch(std::int64_t e) const {
    // Fetching never faults, but a pointer past an array must not even be computed.
    __builtin_prefetch(reinterpret_cast<const void*>(  // NOLINT(performance-no-int-to-ptr)
        address_ + static_cast<std::uintptr_t>(e) * bytes_));
  }

 private:
  std::uintptr_t address_ = 0;
  std::uintptr_t bytes_ = 0;
};

}  // namespace spgnn::SPGNN_ISA
