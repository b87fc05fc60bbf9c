// Y = diag(row_scale) B diag(col_scale) X, or Y += the same, along the merge path.
#pragma once

#include "merge_path.cuh"
#include "types.cuh"

namespace spgnn {

// Bytes before a row, below 4 GiB: with 32-bit indices one instruction.
__device__ inline u64 bytes_before(int row, u64 row_bytes) {
  return static_cast<u64>(static_cast<unsigned>(row)) * static_cast<unsigned>(row_bytes);
}
__device__ inline u64 bytes_before(i64 row, u64 row_bytes) {
  return static_cast<u64>(row) * row_bytes;
}

// A thread's columns.
template <int kVector, int kLanes, int kPacks> struct PackColumns {
  static constexpr int kTile = kLanes * kPacks * kVector;
  i64 columns, first = blockIdx.y * static_cast<i64>(kTile);

  __device__ i64 column(int p) const {
    return first + (p * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kVector;
  }
  __device__ bool has(int p) const { return column(p) < columns; }
  // A pack beyond the last column reads the last one instead, at no cost in memory traffic.
  __device__ i64 readable(int p) const { return has(p) ? column(p) : columns - kVector; }
};

// Where sums go. Row r of the block is row row_map[r] of Y if kMapped, else row r.
template <class Out, bool kMapped, int kVector, int kPacks> struct ProductTarget {
  using Running = Accumulator<Sum<Out>, kVector, kPacks>;
  Out* y;
  i64 y_stride;
  const i64* row_map;
  const Sum<Out>* row_scale;  // by row of Y
  Sum<Out>* carry;
  i64 carry_stride;
  bool accumulate;

  __device__ i64 row_of(i64 row) const { return kMapped ? row_map[row] : row; }

  template <class Columns>
  __device__ void write_row(i64 row, const Columns& columns, const Running& sum) const {
    const i64 y_row = row_of(row);
    const Sum<Out> scale = row_scale ? row_scale[y_row] : Sum<Out>(1);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) break;
      Out* const place = y + y_row * y_stride + columns.column(p);
      Pack<Out, kVector> old, result;
      if (accumulate) old = load<Out, kVector>(place);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Sum<Out> scaled = scale * sum.sums[p].lane[v];
        narrow(accumulate ? widen(old.lane[v]) + scaled : scaled, result.lane[v]);
      }
      store(place, result);
    }
  }
  template <class Columns>
  __device__ void write_carry(i64 slot, const Columns& columns, const Running& sum) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (columns.has(p)) store(carry + slot * carry_stride + columns.column(p), sum.sums[p]);
    }
  }

  // Y is read only where a row ends; asked for early, it is at hand by then.
  template <class Columns>
  __device__ void prefetch_rows(const i64* tile, const Columns& columns) const {
    constexpr int kLine = 128 / sizeof(Out);
    const i64 end = columns.first + columns.kTile;
    const i64 last = end < columns.columns ? end : columns.columns;
    for (i64 r = tile[0] + threadIdx.x; r < tile[3]; r += kThreads) {
      const Out* const row = y + row_of(r) * y_stride;
      for (i64 c = columns.first; c < last; c += kLine) prefetch(row + c);
    }
  }
};

// Nonzeros in flight, across row ends. Of wide packs few, so that registers leave room for more
// blocks (measured on an H100, benchmarks/results/gpu.md).
template <class T, int kVector, int kPacks>
constexpr int kAheadOfPacks = kVector == 8 || kPacks >= 4      ? 2
                              : kPacks == 3                    ? 3
                              : sizeof(Pack<T, kVector>) == 16 ? 4 / kPacks
                                                               : 8 / kPacks;

template <class In, class Out, bool kWeighted, bool kMapped, int kVector, int kLanes, int kPacks>
struct Product {
  using Running = Accumulator<Sum<Out>, kVector, kPacks>;
  static constexpr int kAhead = kAheadOfPacks<In, kVector, kPacks>;
  PackColumns<kVector, kLanes, kPacks> columns;
  ProductTarget<Out, kMapped, kVector, kPacks> target;
  const Sum<In>* weight;  // of the tile's nonzeros, if kWeighted; else all ones
  i64 first_nonzero;      // of the tile
  u64 row_bytes;

  const char* source[kPacks] = {};  // where the thread's columns begin
  Pack<In, kVector> ahead[kAhead][kPacks] = {};
  Sum<In> factor[kAhead] = {};

  __device__ void begin(const In* x) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      source[p] = keep(reinterpret_cast<const char*>(x + columns.readable(p)));
    }
  }
  __device__ void begin_row(i64) {}
  template <class Index> __device__ void fetch(int k, Index column, i64 nonzero) {
    const u64 skipped = bytes_before(column, row_bytes);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      ahead[k][p] = load_shared_by_many<In, kVector>(source[p] + skipped);
    }
    factor[k] = kWeighted ? weight[nonzero - first_nonzero] : Sum<In>(1);
  }
  __device__ void add(int k, i64, Running& sum) { sum.take(factor[k], ahead[k]); }
};

// Out differs from In where carried rows are summed up. Grid: tiles × column tiles.
template <class In, class Out, class Index, bool kWeighted, bool kMapped, int kVector, int kLanes,
          int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    spmm(const i64* indptr, const Index* indices, const Sum<In>* values, i64 value_stride,
         const Sum<In>* col_scale, const Sum<Out>* row_scale, const i64* row_map, const i64* tiles,
         const In* x, i64 x_stride, Out* y, i64 y_stride, Sum<Out>* carry, i64 carry_stride,
         i64 columns, i64 accumulate) {
  using Work = Product<In, Out, kWeighted, kMapped, kVector, kLanes, kPacks>;
  __shared__ Sum<In> weight[kWeighted ? kItems : 1];
  const i64* const tile = tiles + 3 * static_cast<i64>(blockIdx.x);
  Work work{{columns},
            {y, y_stride, row_map, row_scale, carry, carry_stride, accumulate != 0},
            weight,
            tile[1],
            keep(x_stride * sizeof(In))};
  work.begin(x);
  if (accumulate) work.target.prefetch_rows(tile, work.columns);
  walk_tile<kLanes, Work::kAhead, kItems>(
      indptr, indices, tiles, work, [&](int i, Index column, i64 nonzero) {
        if (!kWeighted) return;
        const Sum<In> value = values ? load_once(values + nonzero * value_stride) : Sum<In>(1);
        weight[i] = col_scale ? value * col_scale[column] : value;
      });
}

}  // namespace spgnn
