// GATv2: scores a · LeakyReLU(x_i + y_j [+ t_ij]), which the threads of a head add up.
#pragma once

#include "attention.cuh"

namespace spgnn {

// How a thread makes its part of a score.
template <class T, int kVector, int kLanes, int kGroup, int kPacks> struct ScoresV2 {
  using Real = Sum<T>;
  using Columns = HeadColumns<kVector, kLanes, kGroup, kPacks>;
  const Real* a;      // of the thread's head
  const T* features;  // of edges, or null
  Real slope;
  Pack<Real, kVector> vector[kPacks] = {};    // of a
  Pack<Real, kVector> argument[kPacks] = {};  // of LeakyReLU, on the last edge

  __device__ ScoresV2(const Columns& columns, const Real* all, const T* of_edges, double below)
      : a(columns.row_of(all, 0, 0)), features(of_edges), slope(static_cast<Real>(below)) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (columns.has(p)) vector[p] = load<Real, kVector>(a + columns.column(p));
    }
  }

  __device__ Real relu(Real number) const { return number > 0 ? number : number * slope; }

  __device__ Pack<Real, kVector> argument_of(const Pack<T, kVector>& x, const Pack<T, kVector>& y,
                                             const T* edge, i64 column) const {
    Pack<Real, kVector> both;
#pragma unroll
    for (int v = 0; v < kVector; ++v) both.lane[v] = widen(x.lane[v]) + widen(y.lane[v]);
    if (edge) {
      const Pack<T, kVector> t = load_shared_by_many<T, kVector>(edge + column);
#pragma unroll
      for (int v = 0; v < kVector; ++v) both.lane[v] += widen(t.lane[v]);
    }
    return both;
  }

  // x and y: the packs of both ends, which lie in these rows.
  __device__ Real part(const Columns& columns, const T* x_row, const Pack<T, kVector> (&x)[kPacks],
                       const T* y_row, const Pack<T, kVector> (&y)[kPacks], i64 edge) {
    const T* const edge_row =
        features ? columns.row_of(features, edge, columns.heads * columns.width) : nullptr;
    Real sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) break;
      argument[p] = argument_of(x[p], y[p], edge_row, columns.column(p));
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum += vector[p].lane[v] * relu(argument[p].lane[v]);
    }
    columns.for_each_other([&](i64 c) {
      const Pack<Real, kVector> both =
          argument_of(load_shared_by_many<T, kVector>(x_row + c),
                      load_shared_by_many<T, kVector>(y_row + c), edge_row, c);
      const Pack<Real, kVector> factor = load<Real, kVector>(a + c);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum += factor.lane[v] * relu(both.lane[v]);
    });
    return sum;
  }

  // What a score's gradient gives both ends in lane v of pack p, on the last edge.
  __device__ Real change(Real gradient, int p, int v) const {
    const Real all = gradient * vector[p].lane[v];
    return argument[p].lane[v] > 0 ? all : all * slope;
  }
};

template <class T, int kVector, int kLanes, int kGroup, int kPacks> struct AttendV2 {
  using Real = Sum<T>;
  using Running = Triple<Real, false, kVector, kPacks>;
  static constexpr int kAhead = kAheadOf<kPacks>;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  ScoresV2<T, kVector, kLanes, kGroup, kPacks> scores;
  TripleTarget<T, false, kVector, kLanes, kGroup, kPacks> target;
  EdgeDropout<Real> dropout;
  const T* x;
  i64 x_stride;
  const T* y;
  i64 y_stride;

  const T* x_row = nullptr;
  u64 stream = 0;
  Pack<T, kVector> own[kPacks] = {};
  Pack<T, kVector> ahead[kAhead][kPacks] = {};
  const T* y_row[kAhead] = {};
  i64 col_id[kAhead] = {};

  __device__ void begin_row(i64 row) {
    x_row = columns.row_of(x, row, x_stride);
    columns.load_packs(x_row, own);
    if (dropout.row_ids) stream = dropout.stream_of(dropout.row_ids[row]);
  }
  __device__ void fetch(int k, i64 column, i64) {
    y_row[k] = columns.row_of(y, column, y_stride);
    columns.load_packs(y_row[k], ahead[k]);
    if (dropout.row_ids) col_id[k] = dropout.col_ids[column];
  }
  __device__ void add(int k, i64 nonzero, Running& sum) {
    const Real score =
        over_lanes<kLanes>(scores.part(columns, x_row, own, y_row[k], ahead[k], nonzero));
    sum.take(score, false, dropout.factor(stream, col_id[k], columns), ahead[k]);
  }
};

template <class T, class Index, int kVector, int kLanes, int kGroup, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    attend_v2(const i64* indptr, const Index* indices, const i64* tiles, const T* x, i64 x_stride,
              const T* y, i64 y_stride, const Sum<T>* a, const T* features, double slope,
              const i64* row_ids, const i64* col_ids, i64 key, i64 threshold, double factor,
              i64 heads, i64 width, i64 column_tiles, Sum<T>* m, Sum<T>* n, Sum<T>* o, Sum<T>* p,
              Sum<T>* pi, i64 ending, T* out, Sum<T>* lse, Sum<T>* carry, i64 carry_stride) {
  using Work = AttendV2<T, kVector, kLanes, kGroup, kPacks>;
  const HeadColumns<kVector, kLanes, kGroup, kPacks> columns(heads, width, column_tiles);
  Work work{columns,
            {columns, a, features, slope},
            {{m, n, o, p, pi, heads * width, heads},
             carried_triples<Sum<T>, false>(carry, carry_stride, heads, width),
             ending,
             out,
             lse},
            {row_ids, col_ids, key, threshold, factor},
            x,
            x_stride,
            y,
            y_stride};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

// Gradients in y, over the rows of the transpose: of the sums, and through the scores.
template <class T, int kVector, int kLanes, int kGroup, int kPacks> struct AttendV2Columns {
  using Real = Sum<T>;
  using Running = GradientSum<Real, kVector, kPacks>;
  static constexpr int kAhead = 2;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  ScoresV2<T, kVector, kLanes, kGroup, kPacks> scores;
  GradientTarget<T, kVector, kPacks> target;
  EdgeDropout<Real> dropout;
  const T* x;
  i64 x_stride;
  const T* y;
  i64 y_stride;
  const T* g;
  i64 g_stride;
  const Real *lse, *inner;  // inner: D
  const int* narrow_order;
  const i64* wide_order;

  // Of the source.
  const T* y_row = nullptr;
  i64 source_id = 0;
  Pack<T, kVector> own[kPacks] = {};
  // Of the destinations on their way.
  Pack<T, kVector> x_ahead[kAhead][kPacks] = {}, g_ahead[kAhead][kPacks] = {};
  i64 destination[kAhead] = {}, row_id[kAhead] = {};
  Real normaliser[kAhead] = {}, mean[kAhead] = {};

  __device__ void begin_row(i64 row) {
    y_row = columns.row_of(y, row, y_stride);
    columns.load_packs(y_row, own);
    if (dropout.row_ids) source_id = dropout.col_ids[row];
  }
  __device__ void fetch(int k, i64 column, i64) {
    destination[k] = column;
    normaliser[k] = __ldg(lse + columns.number(column));
    mean[k] = __ldg(inner + columns.number(column));
    if (dropout.row_ids) row_id[k] = dropout.row_ids[column];
    columns.load_packs(columns.row_of(x, column, x_stride), x_ahead[k]);
    columns.load_packs(columns.row_of(g, column, g_stride), g_ahead[k]);
  }
  __device__ void add(int k, i64 nonzero, Running& sum) {
    const T* const x_row = columns.row_of(x, destination[k], x_stride);
    const T* const g_row = columns.row_of(g, destination[k], g_stride);
    const i64 edge = scores.features ? listed_row(narrow_order, wide_order, nonzero) : nonzero;
    const Real score =
        over_lanes<kLanes>(scores.part(columns, x_row, x_ahead[k], y_row, own, edge));
    const Real product = over_lanes<kLanes>(partial_product<Real>(own, g_ahead[k], columns) +
                                            other_product<Real, kVector>(y_row, g_row, columns));
    const Real weight = weight_of(score, normaliser[k]);
    const Real kept = dropout.factor(dropout.stream_of(row_id[k]), source_id, columns);
    const Real gradient = weight * (product * kept - mean[k]);
    sum.take(weight * kept, g_ahead[k]);
    unrolled<kPacks, kVector>(
        [&](int p, int v) { sum.sums[p].lane[v] += scores.change(gradient, p, v); });
  }
};

template <class T, class Index, int kVector, int kLanes, int kGroup, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    attend_v2_columns(const i64* indptr, const Index* indices, const i64* tiles, const T* x,
                      i64 x_stride, const T* y, i64 y_stride, const Sum<T>* a, const T* features,
                      const T* g, i64 g_stride, const Sum<T>* lse, const Sum<T>* inner,
                      const int* narrow_order, const i64* wide_order, double slope,
                      const i64* row_ids, const i64* col_ids, i64 key, i64 threshold, double factor,
                      i64 heads, i64 width, i64 column_tiles, T* dy, Sum<T>* carry,
                      i64 carry_stride) {
  using Work = AttendV2Columns<T, kVector, kLanes, kGroup, kPacks>;
  const HeadColumns<kVector, kLanes, kGroup, kPacks> columns(heads, width, column_tiles);
  Work work{columns,
            {columns, a, features, slope},
            {dy, nullptr, carry, carry_stride},
            {row_ids, col_ids, key, threshold, factor},
            x,
            x_stride,
            y,
            y_stride,
            g,
            g_stride,
            lse,
            inner,
            narrow_order,
            wide_order};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

// Gradients in x and a, over rows, and in the features of edges.
template <class T, int kVector, int kLanes, int kGroup, int kPacks> struct AttendV2Rows {
  using Real = Sum<T>;
  using Running = GradientSum<Real, kVector, kPacks>;
  static constexpr int kAhead = 2;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  ScoresV2<T, kVector, kLanes, kGroup, kPacks> scores;
  GradientTarget<T, kVector, kPacks> target;
  EdgeDropout<Real> dropout;
  const T* x;
  i64 x_stride;
  const T* y;
  i64 y_stride;
  const T* g;
  i64 g_stride;
  const Real *lse, *inner;  // inner: D
  T* feature_gradients;     // or null

  // Of the destination.
  const T *x_row = nullptr, *g_row = nullptr;
  u64 stream = 0;
  Real normaliser = 0, mean = 0;
  Pack<T, kVector> own[kPacks] = {}, own_g[kPacks] = {};
  // Of the sources on their way.
  Pack<T, kVector> ahead[kAhead][kPacks] = {};
  const T* y_row[kAhead] = {};
  i64 col_id[kAhead] = {};
  Pack<Real, kVector> of_a[kPacks] = {};  // over all rows

  __device__ void begin_row(i64 row) {
    x_row = columns.row_of(x, row, x_stride);
    g_row = columns.row_of(g, row, g_stride);
    columns.load_packs(x_row, own);
    columns.load_packs(g_row, own_g);
    normaliser = lse[columns.number(row)];
    mean = inner[columns.number(row)];
    if (dropout.row_ids) stream = dropout.stream_of(dropout.row_ids[row]);
  }
  __device__ void fetch(int k, i64 column, i64) {
    y_row[k] = columns.row_of(y, column, y_stride);
    columns.load_packs(y_row[k], ahead[k]);
    if (dropout.row_ids) col_id[k] = dropout.col_ids[column];
  }
  __device__ void add(int k, i64 nonzero, Running& sum) {
    const Real score =
        over_lanes<kLanes>(scores.part(columns, x_row, own, y_row[k], ahead[k], nonzero));
    const Real product = over_lanes<kLanes>(partial_product<Real>(own_g, ahead[k], columns) +
                                            other_product<Real, kVector>(g_row, y_row[k], columns));
    const Real kept = dropout.factor(stream, col_id[k], columns);
    const Real gradient = weight_of(score, normaliser) * (product * kept - mean);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) break;
      Pack<T, kVector> narrowed;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Real change = scores.change(gradient, p, v);
        sum.sums[p].lane[v] += change;
        of_a[p].lane[v] += gradient * scores.relu(scores.argument[p].lane[v]);
        narrow(change, narrowed.lane[v]);
      }
      if (feature_gradients && columns.active) {
        const i64 stride = columns.heads * columns.width;
        store(columns.row_of(feature_gradients, nonzero, stride) + columns.column(p), narrowed);
      }
    }
  }

  // What all groups have found for a, in the order of groups. Every thread of the block comes here.
  __device__ void write_of_a(Real* place) const {
    __shared__ Pack<Real, kVector> found[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      __syncthreads();  // somebody may still be reading the pack before
      found[thread] = of_a[p];
      __syncthreads();
      if (thread >= kGroup || !columns.active || !columns.has(p)) continue;
      Pack<Real, kVector> sum = found[thread];
      for (int group = 1; group < kThreads / kGroup; ++group) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) { sum.lane[v] += found[group * kGroup + thread].lane[v]; }
      }
      store(columns.row_of(place, 0, 0) + columns.column(p), sum);
    }
  }
};

template <class T, class Index, int kVector, int kLanes, int kGroup, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    attend_v2_rows(const i64* indptr, const Index* indices, const i64* tiles, const T* x,
                   i64 x_stride, const T* y, i64 y_stride, const Sum<T>* a, const T* features,
                   const T* g, i64 g_stride, const Sum<T>* lse, const Sum<T>* inner, double slope,
                   const i64* row_ids, const i64* col_ids, i64 key, i64 threshold, double factor,
                   i64 heads, i64 width, i64 column_tiles, T* dx, T* feature_gradients,
                   Sum<T>* of_tiles, Sum<T>* carry, i64 carry_stride) {
  using Work = AttendV2Rows<T, kVector, kLanes, kGroup, kPacks>;
  const HeadColumns<kVector, kLanes, kGroup, kPacks> columns(heads, width, column_tiles);
  Work work{columns,
            {columns, a, features, slope},
            {dx, nullptr, carry, carry_stride},
            {row_ids, col_ids, key, threshold, factor},
            x,
            x_stride,
            y,
            y_stride,
            g,
            g_stride,
            lse,
            inner,
            feature_gradients};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, indices, tiles, work);
  work.write_of_a(of_tiles + static_cast<i64>(blockIdx.x) * heads * width);
}

}  // namespace spgnn
