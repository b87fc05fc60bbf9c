// The inner loops over nonzeros that have rows of numbers of their own: sums, products, extremes.
#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kEdgesAhead = 8;   // nonzeros whose rows are fetched
inline constexpr int kEdgeVectors = 4;  // that a row has in registers

// Message of x (or g) and v; w is of the row itself.
template <EdgeOp kOp, class Vector>
[[gnu::always_inline]] inline Vector message(Vector x, Vector v, [[maybe_unused]] Vector w) {
  if constexpr (kOp == EdgeOp::kMul) return x * v;
  if constexpr (kOp == EdgeOp::kAdd) return x + v;
  if constexpr (kOp == EdgeOp::kSub) return x - v;
  if constexpr (kOp == EdgeOp::kDiv) return x / v;
  if constexpr (kOp == EdgeOp::kCopy) return v;
  if constexpr (kOp == EdgeOp::kAddRelu) return x + v < Vector{} ? Vector{} : x + v;  // NaN stays
  if constexpr (kOp == EdgeOp::kGate) return w + v > Vector{} ? x : Vector{};
}

template <class Out, class Vector>
[[gnu::always_inline]] inline void store_wide(Out* to, Vector v, int lanes) {
  if constexpr (std::is_same_v<Out, Bfloat16>) {
    NarrowBfloat16Pack{v}.store(to, lanes);
  } else {
    store_vector(to, v, lanes);
  }
}

// Calls body(std::integral_constant<int, vectors>, first column, lanes of the last vector).
template <class S, class Body>
[[gnu::always_inline]] inline void for_each_panel(i64 columns, const Body& body) {
  constexpr int kLanes = kLanesOf<S>;
  i64 c = 0;
  for (; c + kEdgeVectors * kLanes <= columns; c += kEdgeVectors * kLanes) {
    body(std::integral_constant<int, kEdgeVectors>{}, c, kLanes);
  }
  const auto left = static_cast<int>(columns - c);
  const int vectors = (left + kLanes - 1) / kLanes, last = left - (vectors - 1) * kLanes;
  if (vectors == 1) body(std::integral_constant<int, 1>{}, c, last);
  if (vectors == 2) body(std::integral_constant<int, 2>{}, c, last);
  if (vectors == 3) body(std::integral_constant<int, 3>{}, c, last);
  if (vectors == 4) body(std::integral_constant<int, 4>{}, c, last);
}

// Asks for what a later nonzero reads: a row of x, and one of v where those are not in order.
template <EdgeOp kOp, int kVectors, class T, class Order>
[[gnu::always_inline]] inline void fetch(const EdgeOperands<T>& a, const Order& order, i64 e,
                                         i64 first) {
  constexpr int kLines = lines_of(kVectors * kLanesOf<Sum<T>> * i64{sizeof(T)});
  if constexpr (kOp != EdgeOp::kCopy) prefetch_lines(a.x[a.indices[e]] + first, kLines);
  if (order) prefetch_lines(a.v[order[e]] + first, kLines);
}

// Some numbers of v, or one for all columns, whose sign stays: −0 + 0 would be 0.
template <bool kShared, class T>
[[gnu::always_inline]] inline LanesOf<Sum<T>> load_v(const T* v, int lanes) {
  if constexpr (kShared) return widen(*v) - LanesOf<Sum<T>>{};
  return load_wide(v, lanes);
}

// Some columns of a sum over nonzeros; one number of v for each, or (kShared) for all.
template <EdgeOp kOp, bool kShared, int kVectors, class T, class Out>
inline void sum_columns(const EdgeOperands<T>& a, i64 row, Span nonzeros, i64 first, int last_lanes,
                        Out* out) {
  using S = Sum<T>;
  constexpr int kLanes = kLanesOf<S>;
  const auto lanes_of = [&](int k) { return k + 1 < kVectors ? kLanes : last_lanes; };
  LanesOf<S> sums[kVectors]{}, own[kVectors]{};
  if constexpr (kOp == EdgeOp::kGate) {
    const T* w = a.w[row] + first;
    for (int k = 0; k < kVectors; ++k) own[k] = load_wide(w + k * kLanes, lanes_of(k));
  }
  const i64 first_v = kShared ? first / a.width : first;
  for (i64 e = nonzeros.begin; e < nonzeros.end; ++e) {
    fetch<kOp, kVectors>(a, a.order, e + kEdgesAhead < nonzeros.end ? e + kEdgesAhead : e, first);
    const T* v = a.v[a.order[e]] + first_v;
    const T* x = kOp == EdgeOp::kCopy ? v : a.x[a.indices[e]] + first;
    for (int k = 0; k < kVectors; ++k) {
      const auto one = load_v<kShared>(kShared ? v : v + k * kLanes, lanes_of(k));
      const auto other = kOp == EdgeOp::kCopy ? one : load_wide(x + k * kLanes, lanes_of(k));
      sums[k] += message<kOp>(other, one, own[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k) store_wide(out + first + k * kLanes, sums[k], lanes_of(k));
}

template <EdgeOp kOp, bool kShared, class T, class Out>
inline void sum_head(const EdgeOperands<T>& a, i64 row, Span nonzeros, i64 head, i64 width,
                     Out* out) {
  for_each_panel<Sum<T>>(width, [&](auto vectors, i64 first, int last) {
    sum_columns<kOp, kShared, decltype(vectors)::value>(a, row, nonzeros, head + first, last, out);
  });
}

template <EdgeOp kOp, class T, class Out>
inline void sum_row(const EdgeOperands<T>& a, i64 row, Span nonzeros, Out* out) {
  if constexpr (kOp < EdgeOp::kCopy) {
    if (a.width > 1) {
      for (i64 head = 0; head < a.columns; head += a.width) {
        sum_head<kOp, true>(a, row, nonzeros, head, a.width, out);
      }
      return;
    }
  }
  sum_head<kOp, false>(a, row, nonzeros, 0, a.columns, out);
}

// Calls body(std::integral_constant<EdgeOp, op>) for one of some operations.
template <EdgeOp... kOps, class Body> inline void with_op(EdgeOp op, const Body& body) {
  ((op == kOps ? body(std::integral_constant<EdgeOp, kOps>{}) : void()), ...);
}

template <class Body> inline void with_sum(EdgeOp op, const Body& body) {
  with_op<EdgeOp::kMul, EdgeOp::kAdd, EdgeOp::kSub, EdgeOp::kDiv, EdgeOp::kCopy, EdgeOp::kAddRelu,
          EdgeOp::kGate>(op, body);
}

template <class T> void edge_rows(const EdgeOperands<T>& a, EdgeOp op, Span rows) {
  with_sum(op, [&](auto kind) {
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const Span nonzeros{a.indptr[row], a.indptr[row + 1]};
      sum_row<decltype(kind)::value>(a, row, nonzeros, a.out[row]);
    }
  });
}

template <class T>
void edge_partial(const EdgeOperands<T>& a, EdgeOp op, i64 row, Span nonzeros, Sum<T>* sums) {
  with_sum(op, [&](auto kind) { sum_row<decltype(kind)::value>(a, row, nonzeros, sums); });
}

// Products, of which each is by itself: kMul, kGate, and kAdd of what there is of g, x and v.
template <class T> void edge_products(const EdgeProducts<T>& a, EdgeOp op, Span nonzeros) {
  using Vector = LanesOf<Sum<T>>;
  constexpr int kLanes = kLanesOf<Sum<T>>;
  i64 row = first_where(0, a.rows - 1, [&](i64 r) { return a.indptr[r + 1] > nonzeros.begin; });
  const int lines = lines_of(a.columns * i64{sizeof(T)});
  with_op<EdgeOp::kMul, EdgeOp::kAdd, EdgeOp::kGate>(op, [&](auto kind) {
    constexpr EdgeOp kOp = decltype(kind)::value;
    for (i64 e = nonzeros.begin; e < nonzeros.end; ++e) {
      while (a.indptr[row + 1] <= e) ++row;
      if (a.x)
        prefetch_lines(a.x[a.indices[e + kEdgesAhead < nonzeros.end ? e + kEdgesAhead : e]], lines);
      const T* g = a.g ? a.g[row] : nullptr;
      const T* x = a.x ? a.x[a.indices[e]] : nullptr;
      const T* v = a.v ? a.v[e] : nullptr;
      T* out = a.out + e * a.columns;
      for (i64 c = 0; c < a.columns; c += kLanes) {
        const auto lanes = static_cast<int>(a.columns - c < kLanes ? a.columns - c : kLanes);
        // What is not there is −0, which changes nothing it is added to.
        const auto at = [&](const T* p) { return p ? load_wide(p + c, lanes) : -Vector{}; };
        if constexpr (kOp == EdgeOp::kMul) store_wide(out + c, at(g) * at(x), lanes);
        if constexpr (kOp == EdgeOp::kAdd) store_wide(out + c, at(g) + at(x) + at(v), lanes);
        if constexpr (kOp == EdgeOp::kGate) {
          store_wide(out + c, message<kOp>(at(g), at(v), at(x)), lanes);
        }
      }
    }
  });
}

using IntLanes [[gnu::vector_size(kVectorBytes)]] = i32;

// Some columns of a row's extremes, all lanes of the last vector (kWhole) or some.
template <EdgeOp kOp, bool kShared, bool kLargest, int kVectors, bool kWhole, class T>
inline void extreme_columns(const EdgeExtremes<T>& b, i64 row, i64 first, int last_lanes) {
  using S = Sum<T>;
  using Vector = LanesOf<S>;
  using Ints = std::conditional_t<sizeof(S) == 4, IntLanes, LongVector>;
  constexpr int kLanes = kLanesOf<S>;
  const EdgeOperands<T>& a = b.of;
  const auto lanes_of = [&](int k) { return kWhole || k + 1 < kVectors ? kLanes : last_lanes; };
  const i64 begin = a.indptr[row], end = a.indptr[row + 1];
  const i64 first_v = kShared ? first / a.width : first;
  Vector best[kVectors];
  Ints place[kVectors]{};  // within the row
  const auto take = [&](const auto& order, i64 e, auto is_first) __attribute__((always_inline)) {
    fetch<kOp, kVectors>(a, order, e + kEdgesAhead < end ? e + kEdgesAhead : e, first);
    const T* v = a.v[order[e]] + first_v;
    const T* x = kOp == EdgeOp::kCopy ? v : a.x[a.indices[e]] + first;
    const auto at = static_cast<decltype(Ints{}[0] + 0)>(e - begin);
    for (int k = 0; k < kVectors; ++k) {
      const Vector one = load_v<kShared>(kShared ? v : v + k * kLanes, lanes_of(k));
      const Vector other = kOp == EdgeOp::kCopy ? one : load_wide(x + k * kLanes, lanes_of(k));
      const Vector number = message<kOp>(other, one, Vector{});
      if constexpr (decltype(is_first)::value) {
        best[k] = number;
      } else {
        Ints better = kLargest ? number > best[k] : number < best[k];
        better |= (number != number) & (best[k] == best[k]);
        best[k] = better ? number : best[k];
        place[k] = better ? Ints{} + at : place[k];
      }
    }
  };
  const auto take_all = [&](const auto& order) __attribute__((always_inline)) {
    take(order, begin, std::true_type{});
    for (i64 e = begin + 1; e < end; ++e) take(order, e, std::false_type{});
  };
  // Extremes of rows of X: the loop does not ask again how wide its indices are.
  kOp == EdgeOp::kCopy&& a.order.narrow ? take_all(a.order.narrow) : take_all(a.order);
  const auto arg = b.arg;
  const auto order = a.order;
  const i64 first_column = b.first_column;
  const bool begun = b.begun;
  for (int k = 0; k < kVectors; ++k) {
    T* out = a.out[row] + first + k * kLanes;
    const i64 to = row * a.columns + first + k * kLanes;
    if (!begun) store_wide(out, best[k], lanes_of(k));
    if constexpr (sizeof(S) == 4) {
      if (!begun && arg.narrow && (first_column < 0 || order.narrow)) {
        if (first_column < 0) {
          store_vector(arg.narrow + to, place[k] + static_cast<i32>(begin), lanes_of(k));
          continue;
        }
        const i32* columns = order.narrow + begin;
        for (int lane = 0; lane < lanes_of(k); ++lane) {
          arg.narrow[to + lane] = static_cast<i32>(first_column) + columns[place[k][lane]];
        }
        continue;
      }
    }
    for (int lane = 0; lane < lanes_of(k); ++lane) {
      if (begun) {
        const S number = best[k][lane], before = widen(out[lane]);
        const bool better = (kLargest ? number > before : number < before) ||
                            (number != number && before == before);
        if (arg[to + lane] >= 0 && !better) continue;
        out[lane] = narrow<T>(number);
      }
      const i64 e = begin + place[k][lane];
      arg.set(to + lane, first_column < 0 ? e : first_column + order[e]);
    }
  }
}

template <class T> void edge_extremes(const EdgeExtremes<T>& b, EdgeOp op, Span rows) {
  const EdgeOperands<T>& a = b.of;
  const bool shared = op != EdgeOp::kCopy && a.width > 1;
  const i64 width = shared ? a.width : a.columns;
  const auto of_rows = [&](auto kind, auto shares, auto largest) {
    constexpr bool kShared = decltype(shares)::value, kLargest = decltype(largest)::value;
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const bool empty = a.indptr[row] == a.indptr[row + 1];
      for (i64 c = 0; empty && !b.begun && c < a.columns; ++c) {
        a.out[row][c] = T{};
        b.arg.set(row * a.columns + c, -1);
      }
      for (i64 head = 0; !empty && head < a.columns; head += width) {
        for_each_panel<Sum<T>>(width, [&](auto vectors, i64 first, int last) {
          constexpr EdgeOp kOp = decltype(kind)::value;
          constexpr int kVectors = decltype(vectors)::value;
          if constexpr (kOp == EdgeOp::kCopy) {  // of rows of X, where masks of loads would show
            if (last == kLanesOf<Sum<T>>) {
              extreme_columns<kOp, kShared, kLargest, kVectors, true>(b, row, head + first, last);
              return;
            }
          }
          extreme_columns<kOp, kShared, kLargest, kVectors, false>(b, row, head + first, last);
        });
      }
    }
  };
  with_op<EdgeOp::kMul, EdgeOp::kAdd, EdgeOp::kSub, EdgeOp::kDiv, EdgeOp::kCopy>(op, [&](auto k) {
    using Yes = std::true_type;
    using No = std::false_type;
    if constexpr (decltype(k)::value != EdgeOp::kCopy) {
      if (shared) return b.largest ? of_rows(k, Yes{}, Yes{}) : of_rows(k, Yes{}, No{});
    }
    b.largest ? of_rows(k, No{}, Yes{}) : of_rows(k, No{}, No{});
  });
}

template <class T> void extreme_adjoint(const ExtremeAdjoint<T>& a, Span columns) {
  for (i64 row = 0; row < a.rows; ++row) {
    for (i64 c = columns.begin; c < columns.end; ++c) {
      const i64 to = a.arg[row * a.columns + c];
      if (to < 0) continue;
      T& sum = a.dx[to * a.columns + c];
      sum = narrow<T>(widen(sum) + widen(a.g[row][c]));
    }
  }
}

template <class T>
inline constexpr EdgeKernels<T> kEdges{edge_rows<T>, edge_partial<T>, edge_products<T>,
                                       edge_extremes<T>, extreme_adjoint<T>};

const EdgeTable edge_table{kEdges<float>, kEdges<double>, kEdges<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
