// Plain data that the drivers and the instruction-set-specific kernels share. No functions here:
// code compiled for AVX-512 must never stand in for the same inline function of another file.
#pragma once

#include <cstdint>

namespace spgnn {

// Storage only; arithmetic on it happens in float.
struct Bfloat16 {
  std::uint16_t bits;
};

template <class T>
struct SumOf {
  using type = T;
};
template <>
struct SumOf<Bfloat16> {
  using type = float;
};
template <class T>
using Sum = typename SumOf<T>::type;  // the type in which sums of T are taken

// Y = diag(row_scale) B diag(col_scale) X, or Y += the same. Null means all ones.
template <class T, class Index>
struct SpmmOperands {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  const Sum<T>* values;
  std::int64_t value_stride;  // from the value of a nonzero to that of the next
  const Sum<T>* row_scale;
  const Sum<T>* col_scale;
  const T* x;
  std::int64_t x_rows;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  bool accumulate;
  bool near = false;  // whether X is read without fetching ahead (see spmm.hpp)
};

// products[e] = row_scale[i] · col_scale[j] · <g[i], x[j]> for nonzero e in row i and column j.
template <class T, class Index>
struct SddmmOperands {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  const Sum<T>* row_scale;
  const Sum<T>* col_scale;
  const T* g;
  std::int64_t g_stride;
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  Sum<T>* products;
  std::int64_t product_stride;  // as value_stride
};

// Matrices beside each other that share a pattern: those of x are x_stride elements apart, those of
// the other dense matrix y_stride; their values, or products, are neighbours.
struct Heads {
  std::int64_t count, x_stride, y_stride;
};

// A list of numbers of one of two widths; without either, number i is i.
struct Numbers {
  const std::int32_t* narrow;
  const std::int64_t* wide;
};

// Some rows, nonzeros or columns.
struct Span {
  std::int64_t begin, end;
};

// Index: of the list of row numbers (gather, scatter) or vertex ids (dropout).
template <class T, class Index>
struct RowOperands {
  const T* x;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  const Index* rows;
  std::int64_t count;
  const Sum<T>* scale;  // one factor per listed row, or null
};

struct DropoutRule {
  std::uint64_t seed;       // mix64(key)
  std::uint64_t threshold;  // dropped where the 32-bit hash is below it
  double factor;            // 1 / (1 - p)
};

}  // namespace spgnn
