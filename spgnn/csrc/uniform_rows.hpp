// Numbers in [0, 1) that are functions of a row's id and of a column, as spgnn/hashing.py has them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel.hpp"

namespace spgnn {

// The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
inline std::uint64_t mixed(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// out[row, c] = mixed(mixed(ids[row] ^ streams[c]) + columns[c]) as a float in [0, 1).
inline void uniform_rows(const std::int64_t* ids, std::int64_t rows, const std::uint64_t* streams,
                         const std::uint64_t* columns, std::int64_t width, float* out,
                         int threads) {
  constexpr std::int64_t kRows = 4096;
  const auto chunk = [&](std::int64_t number, int) {
    const std::int64_t end = std::min(rows, (number + 1) * kRows);
    for (std::int64_t row = number * kRows; row < end; ++row) {
      float* y = out + row * width;
      for (std::int64_t c = 0; c < width; ++c) {
        const auto id = static_cast<std::uint64_t>(ids[row]);
        const std::uint64_t z = mixed(mixed(id ^ streams[c]) + columns[c]);
        y[c] = static_cast<float>(static_cast<double>(z >> 11) * 0x1p-53);
      }
    }
  };
  parallel_chunks((rows + kRows - 1) / kRows, threads, chunk);
}

}  // namespace spgnn
