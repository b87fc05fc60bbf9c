// The inner loops of SpMM: row accumulators held in registers, rows of X fetched ahead.
#pragma once

#include <type_traits>
#include <utility>

#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kCacheLine = 64;
// Nonzeros whose weights are put together at a time; also bounds one task (see spmm.hpp).
inline constexpr std::int64_t kWeightBlock = 4096;

// Widest register panel, in packs. Accumulators must leave registers for loads.
template <class T>
inline constexpr int kMaxPacks = kVectorBytes == 64 || sizeof(T) > 2 ? 8 : 4;

// Some rows and at most kMaxPacks packs of columns.
template <class T, class Out, class Index>
struct Panel {
  const std::int64_t* indptr;
  const Index* indices;
  Span rows;
  const Sum<T>* weights;       // of nonzero e at weights[e]; null if all ones
  const Sum<T>* row_scale;     // per row of Y
  const std::int32_t* order;   // stored row -> row of Y; null if the same
  std::int64_t prefetch_last;  // no nonzero beyond this one is looked at
  const T* x;
  std::int64_t x_stride;
  Out* y;
  std::int64_t y_stride;
  bool accumulate;
  int tail;  // lanes of the last pack
};

template <int kPacks, bool kTail, class T>
inline Pack<T> load_pack(const T* p, int k, int tail) {
  const T* at = p + k * Pack<T>::kLanes;
  return kTail && k == kPacks - 1 ? Pack<T>::load(at, tail) : Pack<T>::load(at);
}

// Cache lines to have on their way at any time. Measured: 16 to 256 each gain, 512 nothing more.
inline constexpr int kLinesAhead = 256;

constexpr int lines_of(std::int64_t bytes) {
  return static_cast<int>((bytes + kCacheLine - 1) / kCacheLine);
}

inline void prefetch_lines(const void* p, int lines) {
  for (int i = 0; i < lines; ++i) {
    __builtin_prefetch(static_cast<const char*>(p) + i * kCacheLine);
  }
}

// Adds one row of X, weighted, to the accumulators. (Two sets of them, taken in turn to shorten the
// chain of additions, did not measure faster even at one pack.)
template <int kPacks, bool kTail, bool kWeighted, class T, class Out, class Index>
inline void add_row(const Panel<T, Out, Index>& a, std::int64_t e, Pack<T>* sums) {
  constexpr int kAhead = kLinesAhead / lines_of(kPacks * Pack<T>::kLanes * sizeof(T));
  const std::int64_t ahead = e + kAhead < a.prefetch_last ? e + kAhead : a.prefetch_last;
  prefetch_lines(a.x + a.indices[ahead] * a.x_stride,
                 lines_of(kPacks * Pack<T>::kLanes * sizeof(T)));
  const T* x = a.x + a.indices[e] * a.x_stride;
  for (int k = 0; k < kPacks; ++k) {
    Pack<T> pack = load_pack<kPacks, kTail>(x, k, a.tail);
    if constexpr (kWeighted) {
      sums[k].add_product(a.weights[e], pack);
    } else {
      sums[k].add(pack);
    }
  }
}

template <class T, class Out, class Index, int kPacks, bool kTail, bool kWeighted>
void multiply_panel(const Panel<T, Out, Index>& a) {
  constexpr int kLanes = Pack<T>::kLanes;
  constexpr int kLines = lines_of(kPacks * kLanes * sizeof(Out));
  constexpr int kTargetsAhead = 32 / kLines;
  for (std::int64_t row = a.rows.begin; row < a.rows.end; ++row) {
    Pack<T> sums[kPacks] = {};
    if (a.accumulate) {  // stores can wait for memory, this load could not
      const std::int64_t ahead = row + kTargetsAhead < a.rows.end ? row + kTargetsAhead : row;
      prefetch_lines(a.y + (a.order ? a.order[ahead] : ahead) * a.y_stride, kLines);
    }
    const std::int64_t end = a.indptr[row + 1];
    for (std::int64_t e = a.indptr[row]; e < end; ++e) {
      add_row<kPacks, kTail, kWeighted>(a, e, sums);
    }
    const std::int64_t target = a.order ? a.order[row] : row;
    Out* y = a.y + target * a.y_stride;
    if (a.row_scale) {
      for (int k = 0; k < kPacks; ++k) sums[k].scale(a.row_scale[target]);
    }
    if constexpr (std::is_same_v<T, Out>) {
      if (a.accumulate) {
        for (int k = 0; k < kPacks; ++k) sums[k].add(load_pack<kPacks, kTail>(y, k, a.tail));
      }
    }
    for (int k = 0; k < kPacks; ++k) {
      if (kTail && k == kPacks - 1) {
        sums[k].store(y + k * kLanes, a.tail);
      } else {
        sums[k].store(y + k * kLanes);
      }
    }
  }
}

template <class T, class Out, class Index>
using PanelFunction = void (*)(const Panel<T, Out, Index>&);

template <class T, class Out, class Index, bool kTail, bool kWeighted, int... k>
PanelFunction<T, Out, Index> choose_panel(int packs, std::integer_sequence<int, k...>) {
  static constexpr PanelFunction<T, Out, Index> functions[] = {
      multiply_panel<T, Out, Index, k + 1, kTail, kWeighted>...};
  return functions[packs - 1];
}

// Cuts the columns into register panels, as even as possible.
template <class T, class Out, class Index>
void multiply(Panel<T, Out, Index> panel, std::int64_t columns) {
  constexpr int kLanes = Pack<T>::kLanes;
  constexpr auto kChoices = std::make_integer_sequence<int, kMaxPacks<T>>();
  std::int64_t packs = (columns + kLanes - 1) / kLanes;
  std::int64_t panels = (packs + kMaxPacks<T> - 1) / kMaxPacks<T>;
  for (std::int64_t left = columns; panels > 0; --panels) {
    const int width = static_cast<int>((packs + panels - 1) / panels);
    const std::int64_t taken = left < width * kLanes ? left : width * kLanes;
    panel.tail = static_cast<int>(taken - (width - 1) * kLanes);
    const bool tail = kCheapTail || panel.tail < kLanes;
    if (panel.weights) {
      (tail ? choose_panel<T, Out, Index, true, true>(width, kChoices)
            : choose_panel<T, Out, Index, kCheapTail, true>(width, kChoices))(panel);
    } else {
      (tail ? choose_panel<T, Out, Index, true, false>(width, kChoices)
            : choose_panel<T, Out, Index, kCheapTail, false>(width, kChoices))(panel);
    }
    panel.x += taken;
    panel.y += taken;
    left -= taken;
    packs -= width;
  }
}

// values[e] · col_scale[indices[e]] for a range of nonzeros, in `buffer` where it must be made.
template <class T, class Index>
const Sum<T>* weights_of(const SpmmOperands<T, Index>& a, Span nonzeros, Sum<T>* buffer) {
  if (!a.col_scale) return a.values;
  for (std::int64_t e = nonzeros.begin; e < nonzeros.end; ++e) {
    const Sum<T> scale = a.col_scale[a.indices[e]];
    buffer[e - nonzeros.begin] = a.values ? a.values[e] * scale : scale;
  }
  return buffer - nonzeros.begin;
}

template <class T, class Index>
void spmm_rows(const SpmmOperands<T, Index>& a, Span rows, Span columns) {
  Sum<T> buffer[kWeightBlock];
  const std::int64_t last = a.indptr[a.rows] - 1;
  while (rows.begin < rows.end) {
    // As many rows as their weights fit the buffer; the driver hands over no longer row.
    Span block = rows;
    const std::int64_t first = a.indptr[block.begin];
    if (a.col_scale && a.indptr[block.end] - first > kWeightBlock) {
      block.end = block.begin + 1;
      while (a.indptr[block.end + 1] - first <= kWeightBlock) ++block.end;
    }
    const Sum<T>* weights = weights_of(a, {first, a.indptr[block.end]}, buffer);
    multiply<T, T, Index>(
        {a.indptr, a.indices, block, weights, a.row_scale, a.row_order, last, a.x + columns.begin,
         a.x_stride, a.y + columns.begin, a.y_stride, a.accumulate, 0},
        columns.end - columns.begin);
    rows.begin = block.end;
  }
}

template <class T, class Index>
void spmm_partial(const SpmmOperands<T, Index>& a, Span nonzeros, Span columns, Sum<T>* sums) {
  Sum<T> buffer[kWeightBlock];
  const Sum<T>* weights = weights_of(a, nonzeros, buffer);
  const std::int64_t one_row[] = {nonzeros.begin, nonzeros.end};
  multiply<T, Sum<T>, Index>({one_row,
                              a.indices,
                              {0, 1},
                              weights,
                              nullptr,
                              nullptr,
                              a.indptr[a.rows] - 1,
                              a.x + columns.begin,
                              a.x_stride,
                              sums,
                              0,
                              false,
                              0},
                             columns.end - columns.begin);
}

// Roofline: reads every cache line that the product reads of X, once per nonzero, in the same order
// and fetched ahead in the same way, without arithmetic and without writing.
template <class T, class Index>
std::uint32_t touch_rows(const SpmmOperands<T, Index>& a, Span nonzeros) {
  const std::int64_t bytes = a.columns * static_cast<std::int64_t>(sizeof(T));
  const int lines = lines_of(bytes);
  const std::int64_t distance = lines < kLinesAhead ? kLinesAhead / lines : 1;
  const std::int64_t last = a.indptr[a.rows] - 1;
  WordVector seen{};
  for (std::int64_t e = nonzeros.begin; e < nonzeros.end; ++e) {
    const std::int64_t ahead = e + distance < last ? e + distance : last;
    prefetch_lines(a.x + a.indices[ahead] * a.x_stride, lines);
    const char* x = reinterpret_cast<const char*>(a.x + a.indices[e] * a.x_stride);
    for (std::int64_t b = 0; b + kVectorBytes <= bytes; b += kCacheLine) {
      seen |= load_vector<WordVector>(x + b);
    }
  }
  return seen[0];
}

}  // namespace spgnn::SPGNN_ISA
