// Numbers of nonzeros: products of rows of two dense matrices (SDDMM), softmax and sums over each
// row.
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

// Softmax over the nonzeros of each row, and sums of rows that go back to every nonzero. Numbers
// are [nonzeros, heads].

// One row and head, which kLanes threads share: thread `lane` has numbers lane, lane + kLanes, ….
struct Segment {
  long long first, count, stride;  // of its numbers; count is 0 where there is nothing to do
  int lane;

  __device__ long long at(long long i) const { return first + i * stride; }
};

// The rows are those listed, or all of them; rows of more than `longest` nonzeros are left alone.
template <int kLanes>
__device__ inline Segment segment_of(const long long* indptr, const long long* listed,
                                     long long rows, long long longest, long long heads) {
  const int thread = static_cast<int>(threadIdx.x);
  const long long number =
      static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  Segment segment{0, 0, heads, thread % kLanes};
  if (number < rows * heads) {
    const long long row = listed ? listed[number / heads] : number / heads;
    const long long count = indptr[row + 1] - indptr[row];
    segment.first = indptr[row] * heads + number % heads;
    segment.count = count <= longest ? count : 0;
  }
  return segment;
}

// Puts together what the threads of a group have, always in the same order. Every thread of the
// block must come here.
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
    edge_softmax(const long long* indptr, const long long* listed, long long rows,
                 long long longest, const T* scores, T* softmax, long long heads) {
  using Real = Sum<T>;
  __shared__ Real shared[kThreads];
  const Segment mine = segment_of<kLanes>(indptr, listed, rows, longest, heads);
  const Real nothing = -__uint_as_float(0x7f800000u);  // −∞

  Real largest = nothing;
  for (long long i = mine.lane; i < mine.count; i += kLanes) {
    const Real score = widen(scores[mine.at(i)]);
    if (score > largest) largest = score;
  }
  largest = over_group<kLanes>(largest, shared, [](Real a, Real b) { return a > b ? a : b; });
  // Nothing but −∞: its exponentials are zeros, not those of −∞ + ∞.
  if (largest == nothing) largest = 0;

  Real sum = 0;
  for (long long i = mine.lane; i < mine.count; i += kLanes) {
    sum += exponential(widen(scores[mine.at(i)]) - largest);
  }
  sum = over_group<kLanes>(sum, shared, [](Real a, Real b) { return a + b; });
  const Real factor = sum == 0 ? Real(0) : Real(1) / sum;
  for (long long i = mine.lane; i < mine.count; i += kLanes) {
    const long long place = mine.at(i);
    narrow(factor * exponential(widen(scores[place]) - largest), softmax[place]);
  }
}

// sums = sum of a · b over the row, or of a where b is null.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    row_sums(const long long* indptr, const long long* listed, long long rows, long long longest,
             const T* a, const T* b, T* sums, long long heads) {
  using Real = Sum<T>;
  __shared__ Real shared[kThreads];
  const Segment mine = segment_of<kLanes>(indptr, listed, rows, longest, heads);
  Real sum = 0;
  for (long long i = mine.lane; i < mine.count; i += kLanes) {
    const long long place = mine.at(i);
    sum += b ? widen(a[place]) * widen(b[place]) : widen(a[place]);
  }
  sum = over_group<kLanes>(sum, shared, [](Real x, Real y) { return x + y; });
  for (long long i = mine.lane; i < mine.count; i += kLanes) narrow(sum, sums[mine.at(i)]);
}

}  // namespace spgnn
