// Plain data for rows in few bits (see types.hpp for why there are no functions here).
#pragma once

#include <cstdint>

#include "types.hpp"

namespace spgnn {

template <class T>
struct QuantiseOperands {
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  std::int64_t count;  // of packed rows
  Numbers rows;        // of x
  int bits;            // 16, 8, 4, 2 or 1
  const std::int64_t* ids;
  std::uint64_t seed;  // mix64(key)
  bool stochastic;
  T* residual;  // or null
  std::int64_t residual_stride;
  std::uint8_t* packed;
};

template <class T>
struct DequantiseOperands {
  const std::uint8_t* packed;
  std::int64_t columns;
  std::int64_t count;
  Numbers rows;  // of y
  int bits;
  T* y;
  std::int64_t y_stride;
};

// Sum of (arrived − x)², sum of x².
struct Lost {
  double error, size;
};

}  // namespace spgnn
