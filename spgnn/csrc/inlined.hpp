// Small functions that code of every instruction set shares. Always inlined: what was compiled for
// AVX-512 must never stand in for the same function of another file.
#pragma once

#include <cstdint>

namespace spgnn {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), and its next number from a state.
[[gnu::always_inline]] inline std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
[[gnu::always_inline]] inline std::uint64_t mixed(std::uint64_t z) { return mix64(z + kGolden); }

// The first number of [low, high) that `holds`, as all behind it do; `high` if there is none.
template <class Holds>
[[gnu::always_inline]] inline std::int64_t first_where(std::int64_t low, std::int64_t high,
                                                       const Holds& holds) {
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace spgnn
