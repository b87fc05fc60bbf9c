// Softmaxes that are not finished: largest score, sum of exponentials, weighted sum of features.
#pragma once

#include "heads.cuh"
#include "merge_path.cuh"

namespace spgnn {

// One thread's part of a row's triple. kTwice: also of the nonzeros with a positive argument alone.
template <class Real, bool kTwice, int kVector, int kPacks>
struct Triple {
  static constexpr int kSums = kTwice ? 2 * kPacks : kPacks;
  Pack<Real, kVector> sums[kSums];  // O, then P
  Real m, n, pi;

  __device__ void clear() {
    m = minus_infinity<Real>();
    n = pi = 0;
#pragma unroll
    for (int p = 0; p < kSums; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[p].lane[v] = 0;
    }
  }

  __device__ void scale(Real factor) {
    n *= factor;
    pi *= factor;
#pragma unroll
    for (int p = 0; p < kSums; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[p].lane[v] *= factor;
    }
  }

  // One exponential serves both cases: of a new largest score, and of any other.
  template <class T>
  __device__ void take(Real score, bool positive, Real kept, const Pack<T, kVector> (&z)[kPacks]) {
    const bool largest = score > m;
    const Real power =
        score == minus_infinity<Real>() ? Real(0) : exponential(largest ? m - score : score - m);
    const Real before = largest ? power : Real(1), weight = largest ? Real(1) : power;
    if (largest) m = score;
    n = n * before + weight;
    if (kTwice) pi = pi * before + (positive ? weight : Real(0));
    const Real used = weight * kept, also = positive ? used : Real(0);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Real feature = widen(z[p].lane[v]);
        Real& sum = sums[p].lane[v];
        sum = sum * before + used * feature;
        if (kTwice) {
          Real& above = sums[kSums - kPacks + p].lane[v];
          above = above * before + also * feature;
        }
      }
    }
  }

  __device__ void add(Triple other) {
    const Real nothing = minus_infinity<Real>();
    const Real top = m > other.m ? m : other.m;
    scale(m == nothing ? Real(0) : exponential(m - top));
    other.scale(other.m == nothing ? Real(0) : exponential(other.m - top));
    m = top;
    n += other.n;
    pi += other.pi;
#pragma unroll
    for (int p = 0; p < kSums; ++p) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[p].lane[v] += other.sums[p].lane[v];
    }
  }
};

// Where triples of rows lie: sums at `stride`, numbers at `number_stride` from row to row.
template <class Real>
struct Triples {
  Real *m, *n, *o, *p, *pi;  // p and pi may be null
  long long stride, number_stride;

  template <bool kTwice, int kVector, int kPacks, class Columns>
  __device__ Triple<Real, kTwice, kVector, kPacks> read(long long row,
                                                        const Columns& columns) const {
    Triple<Real, kTwice, kVector, kPacks> triple;
    triple.clear();
    const long long number = row * number_stride + columns.head;
    triple.m = m[number];
    triple.n = n[number];
    if (kTwice && pi) triple.pi = pi[number];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!columns.has(k)) break;
      const long long c = columns.column(k);
      triple.sums[k] = load<Real, kVector>(columns.row_of(o, row, stride) + c);
      if (kTwice && p) {
        triple.sums[triple.kSums - kPacks + k] =
            load<Real, kVector>(columns.row_of(p, row, stride) + c);
      }
    }
    return triple;
  }

  template <bool kTwice, int kVector, int kPacks, class Columns>
  __device__ void write(long long row, const Columns& columns,
                        const Triple<Real, kTwice, kVector, kPacks>& triple) const {
    if (!columns.active) return;
    const long long number = row * number_stride + columns.head;
    if (columns.leads()) {
      m[number] = triple.m;
      n[number] = triple.n;
      if (kTwice) pi[number] = triple.pi;
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!columns.has(k)) break;
      const long long c = columns.column(k);
      store(columns.row_of(o, row, stride) + c, triple.sums[k]);
      if (kTwice) {
        store(columns.row_of(p, row, stride) + c, triple.sums[triple.kSums - kPacks + k]);
      }
    }
  }
};

// Triples of rows that cross tiles, beside each other: O, P, m, n, pi.
template <class Real, bool kTwice>
__device__ inline Triples<Real> carried_triples(Real* carry, long long stride, long long heads,
                                                long long width) {
  Real* const m = carry + (kTwice ? 2 : 1) * heads * width;
  return {m, m + heads, carry, carry + heads * width, m + 2 * heads, stride, stride};
}

enum Ending { kStored, kMerged, kFinished };

// What becomes of a row's triple: stored, merged into what is there, or divided by n.
template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks>
struct TripleTarget {
  using Real = Sum<T>;
  using Columns = HeadColumns<kVector, kLanes, kGroup, kPacks>;
  using Running = Triple<Real, kTwice, kVector, kPacks>;
  Triples<Real> rows;
  long long ending;
  T* out;
  Real* lse;

  __device__ void write(long long row, const Columns& columns, Running triple) const {
    if (ending == kFinished) {
      finish(row, columns, triple);
      return;
    }
    if (ending == kMerged) {
      if (triple.n == 0) return;
      Running before = rows.template read<kTwice, kVector, kPacks>(row, columns);
      __syncwarp(mates<kLanes>());  // the first of a head overwrites what the others read
      before.add(triple);
      triple = before;
    }
    rows.write(row, columns, triple);
  }

  __device__ void finish(long long row, const Columns& columns, Running triple) const {
    if (!columns.active) return;
    if (columns.leads()) lse[columns.number(row)] = triple.m + logarithm(triple.n);
    triple.scale(triple.n == 0 ? Real(0) : Real(1) / triple.n);
    if (kTwice && columns.leads()) rows.pi[columns.number(row)] = triple.pi;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!columns.has(k)) break;
      const long long c = columns.column(k), stride = columns.heads * columns.width;
      Pack<T, kVector> narrowed;
#pragma unroll
      for (int v = 0; v < kVector; ++v) narrow(triple.sums[k].lane[v], narrowed.lane[v]);
      store(columns.row_of(out, row, stride) + c, narrowed);
      if (kTwice) {
        store(columns.row_of(rows.p, row, stride) + c, triple.sums[triple.kSums - kPacks + k]);
      }
    }
  }
};

// Triples of all rows, to where the target says: merged, or finished.
template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks>
__global__ void __launch_bounds__(kThreads)
    end_triples(Sum<T>* from_m, Sum<T>* from_n, Sum<T>* from_o, Sum<T>* from_p, Sum<T>* from_pi,
                long long count, long long heads, long long width, Sum<T>* m, Sum<T>* n, Sum<T>* o,
                Sum<T>* p, Sum<T>* pi, long long ending, T* out, Sum<T>* lse) {
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  const long long i = static_cast<long long>(blockIdx.x) * (kThreads / kGroup) + group;
  if (i >= count) return;
  const long long stride = heads * width;
  const Triples<Sum<T>> from{from_m, from_n, from_o, from_p, from_pi, stride, heads};
  const TripleTarget<T, kTwice, kVector, kLanes, kGroup, kPacks> target{
      {m, n, o, p, pi, stride, heads}, ending, out, lse};
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns(heads, width, 1);
  // The numbers last, for every tile of columns needs those that are there.
  const long long tiles = (width + columns.kTile - 1) / columns.kTile;
  for (long long tile = tiles > 0 ? tiles - 1 : 0; tile >= 0; --tile) {
    columns.begin = tile * columns.kTile;
    target.write(i, columns, from.template read<kTwice, kVector, kPacks>(i, columns));
  }
}

// Merges the triples of rows that cross tiles. Slots of a row follow each other.
template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks>
struct MergeCarried {
  using Running = Triple<Sum<T>, kTwice, kVector, kPacks>;
  static constexpr int kAhead = 2;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  Triples<Sum<T>> from, carry;
  TripleTarget<T, kTwice, kVector, kLanes, kGroup, kPacks> target;
  const long long* rows;
  Running ahead[kAhead] = {};

  __device__ void begin_row(long long) {}
  __device__ void fetch(int k, int, long long slot) {
    ahead[k] = from.template read<kTwice, kVector, kPacks>(slot, columns);
  }
  __device__ void add(int k, long long, Running& sum) { sum.add(ahead[k]); }
  __device__ void write_row(long long row, const Running& sum) {
    target.write(rows[row], columns, sum);
  }
  __device__ void write_carry(long long slot, const Running& sum) {
    carry.write(slot, columns, sum);
  }
};

template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    merge_carried(const long long* indptr, const int* slots, const long long* tiles,
                  const long long* rows, Sum<T>* carried, long long carried_stride, long long heads,
                  long long width, long long column_tiles, Sum<T>* m, Sum<T>* n, Sum<T>* o,
                  Sum<T>* p, Sum<T>* pi, long long ending, T* out, Sum<T>* lse, Sum<T>* carry,
                  long long carry_stride) {
  using Work = MergeCarried<T, kTwice, kVector, kLanes, kGroup, kPacks>;
  Work work{{heads, width, column_tiles},
            carried_triples<Sum<T>, kTwice>(carried, carried_stride, heads, width),
            carried_triples<Sum<T>, kTwice>(carry, carry_stride, heads, width),
            {{m, n, o, p, pi, heads * width, heads}, ending, out, lse},
            rows};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, slots, tiles, work);
}

}  // namespace spgnn
