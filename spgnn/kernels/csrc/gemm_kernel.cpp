// The inner loops of dense products of many rows with a matrix of few: a tile's sums stay in
// registers (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).
#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kLanes = kVectorBytes / 4;
inline constexpr int kTileRows = kGemmRows, kTileVectors = kGemmVectors;
inline constexpr std::int64_t kStep = kTileVectors * kLanes;
inline constexpr std::int64_t kLineFloats = 16;

// kRows rows of z, of which kVectors vectors from column `first` on; rows of the next but one tile
// are fetched meanwhile, the first time that they are read.
template <int kRows, int kVectors>
inline void product_tile(const GemmProduct& a, std::int64_t row, std::int64_t first) {
  FloatVector sums[kRows][kVectors] = {};
  const float* x = a.x + row * a.x_stride;
  const float* w = a.w + first * a.depth;
  const std::int64_t ahead = first == 0 && row + 3 * kRows <= a.count ? 2 * kRows * a.x_stride : 0;
  for (std::int64_t begin = 0; begin < a.depth; begin += kLineFloats) {
    if (ahead) {
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(x + r * a.x_stride + ahead + begin);
    }
    const std::int64_t end = begin + kLineFloats < a.depth ? begin + kLineFloats : a.depth;
    for (std::int64_t k = begin; k < end; ++k) {
      FloatVector weights[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        weights[v] = load_vector<FloatVector>(w + (k * kVectors + v) * kLanes);
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
      const std::int64_t c = first + v * kLanes;
      if (c + kLanes <= a.columns) {
        store_vector(z + c, sums[r][v]);
      } else {
        store_vector(z + c, sums[r][v], static_cast<int>(a.columns - c));
      }
    }
  }
}

template <int kVectors>
inline void product_panel(const GemmProduct& a, Span rows, std::int64_t first) {
  std::int64_t row = rows.begin;
  for (; row + kTileRows <= rows.end; row += kTileRows) {
    product_tile<kTileRows, kVectors>(a, row, first);
  }
  for (; row < rows.end; ++row) product_tile<1, kVectors>(a, row, first);
}

// Panel by panel of w, which the first cache holds, over rows of x that the second one holds.
inline void gemm_product(const GemmProduct& a, Span rows) {
  constexpr std::int64_t kBlockFloats = 65536, kFewest = 8 * kTileRows;
  const std::int64_t fitting = kBlockFloats / a.depth / kTileRows * kTileRows;
  const std::int64_t block = fitting > kFewest ? fitting : kFewest;
  for (Span some{rows.begin, rows.begin}; some.begin < rows.end; some.begin = some.end) {
    some.end = some.begin + block < rows.end ? some.begin + block : rows.end;
    std::int64_t first = 0;
    for (; first + kStep <= a.padded; first += kStep) product_panel<kTileVectors>(a, some, first);
    if (first < a.padded) product_panel<1>(a, some, first);
  }
}

// From a number in the first row on.
struct Column {
  const float* first;
  std::int64_t stride;

  const float* at(std::int64_t row) const { return first + row * stride; }
};

// Adds g x of some rows to a tile: kRows of the kTileRows numbers in each row of g, kTileVectors
// vectors of each row of x. A line of each row of `next` is fetched meanwhile.
template <int kRows>
inline void gradient_tile(const float* g, Column x, std::int64_t rows, float* sums,
                          std::int64_t sums_stride, Column next) {
  FloatVector tile[kRows][kTileVectors];
  for (int c = 0; c < kRows; ++c) {
    for (int v = 0; v < kTileVectors; ++v) {
      tile[c][v] = load_vector<FloatVector>(sums + c * sums_stride + v * kLanes);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    __builtin_prefetch(next.at(row));
    FloatVector numbers[kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) {
      numbers[v] = load_vector<FloatVector>(x.at(row) + v * kLanes);
    }
    for (int c = 0; c < kRows; ++c) {
      const float factor = g[row * kTileRows + c];
      for (int v = 0; v < kTileVectors; ++v) tile[c][v] += factor * numbers[v];
    }
  }
  for (int c = 0; c < kRows; ++c) {
    for (int v = 0; v < kTileVectors; ++v) {
      store_vector(sums + c * sums_stride + v * kLanes, tile[c][v]);
    }
  }
}

// The rows of a matrix in panels of kWidth columns, [rows, kWidth] each; zeros fill the last one.
template <std::int64_t kWidth>
inline void pack_panels(const float* matrix, std::int64_t stride, std::int64_t rows,
                        std::int64_t columns, float* packed) {
  const std::int64_t whole = columns / kWidth * kWidth;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = matrix + row * stride;
    float* to = packed + row * kWidth;
    for (std::int64_t c = 0; c < whole; c += kWidth) {
      std::memcpy(to + c * rows, from + c, kWidth * sizeof(float));
    }
    if (whole == columns) continue;
    for (std::int64_t c = 0; c < kWidth; ++c) {
      to[whole * rows + c] = whole + c < columns ? from[whole + c] : 0;
    }
  }
}

// What a tile fetches of the next panel's rows of x, then of g: all of it, but for products so
// small that they have fewer tiles than a row has lines.
inline Column fetched_by(const GemmGradient& a, std::int64_t tile, std::int64_t row) {
  const std::int64_t of_x = tile * kLineFloats, of_g = of_x - a.sums_stride;
  if (of_x < a.depth) return {a.x + row * a.x_stride + of_x, a.x_stride};
  if (of_g >= 0 && of_g < a.columns) return {a.g + row * a.g_stride + of_g, a.g_stride};
  return {a.g, 0};
}

// A column of tiles: sums of all columns of g and kTileVectors vectors of x from k on.
inline void gradient_tiles(const GemmGradient& a, const float* g, Column x, Span rows,
                           std::int64_t k, float* sums) {
  const std::int64_t count = rows.end - rows.begin;
  std::int64_t tile = k / kStep * (a.sums_height / kTileRows);
  for (std::int64_t j = 0; j < a.columns; j += kTileRows, ++tile) {
    const Column next = fetched_by(a, tile, rows.end);
    float* to = sums + j * a.sums_stride + k;
    if (a.columns - j > 4) {
      gradient_tile<kTileRows>(g + j * count, x, count, to, a.sums_stride, next);
    } else if (a.columns - j > 2) {
      gradient_tile<4>(g + j * count, x, count, to, a.sums_stride, next);
    } else {
      gradient_tile<2>(g + j * count, x, count, to, a.sums_stride, next);
    }
  }
}

// Adds the sum over some rows to `sums` [sums_height, sums_stride]. `room` holds a panel of rows of
// g and x, in whole tiles. What few tiles read of x is not worth packing.
inline void gemm_gradient(const GemmGradient& a, Span rows, float* room, float* sums) {
  constexpr std::int64_t kFewColumns = 3 * kTileRows;
  const std::int64_t in_place = a.columns <= kFewColumns ? a.depth / kStep * kStep : 0;
  float* g = room;
  float* packed = room + a.panel * a.sums_height;
  for (Span some{rows.begin, rows.begin}; some.begin < rows.end; some.begin = some.end) {
    some.end = some.begin + a.panel < rows.end ? some.begin + a.panel : rows.end;
    const std::int64_t count = some.end - some.begin;
    const float* x = a.x + some.begin * a.x_stride;
    pack_panels<kTileRows>(a.g + some.begin * a.g_stride, a.g_stride, count, a.columns, g);
    pack_panels<kStep>(x + in_place, a.x_stride, count, a.depth - in_place, packed);
    for (std::int64_t k = 0; k < a.depth; k += kStep) {
      const Column from =
          k < in_place ? Column{x + k, a.x_stride} : Column{packed + (k - in_place) * count, kStep};
      gradient_tiles(a, g, from, some, k, sums);
    }
  }
}

extern const GemmKernels gemm_table;
const GemmKernels gemm_table{kLanes, gemm_product, gemm_gradient};

}  // namespace spgnn::SPGNN_ISA
