// Attention as in GAT: scores, softmax and weighted sum in one pass over the nonzeros, balanced by
// the merge path, and gradients over the rows of the transpose. No number per nonzero is kept.
#pragma once

#include "heads.cuh"

namespace spgnn {

// GAT: scores LeakyReLU(d_i + s_j [+ t_ij]).
template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks> struct Attend {
  using Real = Sum<T>;
  using Running = Triple<Real, kTwice, kVector, kPacks>;
  static constexpr int kAhead = kAheadOf<kPacks>;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  TripleTarget<T, kTwice, kVector, kLanes, kGroup, kPacks> target;
  EdgeDropout<Real> dropout;
  const Real *d, *s;
  const T* z;
  i64 z_stride;
  const Real* edge_scores;  // or null
  Real slope;

  Real own = 0;  // d_i
  u64 stream = 0;
  Pack<T, kVector> ahead[kAhead][kPacks] = {};
  Real score[kAhead] = {};
  i64 col_id[kAhead] = {};

  __device__ void begin_row(i64 row) {
    own = d[columns.number(row)];
    if (dropout.row_ids) stream = dropout.stream_of(dropout.row_ids[row]);
  }
  __device__ void fetch(int k, i64 column, i64 nonzero) {
    score[k] = __ldg(s + columns.number(column));
    if (edge_scores) score[k] += edge_scores[columns.number(nonzero)];
    if (dropout.row_ids) col_id[k] = dropout.col_ids[column];
    columns.load_packs(columns.row_of(z, column, z_stride), ahead[k]);
  }
  __device__ void add(int k, i64, Running& sum) {
    const Real argument = own + score[k];
    const Real kept = dropout.factor(stream, col_id[k], columns);
    const bool positive = argument > 0;
    sum.take(positive ? argument : argument * slope, positive, kept, ahead[k]);
  }
};

template <class T, class Index, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks,
          int kItems>
__global__ void __launch_bounds__(kThreads)
    attend(const i64* indptr, const Index* indices, const i64* tiles, const Sum<T>* d,
           const Sum<T>* s, const T* z, i64 z_stride, const Sum<T>* edge_scores, double slope,
           const i64* row_ids, const i64* col_ids, i64 key, i64 threshold, double factor, i64 heads,
           i64 width, i64 column_tiles, Sum<T>* m, Sum<T>* n, Sum<T>* o, Sum<T>* p, Sum<T>* pi,
           i64 ending, T* out, Sum<T>* lse, Sum<T>* carry, i64 carry_stride) {
  using Work = Attend<T, kTwice, kVector, kLanes, kGroup, kPacks>;
  Work work{{heads, width, column_tiles},
            {{m, n, o, p, pi, heads * width, heads},
             carried_triples<Sum<T>, kTwice>(carry, carry_stride, heads, width),
             ending,
             out,
             lse},
            {row_ids, col_ids, key, threshold, factor},
            d,
            s,
            z,
            z_stride,
            edge_scores,
            static_cast<Sum<T>>(slope)};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

// One thread's part of a row of gradients: its columns, and a number of its head.
template <class Real, int kVector, int kPacks>
struct GradientSum : Accumulator<Real, kVector, kPacks> {
  using Columns = Accumulator<Real, kVector, kPacks>;
  Real number;

  __device__ void clear() {
    Columns::clear();
    number = 0;
  }
  __device__ void add(const GradientSum& other) {
    Columns::add(other);
    number += other.number;
  }
};

// Where rows of gradients go: their columns to `rows`, the numbers of heads, if any, to `numbers`;
// of rows that cross tiles both to `carry`, which is summed up later.
template <class T, int kVector, int kPacks> struct GradientTarget {
  using Real = Sum<T>;
  T* rows;
  Real *numbers, *carry;
  i64 carry_stride;

  template <class Columns>
  __device__ void write_row(i64 row, const Columns& columns,
                            const GradientSum<Real, kVector, kPacks>& sum) const {
    if (!columns.active) return;
    if (numbers && columns.leads()) numbers[columns.number(row)] = sum.number;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) break;
      Pack<T, kVector> narrowed;
#pragma unroll
      for (int v = 0; v < kVector; ++v) narrow(sum.sums[p].lane[v], narrowed.lane[v]);
      const i64 stride = columns.heads * columns.width;
      store(columns.row_of(rows, row, stride) + columns.column(p), narrowed);
    }
  }

  template <class Columns>
  __device__ void write_carry(i64 slot, const Columns& columns,
                              const GradientSum<Real, kVector, kPacks>& sum) const {
    if (!columns.active) return;
    Real* const place = carry + slot * carry_stride;
    if (numbers && columns.leads()) {
      place[columns.heads * columns.width + columns.head] = sum.number;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) break;
      store(columns.row_of(place, 0, 0) + columns.column(p), sum.sums[p]);
    }
  }
};

// The weight of an edge from its score; scores of −∞ have none, nor have rows of nothing else.
template <class Real> __device__ inline Real weight_of(Real score, Real lse) {
  return score == minus_infinity<Real>() ? Real(0) : exponential(score - lse);
}

// This thread's part of <x, y> over columns of a head that both have in packs.
template <class Real, class T, int kVector, int kPacks, class Columns>
__device__ inline Real partial_product(const Pack<T, kVector> (&x)[kPacks],
                                       const Pack<T, kVector> (&y)[kPacks],
                                       const Columns& columns) {
  Real sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!columns.has(p)) break;
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum += widen(x[p].lane[v]) * widen(y[p].lane[v]);
  }
  return sum;
}
// The same over columns that are in no packs.
template <class Real, int kVector, class T, class Columns>
__device__ inline Real other_product(const T* x, const T* y, const Columns& columns) {
  Real sum = 0;
  columns.for_each_other([&](i64 c) {
    const Pack<T, kVector> a = load_shared_by_many<T, kVector>(x + c);
    const Pack<T, kVector> b = load_shared_by_many<T, kVector>(y + c);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum += widen(a.lane[v]) * widen(b.lane[v]);
  });
  return sum;
}

// products[i, h] = <x[i, h], y[i, h]>.
template <class T, class Other, int kVector, int kLanes, int kGroup, int kPacks>
__global__ void __launch_bounds__(kThreads)
    head_products(const T* x, i64 x_stride, const Other* y, i64 y_stride, Sum<T>* products,
                  i64 count, i64 heads, i64 width) {
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  const i64 i = static_cast<i64>(blockIdx.x) * (kThreads / kGroup) + group;
  if (i >= count) return;
  const HeadColumns<kVector, kLanes, kGroup, kPacks> columns(heads, width, 1);
  const T* const x_row = columns.row_of(x, i, x_stride);
  const Other* const y_row = columns.row_of(y, i, y_stride);
  Sum<T> sum = 0;
  for (i64 c = columns.lane * kVector; c < width; c += kLanes * kVector) {
    const Pack<T, kVector> a = load<T, kVector>(x_row + c);
    const Pack<Other, kVector> b = load<Other, kVector>(y_row + c);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum += widen(a.lane[v]) * widen(b.lane[v]);
  }
  sum = over_lanes<kLanes>(sum);
  if (columns.leads()) products[columns.number(i)] = sum;
}

template <class T, int kVector, int kLanes, int kGroup, int kPacks> struct AttendBackward {
  using Real = Sum<T>;
  using Running = GradientSum<Real, kVector, kPacks>;
  static constexpr int kAhead = kAheadOf<kPacks>;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  GradientTarget<T, kVector, kPacks> target;
  EdgeDropout<Real> dropout;
  const Real *d, *s;
  const T* z;
  i64 z_stride;
  const T* g;
  i64 g_stride;
  const Real *lse, *inner, *edge_scores;  // inner: D
  Real* edge_gradients;
  const int* narrow_order;
  const i64* wide_order;
  Real slope;

  // Of the source.
  Real source = 0;
  i64 source_id = 0;
  const T* z_row = nullptr;
  Pack<T, kVector> own[kPacks] = {};
  // Of the destinations on their way.
  Pack<T, kVector> ahead[kAhead][kPacks] = {};
  const T* g_row[kAhead] = {};
  Real argument[kAhead] = {}, normaliser[kAhead] = {}, mean[kAhead] = {};
  i64 row_id[kAhead] = {};

  __device__ void begin_row(i64 row) {
    source = s[columns.number(row)];
    if (dropout.row_ids) source_id = dropout.col_ids[row];
    z_row = columns.row_of(z, row, z_stride);
    columns.load_packs(z_row, own);
  }
  __device__ i64 edge(i64 nonzero) const {
    return columns.number(listed_row(narrow_order, wide_order, nonzero));
  }
  __device__ void fetch(int k, i64 destination, i64 nonzero) {
    const i64 number = columns.number(destination);
    argument[k] = __ldg(d + number);
    normaliser[k] = __ldg(lse + number);
    mean[k] = __ldg(inner + number);
    if (edge_scores) argument[k] += edge_scores[edge(nonzero)];
    if (dropout.row_ids) row_id[k] = dropout.row_ids[destination];
    g_row[k] = columns.row_of(g, destination, g_stride);
    columns.load_packs(g_row[k], ahead[k]);
  }
  __device__ void add(int k, i64 nonzero, Running& sum) {
    Real product = partial_product<Real>(own, ahead[k], columns);
    product = over_lanes<kLanes>(product + other_product<Real, kVector>(z_row, g_row[k], columns));
    const Real both = source + argument[k];
    const bool positive = both > 0;
    const Real weight = weight_of(positive ? both : both * slope, normaliser[k]);
    const Real kept = dropout.factor(dropout.stream_of(row_id[k]), source_id, columns);
    const Real gradient = weight * (product * kept - mean[k]) * (positive ? Real(1) : slope);
    sum.number += gradient;
    if (edge_gradients && columns.leads()) edge_gradients[edge(nonzero)] = gradient;
    sum.take(weight * kept, ahead[k]);
  }
};

template <class T, class Index, int kVector, int kLanes, int kGroup, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    attend_backward(const i64* indptr, const Index* indices, const i64* tiles, const Sum<T>* d,
                    const Sum<T>* s, const T* z, i64 z_stride, const T* g, i64 g_stride,
                    const Sum<T>* lse, const Sum<T>* inner, const Sum<T>* edge_scores,
                    const int* narrow_order, const i64* wide_order, double slope,
                    const i64* row_ids, const i64* col_ids, i64 key, i64 threshold, double factor,
                    i64 heads, i64 width, i64 column_tiles, T* dz, Sum<T>* ds,
                    Sum<T>* edge_gradients, Sum<T>* carry, i64 carry_stride) {
  using Work = AttendBackward<T, kVector, kLanes, kGroup, kPacks>;
  Work work{{heads, width, column_tiles},
            {dz, ds, carry, carry_stride},
            {row_ids, col_ids, key, threshold, factor},
            d,
            s,
            z,
            z_stride,
            g,
            g_stride,
            lse,
            inner,
            edge_scores,
            edge_gradients,
            narrow_order,
            wide_order,
            static_cast<Sum<T>>(slope)};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

}  // namespace spgnn
