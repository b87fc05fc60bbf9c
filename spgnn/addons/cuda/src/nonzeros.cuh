// Numbers of nonzeros: products of rows (SDDMM), softmax and sums over each row.
#pragma once

#include "types.cuh"

namespace spgnn {

constexpr int kNonzerosInFlight = 4;  // whose rows a thread reads at a time

// The first row in [low, rows) that ends after a nonzero: the one that holds it.
__device__ inline i64 row_of(const i64* indptr, i64 low, i64 rows, i64 nonzero) {
  i64 high = rows - 1;
  while (low < high) {
    const i64 middle = low + (high - low) / 2;
    if (indptr[middle + 1] <= nonzero) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// products[e] = row_scale[i] · col_scale[j] · <g[i], x[j]>. A group of kLanes threads takes
// kNonzerosInFlight nonzeros; parts are added in shared memory, in order. Grid: nonzeros × heads.
template <class T, class Index, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    sddmm(const i64* indptr, i64 rows, const Index* indices, i64 nonzeros, const Sum<T>* row_scale,
          const Sum<T>* col_scale, const T* g, i64 g_stride, i64 g_head_stride, const T* x,
          i64 x_stride, i64 x_head_stride, i64 columns, Sum<T>* products, i64 heads) {
  constexpr int kGroups = kThreads / kLanes;
  constexpr int kEach = kNonzerosInFlight;
  __shared__ Sum<T> partial[kEach][kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const i64 block = static_cast<i64>(blockIdx.x) * (kGroups * kEach);
  const i64 head = blockIdx.y;

  const T *g_row[kEach], *x_row[kEach];
  Sum<T> scale[kEach], sum[kEach];
  i64 row = -1;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    // Beyond the end the last nonzero is taken again, and not written.
    const i64 mine = block + thread / kLanes * kEach + k;
    const i64 e = mine < nonzeros ? mine : nonzeros - 1;
    if (row < 0 || indptr[row + 1] <= e) row = row_of(indptr, row + 1, rows, e);
    const i64 column = static_cast<i64>(indices[e]);
    g_row[k] = g + row * g_stride + head * g_head_stride;
    x_row[k] = x + column * x_stride + head * x_head_stride;
    scale[k] = row_scale ? row_scale[row] : Sum<T>(1);
    if (col_scale) scale[k] *= col_scale[column];
    sum[k] = 0;
  }
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
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

// Softmax over the nonzeros of each row, and sums of rows. Numbers are [nonzeros, heads].

// One row and head, which kLanes threads share: thread `lane` has numbers lane, lane + kLanes, ….
struct Segment {
  i64 first, count, stride;  // of its numbers; count is 0 where there is nothing to do
  int lane;

  __device__ i64 at(i64 i) const { return first + i * stride; }
};

// The rows are those listed, or all of them; rows of more than `longest` nonzeros are left alone.
template <int kLanes>
__device__ inline Segment segment_of(const i64* indptr, const i64* listed, i64 rows, i64 longest,
                                     i64 heads) {
  const int thread = static_cast<int>(threadIdx.x);
  const i64 number = static_cast<i64>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  Segment segment{0, 0, heads, thread % kLanes};
  if (number < rows * heads) {
    const i64 row = listed ? listed[number / heads] : number / heads;
    const i64 count = indptr[row + 1] - indptr[row];
    segment.first = indptr[row] * heads + number % heads;
    segment.count = count <= longest ? count : 0;
  }
  return segment;
}

// Puts together what a group's threads have, in order. Every thread of the block must come here.
template <int kLanes, class Real, class Combine>
__device__ inline Real over_group(Real mine, Real* shared, Combine combine) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // somebody may still be reading what was put together before
  shared[thread] = mine;
  __syncthreads();
  const int first = thread / kLanes * kLanes;
  Real all = shared[first];
  for (int lane = 1; lane < kLanes; ++lane) all = combine(all, shared[first + lane]);
  return all;
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    edge_softmax(const i64* indptr, const i64* listed, i64 rows, i64 longest, const T* scores,
                 T* softmax, i64 heads) {
  using Real = Sum<T>;
  __shared__ Real shared[kThreads];
  const Segment mine = segment_of<kLanes>(indptr, listed, rows, longest, heads);
  const Real nothing = -__uint_as_float(0x7f800000u);  // −∞

  Real largest = nothing;
  for (i64 i = mine.lane; i < mine.count; i += kLanes) {
    const Real score = widen(scores[mine.at(i)]);
    if (score > largest) largest = score;
  }
  largest = over_group<kLanes>(largest, shared, [](Real a, Real b) { return a > b ? a : b; });
  // Nothing but −∞: its exponentials are zeros, not those of −∞ + ∞.
  if (largest == nothing) largest = 0;

  Real sum = 0;
  for (i64 i = mine.lane; i < mine.count; i += kLanes) {
    sum += exponential(widen(scores[mine.at(i)]) - largest);
  }
  sum = over_group<kLanes>(sum, shared, [](Real a, Real b) { return a + b; });
  const Real factor = sum == 0 ? Real(0) : Real(1) / sum;
  for (i64 i = mine.lane; i < mine.count; i += kLanes) {
    const i64 place = mine.at(i);
    narrow(factor * exponential(widen(scores[place]) - largest), softmax[place]);
  }
}

// sums = sum of a · b over the row, or of a where b is null.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    row_sums(const i64* indptr, const i64* listed, i64 rows, i64 longest, const T* a, const T* b,
             T* sums, i64 heads) {
  using Real = Sum<T>;
  __shared__ Real shared[kThreads];
  const Segment mine = segment_of<kLanes>(indptr, listed, rows, longest, heads);
  Real sum = 0;
  for (i64 i = mine.lane; i < mine.count; i += kLanes) {
    const i64 place = mine.at(i);
    sum += b ? widen(a[place]) * widen(b[place]) : widen(a[place]);
  }
  sum = over_group<kLanes>(sum, shared, [](Real x, Real y) { return x + y; });
  for (i64 i = mine.lane; i < mine.count; i += kLanes) narrow(sum, sums[mine.at(i)]);
}

}  // namespace spgnn
