// Which threads have which columns of heads, and softmaxes that are not finished.
#pragma once

#include "merge_path.cuh"
#include "rows.cuh"
#include "types.cuh"

namespace spgnn {

// Nonzeros on their way to a thread that has so many packs of columns.
template <int kPacks> constexpr int kAheadOf = kPacks > 2 ? 2 : 4;

// kLanes threads share the columns of a head, kGroup threads kGroup / kLanes heads, kTile columns
// of each at a time; the grid's second dimension counts tiles of heads, and of columns.
template <int kVector, int kLanes, int kGroup, int kPacks> struct HeadColumns {
  static constexpr int kTile = kLanes * kPacks * kVector;
  i64 heads, width, head, begin;
  int lane;
  bool active;  // others come along with the last head, and write nothing

  __device__ HeadColumns(i64 all_heads, i64 of_head, i64 column_tiles)
      : heads(all_heads), width(of_head) {
    const int thread = static_cast<int>(threadIdx.x);
    const i64 tile = blockIdx.y;
    head = tile / column_tiles * (kGroup / kLanes) + thread % kGroup / kLanes;
    begin = tile % column_tiles * kTile;
    lane = thread % kLanes;
    active = head < heads;
    if (!active) head = heads - 1;
  }

  __device__ i64 column(int pack) const { return begin + (pack * kLanes + lane) * kVector; }
  __device__ bool has(int pack) const { return column(pack) < width; }
  __device__ bool leads() const { return active && lane == 0 && begin == 0; }
  // Where this head begins in row r of a matrix.
  template <class T> __device__ T* row_of(T* matrix, i64 r, i64 stride) const {
    return matrix + r * stride + head * width;
  }
  __device__ i64 number(i64 r) const { return r * heads + head; }

  template <class T>
  __device__ void load_packs(const T* row, Pack<T, kVector> (&packs)[kPacks]) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (has(p)) packs[p] = load_shared_by_many<T, kVector>(row + column(p));
    }
  }

  // f(column) for this thread's columns of the head that are outside of the tile.
  template <class Function> __device__ void for_each_other(Function f) const {
    if (width <= kTile) return;
    for (i64 c = lane * kVector; c < width; c += kLanes * kVector) {
      if (c < begin || c >= begin + kTile) f(c);
    }
  }
};

// The sum over the threads of a head; every one gets the same bits.
template <int kLanes, class Real> __device__ inline Real over_lanes(Real sum) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(mates<kLanes>(), sum, offset);
  }
  return sum;
}

// What dropout multiplies weights with: a hash of the edge's ends, the bits of the CPU kernel.
template <class Real> struct EdgeDropout {
  const i64 *row_ids, *col_ids;  // of destinations and sources; null: nothing is dropped
  u64 seed, threshold;
  Real kept;

  __device__ EdgeDropout(const i64* rows, const i64* cols, i64 key, i64 limit, double factor)
      : row_ids(rows), col_ids(cols), seed(mix64(static_cast<u64>(key))),
        threshold(static_cast<u64>(limit)), kept(static_cast<Real>(factor)) {}

  __device__ u64 stream_of(i64 row_id) const {
    return mix64(seed + kGolden * (static_cast<u64>(row_id) + 1));
  }
  template <class Columns>
  __device__ Real factor(u64 stream, i64 col_id, const Columns& columns) const {
    if (!row_ids) return 1;
    const u64 place =
        static_cast<u64>(col_id) * static_cast<u64>(columns.heads) + static_cast<u64>(columns.head);
    const u64 bits = mix64(stream + kGolden * (place / 2 + 1));
    const u64 half = place % 2 ? bits >> 32 : bits & 0xffffffffu;
    return half < threshold ? Real(0) : kept;
  }
};

template <class Real> __device__ inline Real minus_infinity() {
  return -__uint_as_float(0x7f800000u);
}

// One thread's part of a row's triple. kTwice: also of the nonzeros with a positive argument alone.
template <class Real, bool kTwice, int kVector, int kPacks> struct Triple {
  static constexpr int kSums = kTwice ? 2 * kPacks : kPacks;
  Pack<Real, kVector> sums[kSums];  // O, then P
  Real m, n, pi;

  __device__ void clear() {
    m = minus_infinity<Real>();
    n = pi = 0;
    unrolled<kSums, kVector>([&](int p, int v) { sums[p].lane[v] = 0; });
  }

  __device__ void scale(Real factor) {
    n *= factor;
    pi *= factor;
    unrolled<kSums, kVector>([&](int p, int v) { sums[p].lane[v] *= factor; });
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
    unrolled<kPacks, kVector>([&](int p, int v) {
      const Real feature = widen(z[p].lane[v]);
      Real& sum = sums[p].lane[v];
      sum = sum * before + used * feature;
      if (kTwice) {
        Real& above = sums[kSums - kPacks + p].lane[v];
        above = above * before + also * feature;
      }
    });
  }

  __device__ void add(Triple other) {
    const Real nothing = minus_infinity<Real>();
    const Real top = m > other.m ? m : other.m;
    scale(m == nothing ? Real(0) : exponential(m - top));
    other.scale(other.m == nothing ? Real(0) : exponential(other.m - top));
    m = top;
    n += other.n;
    pi += other.pi;
    unrolled<kSums, kVector>([&](int p, int v) { sums[p].lane[v] += other.sums[p].lane[v]; });
  }
};

// Where triples of rows lie: sums at `stride`, numbers at `number_stride` from row to row.
template <class Real> struct Triples {
  Real *m, *n, *o, *p, *pi;  // p and pi may be null
  i64 stride, number_stride;

  template <bool kTwice, int kVector, int kPacks, class Columns>
  __device__ Triple<Real, kTwice, kVector, kPacks> read(i64 row, const Columns& columns) const {
    Triple<Real, kTwice, kVector, kPacks> triple;
    triple.clear();
    const i64 number = row * number_stride + columns.head;
    triple.m = m[number];
    triple.n = n[number];
    if (kTwice && pi) triple.pi = pi[number];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!columns.has(k)) break;
      const i64 c = columns.column(k);
      triple.sums[k] = load<Real, kVector>(columns.row_of(o, row, stride) + c);
      if (kTwice && p) {
        triple.sums[triple.kSums - kPacks + k] =
            load<Real, kVector>(columns.row_of(p, row, stride) + c);
      }
    }
    return triple;
  }

  template <bool kTwice, int kVector, int kPacks, class Columns>
  __device__ void write(i64 row, const Columns& columns,
                        const Triple<Real, kTwice, kVector, kPacks>& triple) const {
    if (!columns.active) return;
    const i64 number = row * number_stride + columns.head;
    if (columns.leads()) {
      m[number] = triple.m;
      n[number] = triple.n;
      if (kTwice) pi[number] = triple.pi;
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!columns.has(k)) break;
      const i64 c = columns.column(k);
      store(columns.row_of(o, row, stride) + c, triple.sums[k]);
      if (kTwice) {
        store(columns.row_of(p, row, stride) + c, triple.sums[triple.kSums - kPacks + k]);
      }
    }
  }
};

// Triples of rows that cross tiles, beside each other: O, P, m, n, pi.
template <class Real, bool kTwice>
__device__ inline Triples<Real> carried_triples(Real* carry, i64 stride, i64 heads, i64 width) {
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
  Triples<Real> rows, carry;
  i64 ending;
  T* out;
  Real* lse;
  const i64* row_map = nullptr;  // row r is row row_map[r] of the target

  __device__ void write_carry(i64 slot, const Columns& columns, const Running& triple) const {
    carry.write(slot, columns, triple);
  }
  __device__ void write_row(i64 row, const Columns& columns, Running triple) const {
    if (row_map) row = row_map[row];
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

  __device__ void finish(i64 row, const Columns& columns, Running triple) const {
    if (!columns.active) return;
    if (columns.leads()) lse[columns.number(row)] = triple.m + logarithm(triple.n);
    triple.scale(triple.n == 0 ? Real(0) : Real(1) / triple.n);
    if (kTwice && columns.leads()) rows.pi[columns.number(row)] = triple.pi;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!columns.has(k)) break;
      const i64 c = columns.column(k), stride = columns.heads * columns.width;
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
                i64 count, i64 heads, i64 width, Sum<T>* m, Sum<T>* n, Sum<T>* o, Sum<T>* p,
                Sum<T>* pi, i64 ending, T* out, Sum<T>* lse) {
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  const i64 i = static_cast<i64>(blockIdx.x) * (kThreads / kGroup) + group;
  if (i >= count) return;
  const i64 stride = heads * width;
  const Triples<Sum<T>> from{from_m, from_n, from_o, from_p, from_pi, stride, heads};
  const TripleTarget<T, kTwice, kVector, kLanes, kGroup, kPacks> target{
      {m, n, o, p, pi, stride, heads}, {}, ending, out, lse};
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns(heads, width, 1);
  // The numbers last, for every tile of columns needs those that are there.
  const i64 tiles = (width + columns.kTile - 1) / columns.kTile;
  for (i64 tile = tiles > 0 ? tiles - 1 : 0; tile >= 0; --tile) {
    columns.begin = tile * columns.kTile;
    target.write_row(i, columns, from.template read<kTwice, kVector, kPacks>(i, columns));
  }
}

// Merges the triples of rows that cross tiles. Slots of a row follow each other.
template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks>
struct MergeCarried {
  using Running = Triple<Sum<T>, kTwice, kVector, kPacks>;
  static constexpr int kAhead = 2;
  HeadColumns<kVector, kLanes, kGroup, kPacks> columns;
  TripleTarget<T, kTwice, kVector, kLanes, kGroup, kPacks> target;
  Triples<Sum<T>> from;
  Running ahead[kAhead] = {};

  __device__ void begin_row(i64) {}
  __device__ void fetch(int k, int, i64 slot) {
    ahead[k] = from.template read<kTwice, kVector, kPacks>(slot, columns);
  }
  __device__ void add(int k, i64, Running& sum) { sum.add(ahead[k]); }
};

template <class T, bool kTwice, int kVector, int kLanes, int kGroup, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    merge_carried(const i64* indptr, const int* slots, const i64* tiles, const i64* rows,
                  Sum<T>* carried, i64 carried_stride, i64 heads, i64 width, i64 column_tiles,
                  Sum<T>* m, Sum<T>* n, Sum<T>* o, Sum<T>* p, Sum<T>* pi, i64 ending, T* out,
                  Sum<T>* lse, Sum<T>* carry, i64 carry_stride) {
  using Work = MergeCarried<T, kTwice, kVector, kLanes, kGroup, kPacks>;
  Work work{{heads, width, column_tiles},
            {{m, n, o, p, pi, heads * width, heads},
             carried_triples<Sum<T>, kTwice>(carry, carry_stride, heads, width),
             ending,
             out,
             lse,
             rows},
            carried_triples<Sum<T>, kTwice>(carried, carried_stride, heads, width)};
  walk_tile<kGroup, Work::kAhead, kItems>(indptr, slots, tiles, work);
}

}  // namespace spgnn
