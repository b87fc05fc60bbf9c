// Which threads have which columns of which head, and what they find out together.
#pragma once

#include "rows.cuh"
#include "types.cuh"

namespace spgnn {

// Nonzeros on their way to a thread that has so many packs of columns.
template <int kPacks>
constexpr int kAheadOf = kPacks > 2 ? 2 : 4;

// kLanes threads share the columns of a head, kGroup threads those of kGroup / kLanes heads. They
// hold kTile columns of each head at a time; the grid's second dimension counts tiles of heads,
// and of columns where a head is wider.
template <int kVector, int kLanes, int kGroup, int kPacks>
struct HeadColumns {
  static constexpr int kTile = kLanes * kPacks * kVector;
  long long heads, width, head, begin;
  int lane;
  bool active;  // others come along with the last head, and write nothing

  __device__ HeadColumns(long long all_heads, long long of_head, long long column_tiles)
      : heads(all_heads), width(of_head) {
    const int thread = static_cast<int>(threadIdx.x);
    const long long tile = blockIdx.y;
    head = tile / column_tiles * (kGroup / kLanes) + thread % kGroup / kLanes;
    begin = tile % column_tiles * kTile;
    lane = thread % kLanes;
    active = head < heads;
    if (!active) head = heads - 1;
  }

  __device__ long long column(int pack) const { return begin + (pack * kLanes + lane) * kVector; }
  __device__ bool has(int pack) const { return column(pack) < width; }
  __device__ bool leads() const { return active && lane == 0 && begin == 0; }
  // Where this head begins in row r of a matrix.
  template <class T>
  __device__ T* row_of(T* matrix, long long r, long long stride) const {
    return matrix + r * stride + head * width;
  }
  __device__ long long number(long long r) const { return r * heads + head; }

  template <class T>
  __device__ void load_packs(const T* row, Pack<T, kVector> (&packs)[kPacks]) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (has(p)) packs[p] = load_shared_by_many<T, kVector>(row + column(p));
    }
  }

  // f(column) for this thread's columns of the head that are outside of the tile.
  template <class Function>
  __device__ void for_each_other(Function f) const {
    if (width <= kTile) return;
    for (long long c = lane * kVector; c < width; c += kLanes * kVector) {
      if (c < begin || c >= begin + kTile) f(c);
    }
  }
};

// The threads of a warp that have the same head of the same slice.
template <int kLanes>
__device__ inline unsigned mates() {
  if (kLanes == 32) return 0xffffffffu;
  return ((1u << kLanes % 32) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);
}

// The sum over the threads of a head; every one gets the same bits.
template <int kLanes, class Real>
__device__ inline Real over_lanes(Real sum) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(mates<kLanes>(), sum, offset);
  }
  return sum;
}

// What dropout multiplies weights with: a hash of the edge's ends, the bits of the CPU kernel.
template <class Real>
struct EdgeDropout {
  const long long *row_ids, *col_ids;  // of destinations and sources; null: nothing is dropped
  unsigned long long seed, threshold;
  Real kept;

  __device__ EdgeDropout(const long long* rows, const long long* cols, long long key,
                         long long limit, double factor)
      : row_ids(rows),
        col_ids(cols),
        seed(mix64(static_cast<unsigned long long>(key))),
        threshold(static_cast<unsigned long long>(limit)),
        kept(static_cast<Real>(factor)) {}

  __device__ unsigned long long stream_of(long long row_id) const {
    return mix64(seed + kGolden * (static_cast<unsigned long long>(row_id) + 1));
  }
  __device__ Real factor(unsigned long long stream, long long col_id, long long heads,
                         long long head) const {
    const unsigned long long place =
        static_cast<unsigned long long>(col_id) * static_cast<unsigned long long>(heads) +
        static_cast<unsigned long long>(head);
    const unsigned long long bits = mix64(stream + kGolden * (place / 2 + 1));
    const unsigned long long half = place % 2 ? bits >> 32 : bits & 0xffffffffu;
    return half < threshold ? Real(0) : kept;
  }
};

template <class Real>
__device__ inline Real minus_infinity() {
  return -__uint_as_float(0x7f800000u);
}

}  // namespace spgnn
