// Softmax over the nonzeros of each row, and sums of rows that go back to every nonzero. Numbers
// are [nonzeros, heads].
#pragma once

#include "types.cuh"

namespace spgnn {

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
