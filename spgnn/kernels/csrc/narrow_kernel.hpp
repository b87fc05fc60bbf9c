// The inner loops of dense products with a matrix of few rows: sums of a tile stay in registers.
#pragma once

#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kNarrowLanes = kVectorBytes / 4;
inline constexpr int kTileRows = 6, kTileVectors = 2;
inline constexpr std::int64_t kLineFloats = 16;

// kRows rows of z, of which kVectors vectors from column `first` on; rows of the next but one tile
// are fetched meanwhile.
template <int kRows, int kVectors>
inline void product_tile(const NarrowProduct& a, std::int64_t row, std::int64_t first) {
  FloatVector sums[kRows][kVectors] = {};
  const float* x = a.x + row * a.x_stride;
  const float* w = a.w + first;
  const std::int64_t ahead = row + 3 * kRows <= a.count ? 2 * kRows * a.x_stride : 0;
  for (std::int64_t begin = 0; begin < a.depth; begin += kLineFloats) {
    for (int r = 0; r < kRows; ++r) __builtin_prefetch(x + r * a.x_stride + ahead + begin);
    const std::int64_t end = begin + kLineFloats < a.depth ? begin + kLineFloats : a.depth;
    for (std::int64_t k = begin; k < end; ++k) {
      FloatVector weights[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        weights[v] = load_vector<FloatVector>(w + k * a.padded + v * kNarrowLanes);
      }
      for (int r = 0; r < kRows; ++r) {
        const float number = x[r * a.x_stride + k];
        for (int v = 0; v < kVectors; ++v) sums[r][v] += number * weights[v];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* z = a.z + (row + r) * a.columns;
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t c = first + v * kNarrowLanes;
      if (c + kNarrowLanes <= a.columns) {
        store_vector(z + c, sums[r][v]);
      } else {
        store_vector(z + c, sums[r][v], static_cast<int>(a.columns - c));
      }
    }
  }
}

template <int kRows>
inline void product_rows(const NarrowProduct& a, std::int64_t row) {
  std::int64_t first = 0;
  for (; first + kTileVectors * kNarrowLanes <= a.padded; first += kTileVectors * kNarrowLanes) {
    product_tile<kRows, kTileVectors>(a, row, first);
  }
  if (first < a.padded) product_tile<kRows, 1>(a, row, first);
}

inline void narrow_product(const NarrowProduct& a, Span rows) {
  std::int64_t row = rows.begin;
  for (; row + kTileRows <= rows.end; row += kTileRows) product_rows<kTileRows>(a, row);
  for (; row < rows.end; ++row) product_rows<1>(a, row);
}

// kColumns rows of the sums, and kTileVectors vectors of each from column k on, over some rows of g
// and x; the first ones fetch what the next rows have there.
template <int kColumns, bool kTail>
inline void gradient_tile(const NarrowGradient& a, Span rows, std::int64_t j, std::int64_t k,
                          float* sums) {
  const int left = static_cast<int>(a.depth - k);
  const auto lanes_of = [&](int v) {
    const int rest = left - v * kNarrowLanes;
    return rest < 0 ? 0 : rest < kNarrowLanes ? rest : kNarrowLanes;
  };
  const auto load = [&](const float* p, int v) {
    return kTail ? load_vector<FloatVector>(p + v * kNarrowLanes, lanes_of(v))
                 : load_vector<FloatVector>(p + v * kNarrowLanes);
  };
  FloatVector tile[kColumns][kTileVectors];
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kTileVectors; ++v) tile[c][v] = load(sums + (j + c) * a.depth + k, v);
  }
  const std::int64_t ahead = (rows.end - rows.begin) * a.x_stride;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const float* x = a.x + row * a.x_stride + k;
    if (j == 0) __builtin_prefetch(x + ahead);
    FloatVector numbers[kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) numbers[v] = load(x, v);
    for (int c = 0; c < kColumns; ++c) {
      const float g = a.g[row * a.g_stride + j + c];
      for (int v = 0; v < kTileVectors; ++v) tile[c][v] += g * numbers[v];
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kTileVectors; ++v) {
      float* sum = sums + (j + c) * a.depth + k + v * kNarrowLanes;
      if constexpr (kTail) {
        if (lanes_of(v)) store_vector(sum, tile[c][v], lanes_of(v));
      } else {
        store_vector(sum, tile[c][v]);
      }
    }
  }
}

template <bool kTail>
inline void gradient_columns(const NarrowGradient& a, Span rows, std::int64_t k, float* sums) {
  std::int64_t j = 0;
  for (; j + kTileRows <= a.columns; j += kTileRows) {
    gradient_tile<kTileRows, kTail>(a, rows, j, k, sums);
  }
  for (; j + 4 <= a.columns; j += 4) gradient_tile<4, kTail>(a, rows, j, k, sums);
  for (; j < a.columns; ++j) gradient_tile<1, kTail>(a, rows, j, k, sums);
}

// Adds the sum over some rows to `sums` [columns, depth]. Panels of rows stay in the first cache.
inline void narrow_gradient(const NarrowGradient& a, Span rows, float* sums) {
  constexpr std::int64_t kPanelFloats = 8192, kStep = kTileVectors * kNarrowLanes;
  std::int64_t panel = kPanelFloats / a.depth;
  if (panel < 16) panel = 16;
  for (Span some{rows.begin, rows.begin}; some.begin < rows.end; some.begin = some.end) {
    some.end = some.begin + panel < rows.end ? some.begin + panel : rows.end;
    std::int64_t k = 0;
    for (; k + kStep <= a.depth; k += kStep) gradient_columns<false>(a, some, k, sums);
    if (k < a.depth) gradient_columns<true>(a, some, k, sums);
  }
}

extern const NarrowKernels narrow_table;
const NarrowKernels narrow_table{kNarrowLanes, narrow_product, narrow_gradient};

}  // namespace spgnn::SPGNN_ISA
