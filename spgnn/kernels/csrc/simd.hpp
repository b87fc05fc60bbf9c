// Packs of lanes for an instruction set, on GCC/Clang vector types, in a namespace of its name.
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
using WordVector [[gnu::vector_size(kVectorBytes)]] = u32;
using LongVector [[gnu::vector_size(kVectorBytes)]] = i64;
using HalfVector [[gnu::vector_size(kVectorBytes / 2)]] = u16;

template <class Vector, class T> inline Vector load_vector(const T* p) {
  Vector v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All ones in as many 32-bit words as are wanted, zeros after them.
inline __m256i first_words(int count) {
  alignas(32) static constexpr i32 kOnes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return load_vector<__m256i>(kOnes + 8 - count);
}
#endif

// The first lanes of a vector, zeros after them; reads no byte beyond.
template <class Vector, class T> inline Vector load_vector(const T* p, int lanes) {
  Vector v{};
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    auto mask = static_cast<__mmask16>((1u << lanes) - 1);
    v = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(mask, p));
  } else if constexpr (sizeof(T) == 8) {
    auto mask = static_cast<__mmask8>((1u << lanes) - 1);
    v = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi64(mask, p));
  } else {
    auto mask = static_cast<__mmask32>((u64{1} << lanes) - 1);
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

template <class Vector, class T> inline void store_vector(T* p, Vector v) {
  std::memcpy(p, &v, sizeof(v));
}

template <class Vector, class T> inline void store_vector(T* p, Vector v, int lanes) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>((1u << lanes) - 1),
                             reinterpret_cast<__m512i>(v));
  } else if constexpr (sizeof(T) == 8) {
    _mm512_mask_storeu_epi64(p, static_cast<__mmask8>((1u << lanes) - 1),
                             reinterpret_cast<__m512i>(v));
  } else {
    _mm512_mask_storeu_epi16(p, static_cast<__mmask32>((u64{1} << lanes) - 1),
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

// GCC 12 takes four instructions for this one, and calls the form without a mask uninitialised.
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

// Keeps a load apart from what uses it: together they wait in the vector unit's scheduler (with
// values and 16 columns, reddit-sayit took 1.2 times as long).
template <class Vector> [[gnu::always_inline]] inline Vector loaded(Vector v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
  return v;
}

// Keeps a product apart from its sum: compilers fuse either of two, and bits would depend on it.
template <class Vector> [[gnu::always_inline]] inline Vector rounded(Vector v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

// Pairwise, always in the same order.
template <class T, class Vector> inline T sum_lanes(Vector v) {
  constexpr int kLanes = sizeof(Vector) / sizeof(T);
  T lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// A pack holds kLanes neighbouring elements of T, widened to Sum<T>.
template <class T, class Vector> struct NativePack {
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

// Round to nearest, ties to even; NaNs become one. Low halves of the words are rubbish.
inline WordVector round_to_bfloat16(FloatVector v) {
  auto bits = reinterpret_cast<WordVector>(v);
  WordVector rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  auto is_nan = reinterpret_cast<WordVector>(v != v);
  return (is_nan & 0x7fc00000u) | (~is_nan & rounded);
}

// Two bfloat16 in each word, even ones in low halves: widened by one shift and one mask.
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

// Half as many, for narrow matrices: the other pack would load beyond, and sum nothing.
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
template <class S> using LanesOf = std::conditional_t<sizeof(S) == 4, FloatVector, DoubleVector>;
template <class S> inline constexpr int kLanesOf = kVectorBytes / static_cast<int>(sizeof(S));

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

constexpr int lines_of(i64 bytes) {
  return static_cast<int>((bytes + kCacheLine - 1) / kCacheLine);
}

// Inlined, for GCC drops calls of functions that do nothing but fetch.
[[gnu::always_inline]] inline void prefetch_lines(const void* p, int lines) {
  for (int i = 0; i < lines; ++i) {
    __builtin_prefetch(static_cast<const char*>(p) + i * kCacheLine);
  }
}

// Rows that do not begin at a cache line may reach into one more.
[[gnu::always_inline]] inline void prefetch_last_line(const void* p, i64 bytes) {
  __builtin_prefetch(static_cast<const char*>(p) + bytes - 1);
}

// A place in an array, which may lie beyond its end.
class Stream {
 public:
  Stream() = default;
  template <class Element>
  Stream(const Element* array, i64 from)
      : address_(reinterpret_cast<std::uintptr_t>(array) + from * sizeof(Element)),
        bytes_(sizeof(Element)) {}

  [[gnu::always_inline]] void prefetch(i64 e) const {
    // Fetching never faults, but a pointer past an array must not even be computed.
    __builtin_prefetch(reinterpret_cast<const void*>(  // NOLINT(performance-no-int-to-ptr)
        address_ + static_cast<std::uintptr_t>(e) * bytes_));
  }

 private:
  std::uintptr_t address_ = 0;
  std::uintptr_t bytes_ = 0;
};

// Exponentials of numbers that are not positive, written for the compiler to vectorise.

// exp(x) = power · exp(r): a power of two, |r| ≤ log(2) / 2. V: S, or a vector of S.
template <class V> struct ReducedExponent {
  V power, r;
};

template <class S> inline constexpr S kLeastExponent = std::is_same_v<S, float> ? S(-87) : S(-708);

// Of x ≤ 0, or the least for which the power is no subnormal number.
template <class S, class V> [[gnu::always_inline]] inline ReducedExponent<V> reduced_exponent(V x) {
  constexpr bool kSingle = std::is_same_v<S, float>;
  using Word = std::conditional_t<kSingle, u32, u64>;
  using Bits = std::conditional_t<std::is_same_v<V, S>, Word, decltype(V{} < V{})>;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr S kPerLog2 = S(1.4426950408889634074);
  // log 2 in two parts, the first short enough for its product with n to be exact.
  constexpr S kLog2 = kSingle ? S(0.693359375) : S(0.693147180369123816490);
  constexpr S kLog2Rest = kSingle ? S(-2.12194440054690583e-4) : S(1.90821492927058770002e-10);
  // Adding this rounds to an integer, which is then in the lowest bits.
  constexpr S kRound = kSingle ? S(12582912) : S(6755399441055744);
  const V clamped = x < kLeastExponent<S> ? kLeastExponent<S> + V{} : x;
  const V shifted = clamped * kPerLog2 + kRound;
  const V n = shifted - kRound;
  const Bits exponent = __builtin_bit_cast(Bits, shifted) << kMantissa;
  return {__builtin_bit_cast(V, exponent + __builtin_bit_cast(Bits, S(1) + V{})),
          clamped - n * kLog2 - n * kLog2Rest};
}

// exp(x) for x ≤ 0, to about an ulp; 0 where it would be subnormal. Taylor's series.
template <class S, class V = S> [[gnu::always_inline]] inline V exp_of_negative(V x) {
  constexpr double kFactorials[] = {
      1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800., 39916800., 479001600., 6227020800.};
  constexpr int kDegree = std::is_same_v<S, float> ? 7 : 13;
  const auto [power, r] = reduced_exponent<S>(x);
  V sum = V{} + S(1 / kFactorials[kDegree]);
#pragma GCC unroll 16
  for (int k = kDegree - 1; k >= 0; --k) sum = sum * r + S(1 / kFactorials[k]);
  return x < kLeastExponent<S> ? V{} : sum * power;
}

}  // namespace spgnn::SPGNN_ISA
