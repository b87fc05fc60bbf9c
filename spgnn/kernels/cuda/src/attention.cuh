// Attention, forward: scores, softmax and weighted sum in one pass over the nonzeros, balanced by
// the merge path. No number per nonzero is kept.
#pragma once

#include "triples.cuh"

namespace spgnn {

// GAT: scores LeakyReLU(d_i + s_j [+ t_ij]).
template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks>
struct Attend {
  using Real = Sum<T>;
  using Running = Triple<Real, kTwice, kVector, kPacks>;
  static constexpr int kAhead = kAheadOf<kPacks>;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  TripleTarget<T, kTwice, kVector, kLanes, kGroup, kPacks> target;
  Triples<Real> carry;
  EdgeDropout<Real> dropout;
  const Real *d, *s;
  const T* z;
  long long z_stride;
  const Real* edge_scores;  // or null
  Real slope;

  Real own = 0;  // d_i
  unsigned long long stream = 0;
  Pack<T, kVector> ahead[kAhead][kPacks] = {};
  Real score[kAhead] = {};
  long long col_id[kAhead] = {};

  __device__ void begin_row(long long row) {
    own = d[columns.number(row)];
    if (dropout.row_ids) stream = dropout.stream_of(dropout.row_ids[row]);
  }
  __device__ void fetch(int k, long long column, long long nonzero) {
    score[k] = __ldg(s + columns.number(column));
    if (edge_scores) score[k] += edge_scores[columns.number(nonzero)];
    if (dropout.row_ids) col_id[k] = dropout.col_ids[column];
    columns.load_packs(columns.row_of(z, column, z_stride), ahead[k]);
  }
  __device__ void add(int k, long long, Running& sum) {
    const Real argument = own + score[k];
    const Real kept =
        dropout.row_ids ? dropout.factor(stream, col_id[k], columns.heads, columns.head) : Real(1);
    const bool positive = argument > 0;
    sum.take(positive ? argument : argument * slope, positive, kept, ahead[k]);
  }
  __device__ void write_row(long long row, const Running& sum) { target.write(row, columns, sum); }
  __device__ void write_carry(long long slot, const Running& sum) {
    carry.write(slot, columns, sum);
  }
};

template <class T, class Index, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks,
          int kItems>
__global__ void __launch_bounds__(kThreads)
    attend(const long long* indptr, const Index* indices, const long long* tiles, const Sum<T>* d,
           const Sum<T>* s, const T* z, long long z_stride, const Sum<T>* edge_scores, double slope,
           const long long* row_ids, const long long* col_ids, long long key, long long threshold,
           double factor, long long heads, long long width, long long column_tiles, Sum<T>* m,
           Sum<T>* n, Sum<T>* o, Sum<T>* p, Sum<T>* pi, long long ending, T* out, Sum<T>* lse,
           Sum<T>* carry, long long carry_stride) {
  using Work = Attend<T, kTwice, kVector, kLanes, kGroup, kPacks>;
  Work work{{heads, width, column_tiles},
            {{m, n, o, p, pi, heads * width, heads}, ending, out, lse},
            carried_triples<Sum<T>, kTwice>(carry, carry_stride, heads, width),
            {row_ids, col_ids, key, threshold, factor},
            d,
            s,
            z,
            z_stride,
            edge_scores,
            static_cast<Sum<T>>(slope)};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

}  // namespace spgnn
