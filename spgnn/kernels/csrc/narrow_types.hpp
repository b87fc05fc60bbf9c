// Plain data for dense products with a matrix of few rows (see types.hpp for why there are no
// functions here).
#pragma once

#include <cstdint>

namespace spgnn {

// Most rows of W, that is columns of the result.
inline constexpr std::int64_t kMostNarrow = 32;

// z[i, j] = Σ_k x[i, k] w[k, j] for j < padded: w is transposed, and padded with zeros.
struct NarrowProduct {
  const float* x;
  std::int64_t x_stride;
  std::int64_t count;  // of rows
  std::int64_t depth;
  const float* w;  // [depth, padded]
  std::int64_t padded;
  float* z;  // [count, columns]
  std::int64_t columns;
};

// The sum over rows i of g[i, j] x[i, k], for j < columns and k < depth.
struct NarrowGradient {
  const float* g;
  std::int64_t g_stride;
  const float* x;
  std::int64_t x_stride;
  std::int64_t count;
  std::int64_t columns;
  std::int64_t depth;
};

}  // namespace spgnn
