// The inner loops of bias, activation and dropout. Rows are worked on in tiles: whole rows where
// they are short and lie one after another, or some columns of one row.
#include "rows_kernel.hpp"
#include "simd.hpp"
#include "types.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr i64 kTile = 256;  // numbers

// How many rows and columns a tile has.
struct Tile {
  i64 rows, columns;
};

inline Tile tile_of(i64 columns, bool dense) {
  if (columns >= kTile) return {1, kTile};
  return {dense ? kTile / columns : 1, columns};
}

// Of the columns from `first` on in some rows: 0 where dropped, the factor elsewhere. A hash
// decides two neighbouring columns, so one number beyond the tile may be written.
template <class S>
inline void dropout_factors(const DropoutRule& rule, const i64* vertex_ids, i64 first,
                            const Tile& tile, S* factors) {
  const auto factor = static_cast<S>(rule.factor);
  for (i64 r = 0; r < tile.rows; ++r) {
    const auto id = static_cast<u64>(vertex_ids[r]);
    const u64 stream = mix64(rule.seed + kGolden * (id + 1));
    S* of_row = factors + r * tile.columns;
    for (i64 pair = 0; 2 * pair < tile.columns; ++pair) {
      const auto counter = static_cast<u64>(first / 2 + pair + 1);
      const u64 bits = mix64(stream + kGolden * counter);
      of_row[2 * pair] = (bits & 0xffffffffu) < rule.threshold ? 0 : factor;
      of_row[2 * pair + 1] = (bits >> 32) < rule.threshold ? 0 : factor;
    }
  }
}

// exp(x) − 1 for x ≤ 0, to a few ulps: with exp(x) = 2ⁿ exp(r), 2ⁿ (exp(r) − 1) + (2ⁿ − 1).
template <class S> inline S expm1_of_negative(S x) {
  constexpr bool kSingle = std::is_same_v<S, float>;
  const auto [power, r] = reduced_exponent<S>(x);
  S sum = 1;
#pragma GCC unroll 16
  for (int k = kSingle ? 8 : 14; k > 1; --k) sum = 1 + sum * r * (S(1) / static_cast<S>(k));
  return power * (r * sum) + (power - 1);
}

// A NaN stays one.
template <Act kAct, class S> inline S activated(S x, S alpha) {
  if constexpr (kAct == Act::kRelu) return x < 0 ? S{0} : x;
  if constexpr (kAct == Act::kLeakyRelu) return x < 0 ? x * alpha : x;
  if constexpr (kAct == Act::kElu) return x < 0 ? alpha * expm1_of_negative(x) : x;
  return x;
}

template <bool kBias, Act kAct, bool kDrop, class T>
inline void update_tile(const T* x, const Sum<T>* bias, const Sum<T>* factors, Sum<T> alpha, T* y,
                        i64 count) {
#pragma GCC ivdep
  for (i64 c = 0; c < count; ++c) {
    T number = x[c];
    if constexpr (kBias) number = narrow<T>(widen(number) + bias[c]);
    if constexpr (kAct != Act::kNone) {
      number = narrow<T>(activated<kAct, Sum<T>>(widen(number), alpha));
    }
    if constexpr (kDrop) {
      number = if_kept(factors[c] != 0, narrow<T>(widen(number) * factors[c]));
    }
    y[c] = number;
  }
}

// Calls f(first column, tile, first row) for all tiles of some rows, columns after columns.
template <class Function>
inline void for_each_tile(i64 columns, bool dense, Span rows, Function f) {
  const Tile whole = tile_of(columns, dense);
  for (i64 first = 0; first < columns; first += whole.columns) {
    Tile tile = whole;
    if (columns - first < tile.columns) tile.columns = columns - first;
    for (i64 row = rows.begin; row < rows.end; row += tile.rows) {
      if (rows.end - row < tile.rows) tile.rows = rows.end - row;
      f(first, tile, row);
    }
  }
}

template <bool kBias, Act kAct, bool kDrop, class T>
void update_as(const UpdateOperands<T>& a, Span rows) {
  const bool dense = a.x.stride == a.columns && a.y.stride == a.columns;
  const Tile whole = tile_of(a.columns, dense);
  Sum<T> bias[kTile], factors[kTile + 1];
  i64 filled = -1;  // the first column of what `bias` holds, row by row
  for_each_tile(a.columns, dense, rows, [&](i64 first, const Tile& tile, i64 i) {
    if (kBias && filled != first) {
      for (i64 r = 0; r < whole.rows; ++r) {
        for (i64 c = 0; c < tile.columns; ++c) {
          bias[r * tile.columns + c] = widen(narrow<T>(a.bias[first + c]));
        }
      }
      filled = first;
    }
    if constexpr (kDrop) dropout_factors(a.rule, a.vertex_ids + i, first, tile, factors);
    update_tile<kBias, kAct, kDrop>(a.x[i] + first, bias, factors, static_cast<Sum<T>>(a.alpha),
                                    a.y[i] + first, tile.rows * tile.columns);
  });
}

template <Act kAct, class T> void update_with(const UpdateOperands<T>& a, Span rows) {
  if (a.bias) {
    a.vertex_ids ? update_as<true, kAct, true>(a, rows) : update_as<true, kAct, false>(a, rows);
  } else {
    a.vertex_ids ? update_as<false, kAct, true>(a, rows) : update_as<false, kAct, false>(a, rows);
  }
}

template <class T> void update_rows(const UpdateOperands<T>& a, Span rows) {
  switch (a.act) {
    case Act::kRelu:
      return update_with<Act::kRelu>(a, rows);
    case Act::kLeakyRelu:
      return update_with<Act::kLeakyRelu>(a, rows);
    case Act::kElu:
      return update_with<Act::kElu>(a, rows);
    default:
      return update_with<Act::kNone>(a, rows);
  }
}

// Where y is not positive nothing passes; elsewhere, and where it is no number, g · factor.
template <class T>
inline void gradient_of_signs(const T* g, const T* y, Sum<T> factor, T* dx, i64 count) {
#pragma GCC ivdep
  for (i64 c = 0; c < count; ++c) {
    dx[c] = if_kept(!(widen(y[c]) <= 0), narrow<T>(widen(g[c]) * factor));
  }
}

template <class T>
inline void gradient_of_factors(const T* g, const Sum<T>* factors, T* dx, i64 count) {
#pragma GCC ivdep
  for (i64 c = 0; c < count; ++c) {
    dx[c] = if_kept(factors[c] != 0, narrow<T>(widen(g[c]) * factors[c]));
  }
}

// Where x is negative, y = alpha · x, or y + alpha = alpha · exp(x), times dropout's factor.
template <bool kElu, class T>
inline void gradient_of_result(const T* y, Sum<T> alpha, Sum<T> inverse, T* dx, i64 count) {
#pragma GCC ivdep
  for (i64 c = 0; c < count; ++c) {
    // A NaN passes as it does in torch.
    const bool positive = kElu ? !(widen(y[c]) <= 0) : widen(y[c]) > 0;
    const Sum<T> slope = kElu ? widen(y[c]) * inverse + alpha : alpha;
    dx[c] = narrow<T>(widen(dx[c]) * (positive ? Sum<T>{1} : slope));
  }
}

// A loop of its own: fused with the product before it, bits would depend on the instruction set.
template <class T> inline void add_tile(const T* dx, Sum<T>* sums, i64 count) {
#pragma GCC ivdep
  for (i64 c = 0; c < count; ++c) sums[c] += widen(dx[c]);
}

// `sums` [columns], if not null, are overwritten by those of these rows.
template <class T> void update_gradients(const UpdateGradients<T>& a, Span rows, Sum<T>* sums) {
  const bool dense =
      a.g.stride == a.columns && a.dx.stride == a.columns && (!a.y || a.y.stride == a.columns);
  const Tile whole = tile_of(a.columns, dense);
  Sum<T> factors[kTile + 1], partial[kTile];
  for_each_tile(a.columns, dense, rows, [&](i64 first, const Tile& tile, i64 i) {
    const T* g = a.g[i] + first;
    T* dx = a.dx[i] + first;
    const i64 count = tile.rows * tile.columns;
    if (a.act == Act::kRelu) {
      gradient_of_signs(g, a.y[i] + first, static_cast<Sum<T>>(a.rule.factor), dx, count);
    } else if (a.vertex_ids) {
      dropout_factors(a.rule, a.vertex_ids + i, first, tile, factors);
      gradient_of_factors(g, factors, dx, count);
    } else {
      std::memcpy(dx, g, static_cast<std::size_t>(count) * sizeof(T));
    }
    if (a.act == Act::kLeakyRelu || a.act == Act::kElu) {
      const T* y = a.y[i] + first;
      const auto alpha = static_cast<Sum<T>>(a.alpha);
      const auto inverse = static_cast<Sum<T>>(a.vertex_ids ? 1 / a.rule.factor : 1);
      if (a.act == Act::kElu) {
        gradient_of_result<true>(y, alpha, inverse, dx, count);
      } else {
        gradient_of_result<false>(y, alpha, inverse, dx, count);
      }
    }
    if (!sums) return;
    if (i == rows.begin) std::memset(partial, 0, sizeof(partial));
    add_tile(dx, partial, count);
    if (i + tile.rows < rows.end) return;
    for (i64 c = 0; c < tile.columns; ++c) {
      Sum<T> sum = partial[c];
      for (i64 r = 1; r < whole.rows; ++r) sum += partial[r * tile.columns + c];
      sums[first + c] = sum;
    }
  });
}

template <class T> inline constexpr UpdateKernels<T> kUpdate{update_rows<T>, update_gradients<T>};

const UpdateTable update_table{kUpdate<float>, kUpdate<double>, kUpdate<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
