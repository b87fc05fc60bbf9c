// Y = diag(row_scale) B diag(col_scale) X, or Y += the same, balanced by the merge path: groups of
// kLanes threads, each thread kPacks packs of columns.
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

// A thread's columns.
template <int kVector, int kLanes, int kPacks>
struct PackColumns {
  static constexpr int kTile = kLanes * kPacks * kVector;
  long long columns, first = blockIdx.y * static_cast<long long>(kTile);

  __device__ long long column(int p) const {
    return first + (p * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kVector;
  }
  __device__ bool has(int p) const { return column(p) < columns; }
  // A pack beyond the last column reads the last one instead, at no cost in memory traffic.
  __device__ long long readable(int p) const { return has(p) ? column(p) : columns - kVector; }
};

// Where sums go. Row r of the block is row row_map[r] of Y if kMapped, else row r.
template <class Out, bool kMapped, int kVector, int kPacks>
struct ProductTarget {
  using Running = Accumulator<Sum<Out>, kVector, kPacks>;
  Out* y;
  long long y_stride;
  const long long* row_map;
  const Sum<Out>* row_scale;  // by row of Y
  Sum<Out>* carry;
  long long carry_stride;
  bool accumulate;

  __device__ long long row_of(long long row) const { return kMapped ? row_map[row] : row; }

  template <class Columns>
  __device__ void write_row(long long row, const Columns& columns, const Running& sum) const {
    const long long y_row = row_of(row);
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
  __device__ void write_carry(long long slot, const Columns& columns, const Running& sum) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (columns.has(p)) store(carry + slot * carry_stride + columns.column(p), sum.sums[p]);
    }
  }

  // Y is read only where a row ends; asked for early, it is at hand by then.
  template <class Columns>
  __device__ void prefetch_rows(const long long* tile, const Columns& columns) const {
    constexpr int kLine = 128 / sizeof(Out);
    const long long end = columns.first + columns.kTile;
    const long long last = end < columns.columns ? end : columns.columns;
    for (long long r = tile[0] + threadIdx.x; r < tile[3]; r += kThreads) {
      const Out* const row = y + row_of(r) * y_stride;
      for (long long c = columns.first; c < last; c += kLine) prefetch(row + c);
    }
  }
};

// Nonzeros in flight, across row ends, of which a thread has so many packs. Of wide packs few, so
// that registers leave room for more blocks: those hide latency better (measured on an H100,
// benchmarks/results/gpu.md).
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
  const Sum<In>* weight;    // of the tile's nonzeros, if kWeighted; else all ones
  long long first_nonzero;  // of the tile
  unsigned long long row_bytes;

  const char* source[kPacks] = {};  // where the thread's columns begin
  Pack<In, kVector> ahead[kAhead][kPacks] = {};
  Sum<In> factor[kAhead] = {};

  __device__ void begin(const In* x) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      source[p] = keep(reinterpret_cast<const char*>(x + columns.readable(p)));
    }
  }
  __device__ void begin_row(long long) {}
  template <class Index>
  __device__ void fetch(int k, Index column, long long nonzero) {
    const unsigned long long skipped = bytes_before(column, row_bytes);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      ahead[k][p] = load_shared_by_many<In, kVector>(source[p] + skipped);
    }
    factor[k] = kWeighted ? weight[nonzero - first_nonzero] : Sum<In>(1);
  }
  __device__ void add(int k, long long, Running& sum) { sum.take(factor[k], ahead[k]); }
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
  using Work = Product<In, Out, kWeighted, kMapped, kVector, kLanes, kPacks>;
  __shared__ Sum<In> weight[kWeighted ? kItems : 1];
  const long long* const tile = tiles + 3 * static_cast<long long>(blockIdx.x);
  Work work{{columns},
            {y, y_stride, row_map, row_scale, carry, carry_stride, accumulate != 0},
            weight,
            tile[1],
            keep(x_stride * sizeof(In))};
  work.begin(x);
  if (accumulate) work.target.prefetch_rows(tile, work.columns);
  walk_tile<kLanes, Work::kAhead, kItems>(
      indptr, indices, tiles, work, [&](int i, Index column, long long nonzero) {
        if (!kWeighted) return;
        const Sum<In> value = values ? load_once(values + nonzero * value_stride) : Sum<In>(1);
        weight[i] = col_scale ? value * col_scale[column] : value;
      });
}

}  // namespace spgnn
