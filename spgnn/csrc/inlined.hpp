// Short names of integers, and small functions that code of every instruction set shares. Always
// inlined: what was compiled for AVX-512 must never stand in for the same function of another file.
#pragma once

#include <cstdint>

using i64 = std::int64_t;
using i32 = std::int32_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u16 = std::uint16_t;
using u8 = std::uint8_t;

namespace spgnn {

inline constexpr u64 kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), and its next number from a state.
[[gnu::always_inline]] inline u64 mix64(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
[[gnu::always_inline]] inline u64 mixed(u64 z) { return mix64(z + kGolden); }

// The first number of [low, high) that `holds`, as all behind it do; `high` if there is none.
template <class Holds>
[[gnu::always_inline]] inline i64 first_where(i64 low, i64 high, const Holds& holds) {
  while (low < high) {
    const i64 middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace spgnn
