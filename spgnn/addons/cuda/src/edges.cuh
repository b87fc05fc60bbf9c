// Nonzeros with rows of numbers of their own: sums, products and extremes of messages (EdgeOp of
// types.hpp), along the merge path.
#pragma once

#include "nonzeros.cuh"
#include "spmm.cuh"

namespace spgnn {

// Two more than on a CPU: x alone, and x where v, of the row that x is of, names this nonzero.
enum : int {
  kEdgeMul,
  kEdgeAdd,
  kEdgeSub,
  kEdgeDiv,
  kEdgeCopy,
  kEdgeAddRelu,
  kEdgeGate,
  kEdgeCopyX,
  kEdgePick
};

template <int kOp, class Real> __device__ inline Real message(Real x, Real v, Real w) {
  if (kOp == kEdgeMul) return x * v;
  if (kOp == kEdgeAdd) return x + v;
  if (kOp == kEdgeSub) return x - v;
  if (kOp == kEdgeDiv) return x / v;
  if (kOp == kEdgeAddRelu) return x + v < Real(0) ? Real(0) : x + v;
  if (kOp == kEdgeGate) return w + v > Real(0) ? x : Real(0);
  return kOp == kEdgeCopyX ? x : v;
}

// Messages of the nonzeros of a tile, as walk_tile takes them.
template <class T, class V, int kOp, int kVector, int kLanes, int kPacks, class Target>
struct Messages {
  using Running = typename Target::Running;
  static constexpr bool kReadsX = kOp != kEdgeCopy, kReadsV = kOp != kEdgeCopyX;
  static constexpr int kAhead = kAheadOfPacks<T, kVector, kPacks*(kReadsX + kReadsV)>;
  PackColumns<kVector, kLanes, kPacks> columns;
  Target target;
  i64 first_nonzero;  // of the tile
  const int* order;   // rows of v; null, with the next: in the order of nonzeros
  const i64* wide_order;
  u64 row_bytes;  // of x
  const T* w;     // of kEdgeGate, by row
  i64 w_stride;
  const V* v;
  i64 v_stride;
  i64 width;             // columns that one number of v serves
  bool negated = false;  // messages, so that the smallest one is the largest

  const char* source[kPacks] = {};  // where the thread's columns of x begin
  i64 v_column[kPacks] = {};
  Pack<T, kVector> there[kAhead][kPacks] = {}, own[kPacks] = {};
  Pack<V, kVector> mine[kAhead][kPacks] = {};
  i64 at[kAhead] = {};

  __device__ void begin(const T* x) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      source[p] = keep(reinterpret_cast<const char*>(x + columns.readable(p)));
      v_column[p] = columns.readable(p) / width;  // the same for all of a pack
    }
  }
  __device__ void begin_row(i64 row) {
    if constexpr (kOp == kEdgeGate) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        own[p] = load<T, kVector>(w + row * w_stride + columns.readable(p));
      }
    }
  }
  template <class Index> __device__ void fetch(int k, Index column, i64 nonzero) {
    at[k] = listed_row(order, wide_order, nonzero);
    const u64 skipped = bytes_before(column, row_bytes);
    const V* const of_v = v + (kOp == kEdgePick ? static_cast<i64>(column) : at[k]) * v_stride;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (kReadsX) there[k][p] = load_shared_by_many<T, kVector>(source[p] + skipped);
      if constexpr (kReadsV) {
        if (width == 1) {
          const V* const place = of_v + v_column[p];
          mine[k][p] = kOp == kEdgePick ? load_shared_by_many<V, kVector>(place)
                                        : load_pack_once<V, kVector>(place);
          continue;
        }
        const V number = of_v[v_column[p]];
#pragma unroll
        for (int lane = 0; lane < kVector; ++lane) mine[k][p].lane[lane] = number;
      }
    }
  }
  __device__ void add(int k, i64 nonzero, Running& sum) {
    unrolled<kPacks, kVector>([&](int p, int lane) {
      const Sum<T> other = widen(there[k][p].lane[lane]);
      Sum<T> number;
      if constexpr (kOp == kEdgePick) {
        number = mine[k][p].lane[lane] == at[k] ? other : Sum<T>(0);
      } else {
        number = message<kOp>(other, widen(mine[k][p].lane[lane]), widen(own[p].lane[lane]));
      }
      sum.take(p, lane, negated ? -number : number, static_cast<int>(nonzero - first_nonzero));
    });
  }
};

// Grid: tiles × column tiles. One number of v serves `width` columns, which is 1 unless kShared.
template <class T, class V, class Index, int kOp, int kShared, int kVector, int kLanes, int kPacks,
          int kItems>
__global__ void __launch_bounds__(kThreads)
    edge_sum(const i64* indptr, const Index* indices, const i64* tiles, const int* order,
             const i64* wide_order, const T* x, i64 x_stride, const T* w, i64 w_stride, const V* v,
             i64 v_stride, i64 width, T* out, i64 out_stride, Sum<T>* carry, i64 carry_stride,
             i64 columns) {
  using Target = ProductTarget<T, false, kVector, kPacks>;
  using Work = Messages<T, V, kOp, kVector, kLanes, kPacks, Target>;
  Work work{{columns},
            {out, out_stride, nullptr, nullptr, carry, carry_stride, false},
            tiles[3 * static_cast<i64>(blockIdx.x) + 1],
            order,
            wide_order,
            keep(x_stride * sizeof(T)),
            w,
            w_stride,
            v,
            v_stride,
            kShared ? width : 1};
  work.begin(x);
  walk_tile<kLanes, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

// A group has a nonzero: g · x, g where x + v > 0, or the sum of what there is of g, x and v.
template <class T, class Index, int kOp, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    edge_products(const i64* indptr, const Index* indices, const T* g, i64 g_stride, const T* x,
                  i64 x_stride, const T* v, i64 v_stride, T* out, i64 out_stride, i64 rows,
                  i64 nonzeros, i64 columns) {
  const int thread = static_cast<int>(threadIdx.x);
  const i64 e = static_cast<i64>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  if (e >= nonzeros) return;
  const i64 i = row_of(indptr, 0, rows, e), j = static_cast<i64>(indices[e]);
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> here{}, there{}, mine{}, made;
    if (g) here = load_shared_by_many<T, kVector>(g + i * g_stride + c);
    if (x) there = load_shared_by_many<T, kVector>(x + j * x_stride + c);
    if (v) mine = load<T, kVector>(v + e * v_stride + c);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      // What is not there is −0, which changes nothing it is added to.
      const Sum<T> none = -Sum<T>(0), a = g ? widen(here.lane[k]) : none,
                   b = x ? widen(there.lane[k]) : none, d = v ? widen(mine.lane[k]) : none;
      narrow(kOp == kEdgeAdd ? a + b + d : message<kOp>(a, kOp == kEdgeMul ? b : d, b),
             made.lane[k]);
    }
    store(out + e * out_stride + c, made);
  }
}

// A group has a nonzero: the sum of g over those of its row's `each` rows of arg that name it.
template <class T, class Arg, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    edge_picks(const i64* indptr, const T* g, i64 g_stride, const Arg* arg, i64 arg_stride,
               i64 each, T* out, i64 out_stride, i64 rows, i64 nonzeros, i64 columns) {
  const int thread = static_cast<int>(threadIdx.x);
  const i64 e = static_cast<i64>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  if (e >= nonzeros) return;
  const i64 first = row_of(indptr, 0, rows, e) * each;
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Sum<T> sum[kVector] = {};
    for (i64 r = first; r < first + each; ++r) {
      const auto named = load_shared_by_many<Arg, kVector>(arg + r * arg_stride + c);
      const auto here = load_shared_by_many<T, kVector>(g + r * g_stride + c);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum[k] += named.lane[k] == e ? widen(here.lane[k]) : 0;
    }
    Pack<T, kVector> made;
#pragma unroll
    for (int k = 0; k < kVector; ++k) narrow(sum[k], made.lane[k]);
    store(out + e * out_stride + c, made);
  }
}

// What is no number comes before all that are.
template <class Real> __device__ inline bool comes_before(Real number, Real other) {
  return number > other || (number != number && other == other);
}

// The largest numbers of a thread's columns so far, and of which of the tile's nonzeros the first
// ones are; −1: of none yet.
template <class Real, int kVector, int kPacks> struct Largest {
  Pack<Real, kVector> number[kPacks];
  Pack<int, kVector> place[kPacks];

  __device__ void clear() {
    const Real least = -__uint_as_float(0x7f800000u);  // −∞
    unrolled<kPacks, kVector>(
        [&](int p, int v) { number[p].lane[v] = least, place[p].lane[v] = -1; });
  }
  __device__ void take(int p, int v, Real other, int from) {
    if (place[p].lane[v] >= 0 && !comes_before(other, number[p].lane[v])) return;
    number[p].lane[v] = other;
    place[p].lane[v] = from;
  }
  __device__ void add(const Largest& later) {
    unrolled<kPacks, kVector>([&](int p, int v) {
      if (later.place[p].lane[v] >= 0) take(p, v, later.number[p].lane[v], later.place[p].lane[v]);
    });
  }
};

// Where extremes go. `arg` names nonzeros, or columns from first_column on, or is what `left_arg`
// has. Empty rows have 0 and −1, or what blocks before this one gave.
template <class Out, class Index, class Arg, int kVector, int kPacks> struct ExtremeTarget {
  using Real = Sum<Out>;
  using Running = Largest<Real, kVector, kPacks>;
  Out* out;
  i64 out_stride;
  Arg* arg;
  Real* carry;  // and its columns' arg, both of the same shape
  Arg* carry_arg;
  i64 carry_stride;
  const i64* row_map;
  const Index* indices;
  const Arg* left_arg;
  i64 left_stride, first_column;  // negative: nonzeros
  i64 first_nonzero;
  bool begun, negated;

  __device__ Arg arg_of(int place, i64 column) const {
    const i64 e = first_nonzero + place;
    if (place < 0) return Arg(-1);
    if (left_arg) return left_arg[e * left_stride + column];
    return static_cast<Arg>(first_column < 0 ? e : first_column + indices[e]);
  }
  template <class Columns>
  __device__ void write_row(i64 row, const Columns& columns, const Running& best) const {
    const i64 to = row_map ? row_map[row] : row;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) break;
      Out* const place = out + to * out_stride + columns.column(p);
      Arg* const args = arg + to * columns.columns + columns.column(p);
      Pack<Out, kVector> made{};
      if (begun) made = load<Out, kVector>(place);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Real before = widen(made.lane[v]), number = best.number[p].lane[v];
        const Arg from = arg_of(best.place[p].lane[v], columns.column(p) + v);
        if (begun &&
            (from < 0 || (args[v] >= 0 && !comes_before(number, negated ? -before : before)))) {
          continue;
        }
        args[v] = from;
        narrow(from < 0 ? Real(0) : negated ? -number : number, made.lane[v]);
      }
      store(place, made);
    }
  }
  template <class Columns>
  __device__ void write_carry(i64 slot, const Columns& columns, const Running& best) const {
    unrolled<kPacks, kVector>([&](int p, int v) {
      if (!columns.has(p)) return;
      const Real number = best.number[p].lane[v];
      const i64 column = columns.column(p) + v, to = slot * carry_stride + column;
      carry[to] = negated ? -number : number;
      carry_arg[to] = arg_of(best.place[p].lane[v], column);
    });
  }
};

// The largest or smallest messages, and the first nonzero of each. Grid: tiles × column tiles.
template <class In, class Out, class Index, class Arg, int kOp, int kVector, int kLanes, int kPacks,
          int kItems>
__global__ void __launch_bounds__(kThreads)
    edge_extremes(const i64* indptr, const Index* indices, const i64* tiles, const i64* row_map,
                  const In* x, i64 x_stride, const In* v, i64 v_stride, i64 width,
                  const Arg* left_arg, i64 left_stride, i64 first_column, i64 largest, i64 begun,
                  Out* out, i64 out_stride, Arg* arg, Sum<Out>* carry, Arg* carry_arg,
                  i64 carry_stride, i64 columns) {
  using Target = ExtremeTarget<Out, Index, Arg, kVector, kPacks>;
  using Work = Messages<In, In, kOp, kVector, kLanes, kPacks, Target>;
  const i64 first_nonzero = tiles[3 * static_cast<i64>(blockIdx.x) + 1];
  Work work{{columns},
            {out, out_stride, arg, carry, carry_arg, carry_stride, row_map, indices, left_arg,
             left_stride, first_column, first_nonzero, begun != 0, largest == 0},
            first_nonzero,
            nullptr,
            nullptr,
            keep(x_stride * sizeof(In)),
            nullptr,
            0,
            v,
            v_stride,
            width,
            largest == 0};
  work.begin(x);
  walk_tile<kLanes, Work::kAhead, kItems>(indptr, indices, tiles, work);
}

}  // namespace spgnn
