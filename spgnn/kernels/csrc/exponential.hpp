// Exponentials of numbers that are not positive, written for the compiler to vectorise.
#pragma once

#include <cstdint>
#include <type_traits>

namespace spgnn::SPGNN_ISA {

// exp(x) = power · exp(r): a power of two, |r| ≤ log(2) / 2.
template <class S>
struct ReducedExponent {
  S power, r;
};

template <class S>
inline constexpr S kLeastExponent = std::is_same_v<S, float> ? S(-87) : S(-708);

// Of x ≤ 0, or the least for which the power is no subnormal number.
template <class S>
inline ReducedExponent<S> reduced_exponent(S x) {
  constexpr bool kSingle = std::is_same_v<S, float>;
  using Bits = std::conditional_t<kSingle, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr S kPerLog2 = S(1.4426950408889634074);
  // log 2 in two parts, the first short enough for its product with n to be exact.
  constexpr S kLog2 = kSingle ? S(0.693359375) : S(0.693147180369123816490);
  constexpr S kLog2Rest = kSingle ? S(-2.12194440054690583e-4) : S(1.90821492927058770002e-10);
  // Adding this rounds to an integer, which is then in the lowest bits.
  constexpr S kRound = kSingle ? S(12582912) : S(6755399441055744);
  const S clamped = x < kLeastExponent<S> ? kLeastExponent<S> : x;
  const S shifted = clamped * kPerLog2 + kRound;
  const S n = shifted - kRound;
  const Bits exponent = __builtin_bit_cast(Bits, shifted) << kMantissa;
  return {__builtin_bit_cast(S, exponent + __builtin_bit_cast(Bits, S(1))),
          clamped - n * kLog2 - n * kLog2Rest};
}

// exp(x) for x ≤ 0, to about an ulp; 0 where it would be subnormal. Taylor's series.
template <class S>
inline S exp_of_negative(S x) {
  const auto [power, r] = reduced_exponent<S>(x);
  S sum = 1;
#pragma GCC unroll 16
  for (int k = std::is_same_v<S, float> ? 7 : 13; k > 0; --k) {
    sum = 1 + sum * r * (S(1) / static_cast<S>(k));
  }
  return x < kLeastExponent<S> ? S(0) : sum * power;
}

}  // namespace spgnn::SPGNN_ISA
