// Nonzeros with rows of numbers of their own: sums, products and extremes of what they make of the
// rows in their columns (EdgeOp of types.hpp says what).
#pragma once

#include "nonzeros.cuh"

namespace spgnn {

enum : int { kEdgeMul, kEdgeAdd, kEdgeSub, kEdgeDiv, kEdgeCopy, kEdgeAddRelu, kEdgeGate };

template <int kOp, class Real>
__device__ inline Real message(Real x, Real v, Real w) {
  if (kOp == kEdgeMul) return x * v;
  if (kOp == kEdgeAdd) return x + v;
  if (kOp == kEdgeSub) return x - v;
  if (kOp == kEdgeDiv) return x / v;
  if (kOp == kEdgeAddRelu) return x + v < Real(0) ? Real(0) : x + v;
  if (kOp == kEdgeGate) return w + v > Real(0) ? x : Real(0);
  return v;
}

// A group of kLanes threads has a row, each thread some packs of its columns.
template <class T, class Index, int kOp, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    edge_sum(const long long* indptr, const Index* indices, const int* order,
             const long long* wide_order, const T* x, long long x_stride, const T* w,
             long long w_stride, const T* v, long long v_stride, T* out, long long out_stride,
             long long rows, long long columns) {
  const int thread = static_cast<int>(threadIdx.x);
  const long long i = static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  if (i >= rows) return;
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Sum<T> sum[kVector];
    Pack<T, kVector> own{};
    if (kOp == kEdgeGate) own = load<T, kVector>(w + i * w_stride + c);
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum[k] = 0;
    for (long long e = indptr[i]; e < indptr[i + 1]; ++e) {
      const long long at = listed_row(order, wide_order, e);
      const Pack<T, kVector> mine = load_shared_by_many<T, kVector>(v + at * v_stride + c);
      Pack<T, kVector> other = mine;
      if (kOp != kEdgeCopy) {
        const long long j = static_cast<long long>(indices[e]);
        other = load_shared_by_many<T, kVector>(x + j * x_stride + c);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sum[k] += message<kOp>(widen(other.lane[k]), widen(mine.lane[k]), widen(own.lane[k]));
      }
    }
    Pack<T, kVector> made;
#pragma unroll
    for (int k = 0; k < kVector; ++k) narrow(sum[k], made.lane[k]);
    store(out + i * out_stride + c, made);
  }
}

// A group has a nonzero: g · x, g where x + v > 0, or the sum of those of g, x and v that are
// there.
template <class T, class Index, int kOp, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    edge_products(const long long* indptr, const Index* indices, const T* g, long long g_stride,
                  const T* x, long long x_stride, const T* v, long long v_stride, T* out,
                  long long out_stride, long long rows, long long nonzeros, long long columns) {
  const int thread = static_cast<int>(threadIdx.x);
  const long long e = static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  if (e >= nonzeros) return;
  const long long i = row_of(indptr, 0, rows, e), j = static_cast<long long>(indices[e]);
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> here{}, there{}, mine{}, made;
    if (g) here = load_shared_by_many<T, kVector>(g + i * g_stride + c);
    if (x) there = load_shared_by_many<T, kVector>(x + j * x_stride + c);
    if (v) mine = load<T, kVector>(v + e * v_stride + c);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const Sum<T> a = widen(here.lane[k]), b = widen(there.lane[k]), d = widen(mine.lane[k]);
      narrow(kOp == kEdgeAdd ? a + b + d : message<kOp>(a, kOp == kEdgeMul ? b : d, b),
             made.lane[k]);
    }
    store(out + e * out_stride + c, made);
  }
}

// Largest or smallest messages of a row, and the first nonzero that has it; one number of v serves
// `width` columns. What is no number comes before all that are; empty rows have 0 and −1.
template <class T, class Index, class Arg, int kOp, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    edge_extremes(const long long* indptr, const Index* indices, const T* x, long long x_stride,
                  const T* v, long long v_stride, long long width, long long largest, T* out,
                  long long out_stride, Arg* arg, long long rows, long long columns) {
  const int thread = static_cast<int>(threadIdx.x);
  const long long i = static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  if (i >= rows) return;
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Sum<T> best[kVector];
    Arg place[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) best[k] = 0, place[k] = Arg(-1);
    for (long long e = indptr[i]; e < indptr[i + 1]; ++e) {
      Pack<T, kVector> other{};
      if (kOp != kEdgeCopy) {
        const long long j = static_cast<long long>(indices[e]);
        other = load_shared_by_many<T, kVector>(x + j * x_stride + c);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const Sum<T> mine = widen(v[e * v_stride + (c + k) / width]);
        const Sum<T> number = message<kOp>(widen(other.lane[k]), mine, mine);
        const bool better = (largest ? number > best[k] : number < best[k]) ||
                            (number != number && best[k] == best[k]);
        if (place[k] >= Arg(0) && !better) continue;
        best[k] = number;
        place[k] = static_cast<Arg>(e);
      }
    }
    Pack<T, kVector> made;
#pragma unroll
    for (int k = 0; k < kVector; ++k) narrow(best[k], made.lane[k]);
    store(out + i * out_stride + c, made);
#pragma unroll
    for (int k = 0; k < kVector; ++k) arg[i * columns + c + k] = place[k];
  }
}

}  // namespace spgnn
