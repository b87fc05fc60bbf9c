// Plain data for dense products of many rows with a matrix of few (see types.hpp for why there are
// no functions here).
#pragma once

#include <cstdint>

namespace spgnn {

// A tile of sums that stays in registers: so many rows of so many vectors.
inline constexpr std::int64_t kGemmRows = 6, kGemmVectors = 2;

// z[i, j] = Σ_k x[i, k] w[k, j] for j < padded, with zeros from `columns` on. w lies in panels of a
// tile's columns, the last of which may be half as wide: [depth, columns of the panel] each.
struct GemmProduct {
  const float* x;
  std::int64_t x_stride;
  std::int64_t count;  // of rows
  std::int64_t depth;
  const float* w;
  std::int64_t padded;
  float* z;  // [count, columns]
  std::int64_t columns;
};

// The sum over rows i of g[i, j] x[i, k], for j < columns and k < depth.
struct GemmGradient {
  const float* g;
  std::int64_t g_stride;
  const float* x;
  std::int64_t x_stride;
  std::int64_t count;
  std::int64_t columns;
  std::int64_t depth;
  std::int64_t panel;        // rows that are summed up at a time
  std::int64_t sums_height;  // columns and depth, whole tiles of them
  std::int64_t sums_stride;
};

}  // namespace spgnn
