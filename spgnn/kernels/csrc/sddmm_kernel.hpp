// Products of rows of two dense matrices where a sparse one has nonzeros (SDDMM).
#pragma once

#include "spmm_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T>
inline Sum<T> dot(const T* x, const T* g, std::int64_t columns) {
  constexpr int kLanes = Pack<T>::kLanes;
  Pack<T> sum;
  std::int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    sum.add_product(Pack<T>::load(x + c), Pack<T>::load(g + c));
  }
  if (c < columns) {
    const int rest = static_cast<int>(columns - c);
    sum.add_product(Pack<T>::load(x + c, rest), Pack<T>::load(g + c, rest));
  }
  return sum.total();
}

// The row that holds a nonzero.
template <class T, class Index>
std::int64_t row_of(const SddmmOperands<T, Index>& a, std::int64_t nonzero) {
  std::int64_t low = 0, high = a.rows - 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (a.indptr[middle + 1] <= nonzero) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// At most kBlock nonzeros.
template <class T, class Index>
void sddmm(const SddmmOperands<T, Index>& a, Span nonzeros) {
  const T* x_rows[kBlock + kPointersAhead];
  point_at_rows(a, nonzeros, a.x, x_rows);
  const int lines = lines_of(a.columns * static_cast<std::int64_t>(sizeof(T)));
  const int ahead = rows_ahead(lines);
  std::int64_t row = row_of(a, nonzeros.begin);
  for (std::int64_t e = nonzeros.begin; e < nonzeros.end; ++e) {
    while (a.indptr[row + 1] <= e) ++row;
    const T* const* x = x_rows + (e - nonzeros.begin);
    prefetch_lines(x[ahead], lines);
    Sum<T> product = dot(*x, a.g + row * a.g_stride, a.columns);
    if (a.row_scale) product *= a.row_scale[row];
    if (a.col_scale) product *= a.col_scale[a.indices[e]];
    a.products[e * a.product_stride] = product;
  }
}

}  // namespace spgnn::SPGNN_ISA
