// The inner loops of bias, activation and dropout. Rows are worked on in tiles: whole rows where
// they are short and lie one after another, or some columns of one row.
#pragma once

#include "rows_kernel.hpp"
#include "update_types.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr std::int64_t kTile = 256;  // numbers

// How many rows and columns a tile has.
struct Tile {
  std::int64_t rows, columns;
};

inline Tile tile_of(std::int64_t columns, bool dense) {
  if (columns >= kTile) return {1, kTile};
  return {dense ? kTile / columns : 1, columns};
}

// Of the columns from `first` on in some rows: 0 where dropped, the factor elsewhere. A hash
// decides two neighbouring columns, so one number beyond the tile may be written.
template <class S>
inline void dropout_factors(const DropoutRule& rule, const std::int64_t* vertex_ids,
                            std::int64_t first, const Tile& tile, S* factors) {
  const auto factor = static_cast<S>(rule.factor);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const auto id = static_cast<std::uint64_t>(vertex_ids[r]);
    const std::uint64_t stream = mix64(rule.seed + kGolden * (id + 1));
    S* of_row = factors + r * tile.columns;
    for (std::int64_t pair = 0; 2 * pair < tile.columns; ++pair) {
      const auto counter = static_cast<std::uint64_t>(first / 2 + pair + 1);
      const std::uint64_t bits = mix64(stream + kGolden * counter);
      of_row[2 * pair] = (bits & 0xffffffffu) < rule.threshold ? 0 : factor;
      of_row[2 * pair + 1] = (bits >> 32) < rule.threshold ? 0 : factor;
    }
  }
}

template <bool kBias, bool kRelu, bool kDrop, class T>
inline void update_tile(const T* x, const Sum<T>* bias, const Sum<T>* factors, T* y,
                        std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < count; ++c) {
    T number = x[c];
    if constexpr (kBias) number = narrow<T>(widen(number) + bias[c]);
    Sum<T> wide = widen(number);
    if constexpr (kRelu) wide = wide < 0 ? Sum<T>{0} : wide;  // a NaN stays one
    if constexpr (kDrop) wide = factors[c] == 0 ? Sum<T>{0} : wide * factors[c];
    y[c] = narrow<T>(wide);
  }
}

// Calls f(first column, tile, first row) for all tiles of some rows, columns after columns.
template <class Function>
inline void for_each_tile(std::int64_t columns, bool dense, Span rows, Function f) {
  const Tile whole = tile_of(columns, dense);
  for (std::int64_t first = 0; first < columns; first += whole.columns) {
    Tile tile = whole;
    if (columns - first < tile.columns) tile.columns = columns - first;
    for (std::int64_t row = rows.begin; row < rows.end; row += tile.rows) {
      if (rows.end - row < tile.rows) tile.rows = rows.end - row;
      f(first, tile, row);
    }
  }
}

template <bool kBias, bool kRelu, bool kDrop, class T>
void update_as(const UpdateOperands<T>& a, Span rows) {
  const bool dense = a.x_stride == a.columns && a.y_stride == a.columns;
  const Tile whole = tile_of(a.columns, dense);
  Sum<T> bias[kTile], factors[kTile + 1];
  std::int64_t filled = -1;  // the first column of what `bias` holds, row by row
  for_each_tile(a.columns, dense, rows, [&](std::int64_t first, const Tile& tile, std::int64_t i) {
    if (kBias && filled != first) {
      for (std::int64_t r = 0; r < whole.rows; ++r) {
        for (std::int64_t c = 0; c < tile.columns; ++c) {
          bias[r * tile.columns + c] = widen(narrow<T>(a.bias[first + c]));
        }
      }
      filled = first;
    }
    if constexpr (kDrop) dropout_factors(a.rule, a.vertex_ids + i, first, tile, factors);
    update_tile<kBias, kRelu, kDrop>(a.x + i * a.x_stride + first, bias, factors,
                                     a.y + i * a.y_stride + first, tile.rows * tile.columns);
  });
}

template <class T>
void update_rows(const UpdateOperands<T>& a, Span rows) {
  const auto with = [&](auto bias, auto relu) {
    if (a.vertex_ids) {
      update_as<bias.value, relu.value, true>(a, rows);
    } else {
      update_as<bias.value, relu.value, false>(a, rows);
    }
  };
  const auto with_bias = [&](auto bias) {
    a.relu ? with(bias, std::true_type{}) : with(bias, std::false_type{});
  };
  a.bias ? with_bias(std::true_type{}) : with_bias(std::false_type{});
}

// Where y is not positive nothing passes; elsewhere, and where it is no number, g · factor.
template <class T>
inline void gradient_of_signs(const T* g, const T* y, Sum<T> factor, T* dx, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < count; ++c) {
    const Sum<T> passed = widen(g[c]) * factor;
    dx[c] = narrow<T>(widen(y[c]) <= 0 ? Sum<T>{0} : passed);
  }
}

template <class T>
inline void gradient_of_factors(const T* g, const Sum<T>* factors, T* dx, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < count; ++c) {
    dx[c] = narrow<T>(factors[c] == 0 ? Sum<T>{0} : widen(g[c]) * factors[c]);
  }
}

// A loop of its own: fused with the product before it, bits would depend on the instruction set.
template <class T>
inline void add_tile(const T* dx, Sum<T>* sums, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < count; ++c) sums[c] += widen(dx[c]);
}

// `sums` [columns], if not null, are overwritten by those of these rows.
template <class T>
void update_gradients(const UpdateGradients<T>& a, Span rows, Sum<T>* sums) {
  const bool dense =
      a.g_stride == a.columns && a.dx_stride == a.columns && (!a.y || a.y_stride == a.columns);
  const Tile whole = tile_of(a.columns, dense);
  Sum<T> factors[kTile + 1], partial[kTile];
  for_each_tile(a.columns, dense, rows, [&](std::int64_t first, const Tile& tile, std::int64_t i) {
    const T* g = a.g + i * a.g_stride + first;
    T* dx = a.dx + i * a.dx_stride + first;
    const std::int64_t count = tile.rows * tile.columns;
    if (a.y) {
      gradient_of_signs(g, a.y + i * a.y_stride + first, static_cast<Sum<T>>(a.rule.factor), dx,
                        count);
    } else if (a.vertex_ids) {
      dropout_factors(a.rule, a.vertex_ids + i, first, tile, factors);
      gradient_of_factors(g, factors, dx, count);
    } else {
      std::memcpy(dx, g, static_cast<std::size_t>(count) * sizeof(T));
    }
    if (!sums) return;
    if (i == rows.begin) std::memset(partial, 0, sizeof(partial));
    add_tile(dx, partial, count);
    if (i + tile.rows < rows.end) return;
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      Sum<T> sum = partial[c];
      for (std::int64_t r = 1; r < whole.rows; ++r) sum += partial[r * tile.columns + c];
      sums[first + c] = sum;
    }
  });
}

}  // namespace spgnn::SPGNN_ISA
