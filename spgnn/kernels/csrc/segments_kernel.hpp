// The inner loops over the nonzeros of one row: softmax, and sums that go back to every nonzero.
// Written for the compiler to vectorise: number i is added to lane i % lanes, whatever the heads.
#pragma once

#include <type_traits>

#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr std::int64_t kLeastLanes = 16;

// A multiple of the heads, so that all of a lane's numbers belong to one.
inline std::int64_t lanes_of(std::int64_t heads) {
  return heads * (heads < kLeastLanes ? kLeastLanes / heads : 1);
}

// exp(x) for x ≤ 0, to about an ulp; 0 where it would be subnormal. exp(x) = 2ⁿ exp(r) with n the
// integer next to x / log 2; Taylor's series for |r| ≤ log(2) / 2.
template <class S>
inline S exp_of_negative(S x) {
  constexpr bool kSingle = std::is_same_v<S, float>;
  using Bits = std::conditional_t<kSingle, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr int kDegree = kSingle ? 7 : 13;
  constexpr S kLeast = kSingle ? S(-87) : S(-708);
  constexpr S kPerLog2 = S(1.4426950408889634074);
  // log 2 in two parts, the first short enough for its product with n to be exact.
  constexpr S kLog2 = kSingle ? S(0.693359375) : S(0.693147180369123816490);
  constexpr S kLog2Rest = kSingle ? S(-2.12194440054690583e-4) : S(1.90821492927058770002e-10);
  // Adding this rounds to an integer, which is then in the lowest bits.
  constexpr S kRound = kSingle ? S(12582912) : S(6755399441055744);
  const S clamped = x < kLeast ? kLeast : x;
  const S shifted = clamped * kPerLog2 + kRound;
  const S n = shifted - kRound;
  const S r = clamped - n * kLog2 - n * kLog2Rest;
  S sum = 1;
#pragma GCC unroll 16
  for (int k = kDegree; k > 0; --k) sum = 1 + sum * r * (S(1) / static_cast<S>(k));
  const Bits exponent = __builtin_bit_cast(Bits, shifted) << kMantissa;
  const S power = __builtin_bit_cast(S, exponent + __builtin_bit_cast(Bits, S(1)));
  return x < kLeast ? S(0) : sum * power;
}

// f(number, lane) for each.
template <class Function>
[[gnu::always_inline]] inline void for_each_lane(std::int64_t count, std::int64_t lanes,
                                                 Function f) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < lanes; ++j) f(i + j, j);
  }
#pragma GCC ivdep
  for (std::int64_t j = 0; j < count - i; ++j) f(i + j, j);
}

// What each head has, in all of its lanes.
template <class S>
inline void repeat(S* sums, std::int64_t heads, std::int64_t lanes) {
  for (std::int64_t j = heads; j < lanes; ++j) sums[j] = sums[j - heads];
}

template <class S>
inline void add_lanes(S* sums, std::int64_t heads, std::int64_t lanes) {
  for (std::int64_t j = heads; j < lanes; ++j) sums[j % heads] += sums[j];
}

template <class T>
void summarise(const T* x, std::int64_t count, std::int64_t heads, Sum<T>* largest, Sum<T>* sum) {
  using S = Sum<T>;
  const std::int64_t lanes = lanes_of(heads);
  for (std::int64_t j = 0; j < lanes; ++j) largest[j] = -static_cast<S>(__builtin_inf());
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) {
    const S number = widen(x[i]);
    largest[j] = number > largest[j] ? number : largest[j];
  });
  for (std::int64_t j = heads; j < lanes; ++j) {
    S& of_head = largest[j % heads];
    of_head = largest[j] > of_head ? largest[j] : of_head;
  }
  for (std::int64_t j = 0; j < heads; ++j) {
    // Nothing but −∞: its exponentials are zeros, not those of −∞ + ∞.
    if (largest[j] == -static_cast<S>(__builtin_inf())) largest[j] = 0;
  }
  repeat(largest, heads, lanes);
  for (std::int64_t j = 0; j < lanes; ++j) sum[j] = 0;
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) {
    sum[j] += exp_of_negative(widen(x[i]) - largest[j]);
  });
  add_lanes(sum, heads, lanes);
}

template <class T>
void exponentials(const T* x, std::int64_t count, std::int64_t heads, Sum<T>* largest,
                  Sum<T>* factor, T* y) {
  const std::int64_t lanes = lanes_of(heads);
  repeat(largest, heads, lanes);
  repeat(factor, heads, lanes);
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) {
    y[i] = narrow<T>(exp_of_negative(widen(x[i]) - largest[j]) * factor[j]);
  });
}

template <class T>
void sum_products(const T* a, const T* b, std::int64_t count, std::int64_t heads, Sum<T>* sum) {
  const std::int64_t lanes = lanes_of(heads);
  for (std::int64_t j = 0; j < lanes; ++j) sum[j] = 0;
  if (b) {
    for_each_lane(count, lanes,
                  [=](std::int64_t i, std::int64_t j) { sum[j] += widen(a[i]) * widen(b[i]); });
  } else {
    for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) { sum[j] += widen(a[i]); });
  }
  add_lanes(sum, heads, lanes);
}

template <class T>
void spread(std::int64_t count, std::int64_t heads, Sum<T>* sum, T* y) {
  const std::int64_t lanes = lanes_of(heads);
  repeat(sum, heads, lanes);
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) { y[i] = narrow<T>(sum[j]); });
}

}  // namespace spgnn::SPGNN_ISA
