// Products of rows of two dense matrices where a sparse one has nonzeros (SDDMM).
#pragma once

#include "types.cuh"

namespace spgnn {

constexpr int kNonzerosInFlight = 4;  // whose rows a thread reads at a time

// The first row in [low, rows) that ends after a nonzero: the one that holds it.
__device__ inline long long row_of(const long long* indptr, long long low, long long rows,
                                   long long nonzero) {
  long long high = rows - 1;
  while (low < high) {
    const long long middle = low + (high - low) / 2;
    if (indptr[middle + 1] <= nonzero) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// products[e] = row_scale[i] · col_scale[j] · <g[i], x[j]> for nonzero e in row i and column j.
//
// A group of kLanes threads takes kNonzerosInFlight neighbouring nonzeros; what its threads found
// is added up through shared memory, always in the same order. Grid: nonzeros × heads.
template <class T, class Index, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    sddmm(const long long* indptr, long long rows, const Index* indices, long long nonzeros,
          const Sum<T>* row_scale, const Sum<T>* col_scale, const T* g, long long g_stride,
          long long g_head_stride, const T* x, long long x_stride, long long x_head_stride,
          long long columns, Sum<T>* products, long long heads) {
  constexpr int kGroups = kThreads / kLanes;
  constexpr int kEach = kNonzerosInFlight;
  __shared__ Sum<T> partial[kEach][kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const long long block = static_cast<long long>(blockIdx.x) * (kGroups * kEach);
  const long long head = blockIdx.y;

  const T *g_row[kEach], *x_row[kEach];
  Sum<T> scale[kEach], sum[kEach];
  long long row = -1;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    // Beyond the end the last nonzero is taken again, and not written.
    const long long mine = block + thread / kLanes * kEach + k;
    const long long e = mine < nonzeros ? mine : nonzeros - 1;
    if (row < 0 || indptr[row + 1] <= e) row = row_of(indptr, row + 1, rows, e);
    const long long column = static_cast<long long>(indices[e]);
    g_row[k] = g + row * g_stride + head * g_head_stride;
    x_row[k] = x + column * x_stride + head * x_head_stride;
    scale[k] = row_scale ? row_scale[row] : Sum<T>(1);
    if (col_scale) scale[k] *= col_scale[column];
    sum[k] = 0;
  }
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> g_pack[kEach], x_pack[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      g_pack[k] = load_shared_by_many<T, kVector>(g_row[k] + c);
      x_pack[k] = load_shared_by_many<T, kVector>(x_row[k] + c);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sum[k] += widen(g_pack[k].lane[v]) * widen(x_pack[k].lane[v]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) partial[k][thread] = scale[k] * sum[k];
  __syncthreads();
  for (int i = thread; i < kGroups * kEach && block + i < nonzeros; i += kThreads) {
    const Sum<T>* const lanes = partial[i % kEach] + i / kEach * kLanes;
    Sum<T> product = 0;
    for (int lane = 0; lane < kLanes; ++lane) product += lanes[lane];
    products[(block + i) * heads + head] = product;
  }
}

}  // namespace spgnn
