// Y = diag(row_scale) B diag(col_scale) X, or Y += the same, balanced by the merge path.
//
// The work on a CSR block is a list of items: its nonzeros and, after the last nonzero of each
// row, that row's end. A block of threads takes one tile of the list (cut by tiling.py), a group of
// kLanes threads an equal slice of the tile, each thread kPacks packs of columns. Rows that cross
// slices are put together in shared memory, rows that cross tiles in `carry`, which a second,
// much smaller product sums up. Nothing is atomic and every order is fixed, so results are
// bitwise reproducible.
#pragma once

#include "merge_path.cuh"
#include "types.cuh"

namespace spgnn {

// Bytes before a row. The host sees to it that a row is shorter than 4 GiB, so that with 32-bit
// indices this is one instruction.
__device__ inline unsigned long long bytes_before(int row, unsigned long long row_bytes) {
  return static_cast<unsigned long long>(static_cast<unsigned>(row)) *
         static_cast<unsigned>(row_bytes);
}
__device__ inline unsigned long long bytes_before(long long row, unsigned long long row_bytes) {
  return static_cast<unsigned long long>(row) * row_bytes;
}

// One thread's running sum over its columns of one row.
template <class Real, int kVector, int kPacks>
struct Accumulator {
  Pack<Real, kVector> pack[kPacks];

  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) pack[p].lane[v] = 0;
    }
  }

  __device__ void add(const Accumulator& other) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) pack[p].lane[v] += other.pack[p].lane[v];
    }
  }

  template <bool kWeighted, class T>
  __device__ void add_product(Real weight, const Pack<T, kVector> (&x)[kPacks]) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Real element = widen(x[p].lane[v]);
        pack[p].lane[v] += kWeighted ? weight * element : element;
      }
    }
  }
};

// Where sums go. Row r of the block is row row_map[r] of Y if kMapped, else row r.
template <class Out, bool kMapped, int kVector, int kLanes, int kPacks>
struct Output {
  Out* y;
  long long y_stride;
  const long long* row_map;
  const Sum<Out>* row_scale;  // by row of Y
  Sum<Out>* carry;
  long long carry_stride;
  long long columns;
  long long first_column;  // of this thread
  bool accumulate;

  __device__ long long column(int p) const { return first_column + p * (kLanes * kVector); }
  __device__ long long target(long long row) const { return kMapped ? row_map[row] : row; }

  __device__ void write_row(long long row,
                            const Accumulator<Sum<Out>, kVector, kPacks>& sum) const {
    const long long y_row = target(row);
    const Sum<Out> scale = row_scale ? row_scale[y_row] : Sum<Out>(1);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= columns) break;
      Out* const place = y + y_row * y_stride + column(p);
      Pack<Out, kVector> old, result;
      if (accumulate) old = load<Out, kVector>(place);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Sum<Out> scaled = scale * sum.pack[p].lane[v];
        narrow(accumulate ? widen(old.lane[v]) + scaled : scaled, result.lane[v]);
      }
      store(place, result);
    }
  }

  __device__ void write_carry(long long slot,
                              const Accumulator<Sum<Out>, kVector, kPacks>& sum) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) < columns) store(carry + slot * carry_stride + column(p), sum.pack[p]);
    }
  }

  // Y is read only where a row ends; asked for early, it is at hand by then.
  __device__ void prefetch_rows(long long first_row, int rows) const {
    constexpr int kLine = 128 / sizeof(Out);
    const long long begin = blockIdx.y * static_cast<long long>(kLanes * kPacks * kVector);
    const long long end = begin + kLanes * kPacks * kVector;
    const long long last = end < columns ? end : columns;
    for (int r = threadIdx.x; r < rows; r += kThreads) {
      const Out* const row = y + target(first_row + r) * y_stride;
      for (long long c = begin; c < last; c += kLine) prefetch(row + c);
    }
  }
};

// In: element of X. Out: element of Y (they differ when a product sums up carried rows).
// kItems: most items a tile may hold. Grid: tiles × column tiles.
template <class In, class Out, class Index, bool kWeighted, bool kMapped, int kVector, int kLanes,
          int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    spmm(const long long* indptr, const Index* indices, const Sum<In>* values,
         long long value_stride, const Sum<In>* col_scale, const Sum<Out>* row_scale,
         const long long* row_map, const long long* tiles, const In* x, long long x_stride, Out* y,
         long long y_stride, Sum<Out>* carry, long long carry_stride, long long columns,
         long long accumulate) {
  constexpr int kGroups = kThreads / kLanes;
  // Enough loads in flight to hide memory latency: 8 packs per thread, across row ends.
  constexpr int kAhead = kPacks >= 4 ? 2 : kPacks == 3 ? 3 : 8 / kPacks;
  using Running = Accumulator<Sum<Out>, kVector, kPacks>;

  // Columns of the nonzeros, then the ends of the rows; read ahead of the last one.
  __shared__ Index item[kItems + kAhead];
  __shared__ Sum<In> weight[kWeighted ? kItems + kAhead : 1];
  __shared__ Running head[kGroups * kLanes];  // end of a row that an earlier slice began
  __shared__ Running tail[kGroups * kLanes];  // of a row that a later slice ends
  __shared__ int tail_row[kGroups];           // that row, or -1

  const long long* const tile = tiles + 3 * static_cast<long long>(blockIdx.x);
  const long long first_row = tile[0];
  const long long first_nonzero = tile[1];
  const int rows = static_cast<int>(tile[3] - first_row);
  const int nonzeros = static_cast<int>(tile[4] - first_nonzero);
  const bool tile_open = first_nonzero > indptr[first_row];  // its first row began before

  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kLanes;
  const long long tile_column = blockIdx.y * static_cast<long long>(kLanes * kPacks * kVector);
  const Output<Out, kMapped, kVector, kLanes, kPacks> output{
      y,
      y_stride,
      row_map,
      row_scale,
      carry,
      carry_stride,
      columns,
      tile_column + thread % kLanes * kVector,
      accumulate != 0};

  if (accumulate) output.prefetch_rows(first_row, rows);
  for (int i = thread; i < nonzeros; i += kThreads) {
    const Index column = indices[first_nonzero + i];
    item[i] = column;
    if (kWeighted) {
      const Sum<In> value = values ? values[(first_nonzero + i) * value_stride] : Sum<In>(1);
      weight[i] = col_scale ? value * col_scale[column] : value;
    }
  }
  Index* const row_end = item + nonzeros;
  for (int r = thread; r < rows; r += kThreads) {
    row_end[r] = static_cast<Index>(indptr[first_row + r + 1] - first_nonzero);
  }
  __syncthreads();

  // This group's slice: it finishes rows [row, last_row) and adds nonzeros [nonzero, stop).
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

  // A pack beyond the last column reads the last one instead, at no cost in memory traffic.
  const unsigned long long row_bytes = keep(x_stride * sizeof(In));
  const char* source[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const long long column = output.column(p);
    source[p] =
        keep(reinterpret_cast<const char*>(x + (column < columns ? column : columns - kVector)));
  }

  Running sum;
  sum.clear();
  int row = slice_row;
  int next_end = row < last_row ? static_cast<int>(row_end[row]) : kNever;
  auto finish_row = [&] {
    if (row == slice_row && slice_open) {
      head[thread] = sum;
    } else {
      output.write_row(first_row + row, sum);
    }
    sum.clear();
    ++row;
    next_end = row < last_row ? static_cast<int>(row_end[row]) : kNever;
  };
  for (int window = begin - slice_row; window < stop; window += kAhead) {
    // No branch between the loads: all are under way before the first is needed.
    Index column[kAhead];
    Pack<In, kVector> ahead[kAhead][kPacks];
    Sum<In> factor[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) column[a] = item[window + a];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (window + a < stop) {
        const unsigned long long skipped = bytes_before(column[a], row_bytes);
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          ahead[a][p] = load_shared_by_many<In, kVector>(source[p] + skipped);
        }
      }
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) factor[a] = kWeighted ? weight[window + a] : Sum<In>(1);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (window + a >= stop) break;
      while (window + a == next_end) finish_row();
      sum.template add_product<kWeighted>(factor[a], ahead[a]);
    }
  }
  while (row < last_row) finish_row();

  const bool leaves_row = stop > row_begin(last_row);
  if (leaves_row) tail[thread] = sum;
  if (thread % kLanes == 0) tail_row[group] = leaves_row ? last_row : -1;
  __syncthreads();

  // The slices before this one that left `r` unfinished, summed in their order.
  auto sum_of_tails = [&](int r, int last_group) {
    int first_group = last_group;
    while (first_group > 0 && tail_row[first_group - 1] == r) --first_group;
    sum.clear();
    for (int g = first_group; g < last_group; ++g) sum.add(tail[g * kLanes + thread % kLanes]);
  };
  const bool row_ends_here = tile_open && rows > 0;
  if (slice_open && slice_row < last_row) {
    sum_of_tails(slice_row, group);
    sum.add(head[thread]);
    if (slice_row == 0 && tile_open) {
      output.write_carry(tile[2], sum);
    } else {
      output.write_row(first_row + slice_row, sum);
    }
  }
  if (group == kGroups - 1 && tail_row[group] == rows) {
    sum_of_tails(rows, kGroups);
    output.write_carry(tile[2] + (row_ends_here ? 1 : 0), sum);
  }
}

}  // namespace spgnn
