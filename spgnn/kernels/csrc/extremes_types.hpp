// Plain data for the largest or smallest of listed rows (see types.hpp for why there are no
// functions here).
#pragma once

#include <cstdint>

#include "types.hpp"

namespace spgnn {

// out[i, c] = max or min of x[j, c] over the nonzeros (i, j), arg[i, c] = first_column + the first
// j that has it. What is no number comes before all that are; rows without nonzeros have 0 and −1.
template <class T, class Index>
struct ExtremeOperands {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  bool largest;
  bool begun;  // whether out and arg are those of blocks before this one
  std::int64_t first_column;
  T* out;
  std::int64_t out_stride;
  std::int32_t* narrow_arg;  // [rows, columns], or null:
  std::int64_t* wide_arg;
};

// dx[arg[i, c], c] += g[i, c] in the order of i, where arg is not negative.
template <class T>
struct ExtremeAdjoint {
  const T* g;
  std::int64_t g_stride;
  const std::int32_t* narrow_arg;
  const std::int64_t* wide_arg;
  std::int64_t rows;
  std::int64_t columns;
  T* dx;  // [columns of A, columns]
};

}  // namespace spgnn
