// Heads in the lanes of vectors. Rows of features are packed [width][heads], the heads padded to a
// power of two or a multiple of 16: then one vector of weights serves all packs of a row, and a sum
// over the width of every head needs no shuffles but at its end.
#pragma once

#include <type_traits>
#include <utility>

#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

template <class S>
using LanesOf = std::conditional_t<sizeof(S) == 4, FloatVector, DoubleVector>;
template <class S>
inline constexpr int kLanesOf = kVectorBytes / static_cast<int>(sizeof(S));

// As many heads as a vector holds, or all if they are fewer.
template <class S, int kCount>
struct PartOf {
  using type [[gnu::vector_size(kCount * sizeof(S))]] = S;
};
template <class S>
struct PartOf<S, 1> {
  using type = S;
};
template <class S, int kCount>
using Part = typename PartOf<S, kCount>::type;

template <class P, class S>
[[gnu::always_inline]] inline P load_part(const S* p) {
  P part;
  std::memcpy(&part, p, sizeof(part));
  return part;
}

template <class P, class S>
[[gnu::always_inline]] inline void store_part(S* p, const P& part) {
  std::memcpy(p, &part, sizeof(part));
}

// A part again and again, until a vector is full.
template <class S, int kCount, int... lane>
[[gnu::always_inline]] inline LanesOf<S> repeated(Part<S, kCount> part,
                                                  std::integer_sequence<int, lane...>) {
  if constexpr (kCount == 1) {
    return part + LanesOf<S>{};
  } else {
    return __builtin_shufflevector(part, part, (lane % kCount)...);
  }
}
template <class S, int kCount>
[[gnu::always_inline]] inline LanesOf<S> repeated(Part<S, kCount> part) {
  if constexpr (kCount == kLanesOf<S>) {
    return part;
  } else {
    return repeated<S, kCount>(part, std::make_integer_sequence<int, kLanesOf<S>>());
  }
}

template <class S, int kCount, class Vector, int... lane>
[[gnu::always_inline]] inline Part<S, kCount> folded(Vector v,
                                                     std::integer_sequence<int, lane...>) {
  constexpr int kHalf = sizeof...(lane);
  if constexpr (kHalf == 1) {
    return v[0] + v[1];
  } else {
    const auto sum =
        __builtin_shufflevector(v, v, lane...) + __builtin_shufflevector(v, v, (lane + kHalf)...);
    if constexpr (kHalf == kCount) {
      return sum;
    } else {
      return folded<S, kCount>(sum, std::make_integer_sequence<int, kHalf / 2>());
    }
  }
}
// The sums of all lanes that hold the same head.
template <class S, int kCount>
[[gnu::always_inline]] inline Part<S, kCount> folded(LanesOf<S> v) {
  if constexpr (kCount == kLanesOf<S>) {
    return v;
  } else {
    return folded<S, kCount>(v, std::make_integer_sequence<int, kLanesOf<S> / 2>());
  }
}

// Neighbouring features, widened.
template <class S, class T>
[[gnu::always_inline]] inline LanesOf<S> load_wide(const T* p) {
  if constexpr (std::is_same_v<S, T>) {
    return load_vector<LanesOf<S>>(p);
  } else {
    return NarrowBfloat16Pack::load(p).v;
  }
}

// The first lanes of a vector, zeros after them.
template <class S>
[[gnu::always_inline]] inline LanesOf<S> first_lanes(LanesOf<S> v, std::int64_t lanes) {
  using Number = std::conditional_t<sizeof(S) == 4, std::int32_t, std::int64_t>;
  using Numbers [[gnu::vector_size(kVectorBytes)]] = Number;
  alignas(64) static constexpr Number kNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                      8, 9, 10, 11, 12, 13, 14, 15};
  const auto bound = static_cast<Number>(lanes < 16 ? lanes : 16);
  return load_vector<Numbers>(kNumbers) < bound + Numbers{} ? v : LanesOf<S>{};
}

// exp(x) for x ≤ 0 in every lane, as exp_of_negative of segments_kernel.hpp.
template <class S>
[[gnu::always_inline]] inline LanesOf<S> exp_of_negatives(LanesOf<S> x) {
  using V = LanesOf<S>;
  constexpr bool kSingle = sizeof(S) == 4;
  using Words [[gnu::vector_size(kVectorBytes)]] =
      std::conditional_t<kSingle, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr int kDegree = kSingle ? 7 : 13;
  constexpr S kLeast = kSingle ? S(-87) : S(-708);
  constexpr S kPerLog2 = S(1.4426950408889634074);
  constexpr S kLog2 = kSingle ? S(0.693359375) : S(0.693147180369123816490);
  constexpr S kLog2Rest = kSingle ? S(-2.12194440054690583e-4) : S(1.90821492927058770002e-10);
  constexpr S kRound = kSingle ? S(12582912) : S(6755399441055744);
  const auto tiny = x < kLeast;
  const V clamped = tiny ? kLeast + V{} : x;
  const V shifted = clamped * kPerLog2 + kRound;
  const V n = shifted - kRound;
  const V r = clamped - n * kLog2 - n * kLog2Rest;
  V sum = V{} + S(1);
#pragma GCC unroll 16
  for (int k = kDegree; k > 0; --k) sum = sum * (r * (S(1) / static_cast<S>(k))) + S(1);
  const auto power = reinterpret_cast<V>((reinterpret_cast<Words>(shifted) << kMantissa) +
                                         reinterpret_cast<Words>(V{} + S(1)));
  return tiny ? V{} : sum * power;
}

}  // namespace spgnn::SPGNN_ISA
