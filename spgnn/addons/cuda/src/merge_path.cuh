// Walks along one tile of the merge path: the work on a CSR block is a list of its nonzeros and,
// after each row's last, that row's end. A block of threads takes a tile of it (cut by tiling.py),
// a group of threads an equal slice. Rows that cross slices are put together in shared memory, rows
// that cross tiles in `carry`, which a second pass sums up. Nothing is atomic: results are
// reproducible.
#pragma once

#include "types.cuh"

namespace spgnn {

constexpr int kNever = 0x7fffffff;
constexpr int kWarp = 32;
constexpr unsigned kAllOfWarp = 0xffffffffu;

// How many rows end within the first `items` items: the merge path's crossing of a diagonal.
template <class Index> __device__ inline int rows_ended(const Index* row_end, int rows, int items) {
  int low = 0;
  int high = rows < items ? rows : items;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (static_cast<int>(row_end[middle]) + middle < items) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// One thread's running sum over its columns of one row.
template <class Real, int kVector, int kPacks> struct Accumulator {
  Pack<Real, kVector> sums[kPacks];

  __device__ void clear() {
    unrolled<kPacks, kVector>([&](int p, int v) { sums[p].lane[v] = 0; });
  }
  __device__ void add(const Accumulator& other) {
    unrolled<kPacks, kVector>([&](int p, int v) { sums[p].lane[v] += other.sums[p].lane[v]; });
  }
  __device__ void take(int p, int v, Real number, int) { sums[p].lane[v] += number; }
  template <class T> __device__ void take(Real weight, const Pack<T, kVector> (&x)[kPacks]) {
    unrolled<kPacks, kVector>(
        [&](int p, int v) { sums[p].lane[v] += weight * widen(x[p].lane[v]); });
  }
};

struct Nothing {
  template <class Index> __device__ void operator()(int, Index, i64) const {}
};

// Sums up a tile. Groups of kGroup threads take an equal slice each, kAhead nonzeros at a time.
// Work is one thread's part; threads of a group come along together, so it may use their shuffles:
//   Running                    a sum over some nonzeros of a row, with clear() and add(later ones)
//   begin_row(row)             comes before the first nonzero of a row
//   fetch(k, column, nonzero)  starts the loads of a nonzero, the k-th on its way
//   add(k, nonzero, sum)       adds its share
//   columns, target            target.write_row(row, columns, sum), write_carry(slot, columns, sum)
// stage(i, column, nonzero) is called by one thread for the tile's i-th nonzero before any fetch.
template <int kGroup, int kAhead, int kItems, class Index, class Work, class Stage = Nothing>
__device__ inline void walk_tile(const i64* indptr, const Index* indices, const i64* tiles,
                                 Work& work, const Stage& stage = {}) {
  using Running = typename Work::Running;
  constexpr int kGroups = kThreads / kGroup;
  __shared__ Index item[kItems];      // columns of the nonzeros, then the ends of the rows
  __shared__ Running head[kThreads];  // end of a row that an earlier slice began
  __shared__ Running tail[kThreads];  // of a row that a later slice ends
  __shared__ int tail_row[kGroups];   // that row, or -1

  const i64* const tile = tiles + 3 * static_cast<i64>(blockIdx.x);
  const i64 first_row = tile[0], first_nonzero = tile[1];
  const int rows = static_cast<int>(tile[3] - first_row);
  const int nonzeros = static_cast<int>(tile[4] - first_nonzero);
  const bool tile_open = first_nonzero > indptr[first_row];  // its first row began before
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroup;

  for (int i = thread; i < nonzeros; i += kThreads) {
    item[i] = load_once(indices + first_nonzero + i);
    stage(i, item[i], first_nonzero + i);
  }
  Index* const row_end = item + nonzeros;
  for (int r = thread; r < rows; r += kThreads) {
    row_end[r] = static_cast<Index>(indptr[first_row + r + 1] - first_nonzero);
  }
  __syncthreads();

  // This group's slice: it finishes rows [row, last_row) and adds nonzeros up to `stop`.
  const int items = rows + nonzeros;
  const int share = (items + kGroups - 1) / kGroups;
  const int begin = group * share < items ? group * share : items;
  const int end = begin + share < items ? begin + share : items;
  const int slice_row = rows_ended(row_end, rows, begin);
  const int last_row = rows_ended(row_end, rows, end);
  const int stop = end - last_row;
  const int before_tile = tile_open ? -1 : 0;
  auto row_begin = [&](int r) { return r > 0 ? static_cast<int>(row_end[r - 1]) : before_tile; };
  const bool slice_open = begin - slice_row > row_begin(slice_row);

  Running sum;
  sum.clear();
  int row = slice_row;
  bool begun = false;
  int next_end = row < last_row ? static_cast<int>(row_end[row]) : kNever;
  auto finish_row = [&] {
    if (row == slice_row && slice_open) {
      head[thread] = sum;
    } else {
      work.target.write_row(first_row + row, work.columns, sum);
    }
    sum.clear();
    begun = false;
    ++row;
    next_end = row < last_row ? static_cast<int>(row_end[row]) : kNever;
  };
  for (int window = begin - slice_row; window < stop; window += kAhead) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (window + k < stop) work.fetch(k, item[window + k], first_nonzero + window + k);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (window + k >= stop) break;
      while (window + k == next_end) finish_row();
      if (!begun) work.begin_row(first_row + row);
      begun = true;
      work.add(k, first_nonzero + window + k, sum);
    }
  }
  while (row < last_row) finish_row();

  const bool leaves_row = stop > row_begin(last_row);
  if (leaves_row) tail[thread] = sum;
  if (thread % kGroup == 0) tail_row[group] = leaves_row ? last_row : -1;
  // Of a warp's slices that leave the same row, each tail becomes the sum of all up to its own.
  constexpr int kTogether = kWarp / kGroup;
  auto joins = [&](int steps) {
    return group % kTogether >= steps && tail_row[group] >= 0 &&
           tail_row[group - steps] == tail_row[group];
  };
  __syncwarp(kAllOfWarp);
  for (int steps = 1; steps < kTogether && __any_sync(kAllOfWarp, joins(steps)); steps *= 2) {
    const bool joined = joins(steps);
    if (joined) sum = tail[thread - steps * kGroup];
    __syncwarp(kAllOfWarp);
    if (joined) {
      sum.add(tail[thread]);
      tail[thread] = sum;
    }
    __syncwarp(kAllOfWarp);
  }
  __syncthreads();

  // The slices before this one that left `r` unfinished, summed warp by warp.
  auto sum_of_tails = [&](int r, int last_group) {
    sum.clear();
    for (int g = 0; g < last_group; g += kTogether) {
      const int last = (g + kTogether < last_group ? g + kTogether : last_group) - 1;
      if (tail_row[last] == r) sum.add(tail[last * kGroup + thread % kGroup]);
    }
  };
  const bool row_ends_here = tile_open && rows > 0;
  if (slice_open && slice_row < last_row) {
    sum_of_tails(slice_row, group);
    sum.add(head[thread]);
    if (slice_row == 0 && tile_open) {
      work.target.write_carry(tile[2], work.columns, sum);
    } else {
      work.target.write_row(first_row + slice_row, work.columns, sum);
    }
  }
  if (group == kGroups - 1 && tail_row[group] == rows) {
    sum_of_tails(rows, kGroups);
    work.target.write_carry(tile[2] + (row_ends_here ? 1 : 0), work.columns, sum);
  }
}

}  // namespace spgnn
