// Conversions between storage types and the types of their sums, one number at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "types.hpp"

namespace spgnn {

template <class T>
Sum<T> widen(T x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
  } else {
    return x;
  }
}

// Rounds to nearest, ties to even; a NaN stays one.
template <class T>
T narrow(Sum<T> x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (x != x) return {static_cast<std::uint16_t>((bits | 0x400000u) >> 16)};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  } else {
    return x;
  }
}

}  // namespace spgnn
