// The inner loops of dense products of many rows with a matrix of few: a tile's sums stay in
// registers (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).
#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kLanes = kVectorBytes / 4;
inline constexpr int kTileVectors = kGemmVectors;
// There are 32 vector registers where they have 16 lanes, and 16 elsewhere.
inline constexpr int kTileRows = kLanes == 16 ? 12 : 6;
// Of gradients: of a whole tile, and of one for few numbers of g.
inline constexpr int kHeight = 4, kVectors = kLanes == 16 ? 4 : 2, kTall = 16;
inline constexpr i64 kLineFloats = 16;

// Of some vectors of columns: where they go, what passes of them, and their sums.
struct ColumnPanel {
  const GemmColumns* to;
  const float* y;
  i64 y_stride;
  float* sums;
};

// kRows rows of kVectors vectors of columns. Lines from `next` on are fetched meanwhile, one for
// each row and kLineFloats columns of x, into the second cache; so is what the next tile writes.
// Not inlined: strides of all rows stay in registers (with AVX2, twice as fast).
template <int kRows, int kVectors, bool kPasses>
[[gnu::noinline]] void product_tile(const GemmProduct& a, i64 row, const float* w,
                                    const ColumnPanel& panel, const float* const (&next)[2]) {
  FloatVector sums[kRows][kVectors] = {};
  // What the next tile writes and passes is fetched bit by bit: many lines at once would wait.
  constexpr int kTargets = kRows == kTileRows ? kVectors * (kPasses ? 2 : 1) : 0;
  int fetched = 0;
  for (int term = 0; term < 2; ++term) {
    const i64 depth = a.x[term].columns, stride = a.x[term].stride;
    const float* x = a.x[term].rows + row * stride;
    const float* line = next[term];
    for (i64 begin = 0; begin < depth; begin += kLineFloats) {
      if (line) {
        for (int r = 0; r < kRows; ++r) __builtin_prefetch(line + r * kLineFloats, 0, 2);
        line += kRows * kLineFloats;
      }
      const i64 end = begin + kLineFloats < depth ? begin + kLineFloats : depth;
      for (const int last = end < depth ? fetched + 1 : kTargets;
           fetched < last && fetched < kTargets; ++fetched) {
        const int v = fetched % kVectors;
        const bool passes = fetched >= kVectors;
        const i64 to = passes ? panel.y_stride : panel.to[v].stride;
        const float* first = passes ? panel.y + v * kLanes : panel.to[v].z;
        for (int r = 0; r < kRows; ++r) __builtin_prefetch(first + (row + kRows + r) * to);
      }
      for (i64 k = begin; k < end; ++k, w += kVectors * kLanes) {
        FloatVector weights[kVectors];
        for (int v = 0; v < kVectors; ++v) weights[v] = load_vector<FloatVector>(w + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const float number = x[r * stride + k];
          for (int v = 0; v < kVectors; ++v) sums[r][v] += number * weights[v];
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {  // unrolled, as sums would else live in memory
    const GemmColumns to = panel.to[v];
    const bool whole = to.lanes == kLanes;
    float* z = to.z + row * to.stride;
    const float* y = panel.y + v * kLanes + row * panel.y_stride;
    FloatVector total{};
    if (kPasses) total = load_vector<FloatVector>(panel.sums + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, z += to.stride) {
      FloatVector& sum = sums[r][v];
      if (kPasses) {
        const auto passed =
            whole ? load_vector<FloatVector>(y) : load_vector<FloatVector>(y, to.lanes);
        sum = passed <= 0 ? FloatVector{} : sum;
        total += sum;
        y += panel.y_stride;
      }
      if (whole) {
        store_vector(z, sum);
      } else {
        store_vector(z, sum, to.lanes);
      }
    }
    if (kPasses) store_vector(panel.sums + v * kLanes, total);
  }
}

template <int kVectors, bool kPasses>
inline void product_panel(const GemmProduct& a, Span rows, const float* w, const ColumnPanel& panel,
                          bool fetch) {
  i64 row = rows.begin;
  for (; row + kTileRows <= rows.end; row += kTileRows) {
    const float* next[2] = {};
    if (fetch) {  // past the end, too: other rows come next
      for (int t = 0; t < 2; ++t) next[t] = a.x[t].rows + (row + 4 * kTileRows) * a.x[t].stride;
    }
    product_tile<kTileRows, kVectors, kPasses>(a, row, w, panel, next);
  }
  for (; row + 3 <= rows.end; row += 3) product_tile<3, kVectors, kPasses>(a, row, w, panel, {});
  for (; row < rows.end; ++row) product_tile<1, kVectors, kPasses>(a, row, w, panel, {});
}

// Panel by panel of w over rows of x that the second cache holds.
template <bool kPasses>
inline void product_of(const GemmProduct& a, const GemmPassing& passing, Span rows, float* sums) {
  constexpr i64 kBlockFloats = 65536, kFewest = 4 * kTileRows;
  const i64 depth = a.x[0].columns + a.x[1].columns;
  const i64 fitting = kBlockFloats / depth / kTileRows * kTileRows;
  const i64 block = fitting > kFewest ? fitting : kFewest;
  for (Span some{rows.begin, rows.begin}; some.begin < rows.end; some.begin = some.end) {
    some.end = some.begin + block < rows.end ? some.begin + block : rows.end;
    for (i64 v = 0; v < a.vectors; v += kTileVectors) {
      const float* w = a.w + v * kLanes * depth;
      ColumnPanel panel{a.z + v, nullptr, 0, nullptr};
      if (kPasses) panel = {a.z + v, passing.y + v * kLanes, passing.stride, sums + v * kLanes};
      if (v + kTileVectors <= a.vectors) {
        product_panel<kTileVectors, kPasses>(a, some, w, panel, v == 0);
      } else {
        product_panel<1, kPasses>(a, some, w, panel, v == 0);
      }
    }
  }
}

void gemm_product(const GemmProduct& a, const GemmPassing& passing, Span rows, float* sums) {
  passing.y ? product_of<true>(a, passing, rows, sums) : product_of<false>(a, passing, rows, sums);
}

// What a tile of the gradient sums up, and what is fetched meanwhile: a line for each row.
struct GradientRows {
  const float *g, *x;
  i64 g_stride, x_stride;
  i64 count;
  int lanes;  // of the last vector
  const float* next;
};

// Adds g x of some rows to a tile of kRows numbers of g and kVectors vectors of x.
template <int kRows, int kVectors, bool kWhole, bool kPacked>
[[gnu::noinline]] void gradient_tile(const GradientRows& a, float* sums, i64 sums_stride) {
  FloatVector tile[kRows][kVectors];
#pragma GCC unroll 16
  for (int c = 0; c < kRows; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      tile[c][v] = load_vector<FloatVector>(sums + c * sums_stride + v * kLanes);
    }
  }
  const float *g = a.g, *x = a.x;
  const i64 g_stride = kPacked ? kRows : a.g_stride;
  for (i64 row = 0; row < a.count; ++row, x += a.x_stride, g += g_stride) {
    __builtin_prefetch(a.next + row * kLineFloats, 0, 2);
    FloatVector numbers[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      numbers[v] = kWhole ? load_vector<FloatVector>(x + v * kLanes)
                          : load_vector<FloatVector>(x + v * kLanes, a.lanes);
    }
    for (int c = 0; c < kRows; ++c) {
      const float factor = g[c];
      for (int v = 0; v < kVectors; ++v) tile[c][v] += factor * numbers[v];
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kRows; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      store_vector(sums + c * sums_stride + v * kLanes, tile[c][v]);
    }
  }
}

// Some rows of two matrices, their columns side by side, in tiles of kWidth columns: [rows, kWidth]
// each. The last tile is as wide as what is left of `height`, and filled up with zeros.
template <int kWidth>
inline void pack_tiles(const GemmOperand (&matrices)[2], Span rows, i64 height, float* packed) {
  const i64 count = rows.end - rows.begin;
  for (i64 row = 0; row < count; ++row) {
    i64 place = 0, left = height, width = height < kWidth ? height : kWidth;
    float* to = packed + row * width;
    const auto next_tile = [&] {
      to += (count - row) * width;
      left -= width, place = 0;
      width = left < kWidth ? left : kWidth;
      to += row * width;
    };
    for (const GemmOperand& matrix : matrices) {
      const float* from = matrix.rows + (rows.begin + row) * matrix.stride;
      const float *end = from + matrix.columns, *later = from + 16 * matrix.stride;
      for (i64 c = 0; c < end - from; c += kLineFloats) __builtin_prefetch(later + c);
      while (from < end) {
        if (place == 0 && width == kWidth && end - from >= kWidth) {
          std::memcpy(to, from, kWidth * sizeof(float));
          from += kWidth;
          next_tile();
        } else {
          to[place++] = *from++;
          if (place == width) next_tile();
        }
      }
    }
    for (; place && place < width; ++place) to[place] = 0;
  }
}

// Adds rows to `sums`, tile by tile of g and x where they lie, or packed.
template <bool kPacks>
inline void gradient_panel(const GemmGradient& a, Span rows, float* room, float* sums) {
  const auto divides = [&](i64 tile) { return !(a.g[0].columns % tile || a.g[1].columns % tile); };
  // Few numbers of g: those of x are read once.
  const bool tall = kLanes == 16 && a.sums_height <= 2 * kTall && divides(kTall);
  const bool packs_g = kPacks || !divides(kHeight);
  const i64 count = rows.end - rows.begin, stride = a.sums_stride, height = tall ? kTall : kHeight;
  const float* next_g = a.g[0].rows + rows.end * a.g[0].stride;
  float* packed = room + a.panel * a.sums_height;
  if (packs_g) pack_tiles<kHeight>(a.g, rows, a.sums_height, room);
  for (const GemmOperand& x : a.x) {
    const i64 padded = (x.columns + kLanes - 1) / kLanes * kLanes;
    if (kPacks) pack_tiles<kVectors * kLanes>({x, {}}, rows, padded, packed);
    const float* next = x.rows + rows.end * x.stride;
    const i64 lines = count * x.stride / kLineFloats;
    const i64 all_lines = lines + count * a.g[0].stride / kLineFloats;
    i64 fetched = 0;
    for (i64 k = 0, vectors; k < padded; k += vectors * kLanes) {
      const i64 left = (kPacks ? padded : x.columns) - k;
      vectors = tall || left < 2 * kLanes ? 1 : left < kVectors * kLanes ? 2 : kVectors;
      auto* tile = tall && left < kLanes ? gradient_tile<kTall, 1, false, false>
                   : tall                ? gradient_tile<kTall, 1, true, false>
                   : left < kLanes       ? gradient_tile<kHeight, 1, false, kPacks>
                   : vectors == 1        ? gradient_tile<kHeight, 1, true, kPacks>
                   : vectors == 2        ? gradient_tile<kHeight, 2, true, kPacks>
                                         : gradient_tile<kHeight, kVectors, true, kPacks>;
      GradientRows some{room, x.rows + rows.begin * x.stride + k, kHeight, x.stride, count, 0,
                        next};
      some.lanes = static_cast<int>(left);
      if (kPacks) some.x = packed + k * count, some.x_stride = vectors * kLanes;
      for (i64 j = 0; j < a.sums_height; j += height, fetched += count) {
        some.next = fetched < lines       ? next + fetched * kLineFloats
                    : fetched < all_lines ? next_g + (fetched - lines) * kLineFloats
                                          : next;
        some.g = room + j * count;
        if (!packs_g) {
          const i64 before = j < a.g[0].columns ? 0 : a.g[0].columns;
          const GemmOperand& g = a.g[before > 0];
          some.g = g.rows + rows.begin * g.stride + j - before;
          some.g_stride = g.stride;
        }
        tile(some, sums + j * stride + k, stride);
      }
    }
    sums += padded;
  }
}

// Adds rows to `sums` [sums_height, sums_stride]; `room` holds a panel. With few registers, tiles
// are small, and read wide rows too often for these to come from the second cache: packed.
inline void gemm_gradient(const GemmGradient& a, Span rows, float* room, float* sums) {
  const bool packs = kLanes < 16 && a.sums_height > (a.sums_stride <= 384 ? 64 : 16);
  for (Span some{rows.begin, rows.begin}; some.begin < rows.end; some.begin = some.end) {
    some.end = some.begin + a.panel < rows.end ? some.begin + a.panel : rows.end;
    packs ? gradient_panel<true>(a, some, room, sums) : gradient_panel<false>(a, some, room, sums);
  }
}

const GemmKernels gemm_table{kLanes, gemm_product, gemm_gradient};

}  // namespace spgnn::SPGNN_ISA
