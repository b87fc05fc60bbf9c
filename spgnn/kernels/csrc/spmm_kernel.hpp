// The inner loops of SpMM: row accumulators held in registers, rows of X fetched ahead.
#pragma once

#include <type_traits>
#include <utility>

#include "kernel_table.hpp"
#include "prefetch.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

// Most nonzeros of a block, whose weights and pointers into X are put together at a time; no task
// has a longer row (see spmm.hpp). Both fit the first-level cache beside what is fetched ahead.
inline constexpr std::int64_t kBlock = 2048;
// Cache lines of X to have on their way at any time. Measured: 16 to 256 each gain, 512 nothing
// more.
inline constexpr int kLinesAhead = 256;
// How far ahead indices are fetched, in nonzeros: beyond the block that is put together next, which
// would otherwise wait for them all at once.
inline constexpr std::int64_t kIndicesAhead = 2 * kBlock;
// The same for values, which are read where they are.
inline constexpr std::int64_t kValuesAhead = 512;

// Widest register panel, in packs. Accumulators must leave registers for loads; a load of bfloat16
// serves two accumulators.
template <class P>
inline constexpr int kMaxPacks = kVectorRegisters * (P::kVectors == 1 ? 8 : 5) / 16;
template <>
inline constexpr int kMaxPacks<NarrowBfloat16Pack> = 1;

inline constexpr int kMostGroup = 8;
inline constexpr int kPointersAhead = kLinesAhead + kMostGroup;

// Nonzeros of a row that are summed pairwise before they reach the accumulators: as many as half of
// the registers hold, within kMostGroup.
template <int kPacks, class P>
constexpr int group_size() {
  int group = kMostGroup;
  while (group > 1 && group * kPacks * P::kVectors > kVectorRegisters / 2) group /= 2;
  return group;
}

// Some rows and at most kMaxPacks packs of columns. Nonzeros count from the first of these rows.
template <class T, class Out>
struct Panel {
  const std::int64_t* indptr;
  Span rows;
  const T* const* x_rows;  // of each nonzero, and of the next kPointersAhead
  std::int64_t unaligned;  // bytes of such a row if it may begin within a cache line, else 0
  const Sum<T>* weights;   // of each nonzero; null if all ones
  Stream coming_indices;   // what to fetch when a nonzero's turn comes
  Stream coming_values;
  const Sum<T>* row_scale;  // per row of Y
  Out* y;
  std::int64_t y_stride;
  bool accumulate;
  int tail;  // columns of the last pack that are in no other
};

// The packs of one row in a panel. The last one ends where the row ends and shares columns with the
// one before it: a masked load instead would reach into the next cache line, which nobody fetched
// (24 columns of reddit-sayit took 1.7 times as long). Only a row of less than a pack (kTail) needs
// a mask. Loops are unrolled by hand: where the compiler does not, sums live in memory.
template <int kPacks, bool kTail, class P>
struct PackedRow {
  static_assert(!kTail || kPacks == 1);
  using T = typename P::Element;
  static constexpr int kLanes = P::kLanes;
  P packs[kPacks]{};

  static int column(int k, int tail) {
    return kPacks > 1 && k == kPacks - 1 ? (k - 1) * kLanes + tail : k * kLanes;
  }
  static P load(const T* p, int k, int tail) {
    if constexpr (kTail) return P::load(p, tail);
    return P::load(p + column(k, tail));
  }
  static PackedRow load(const T* p, int tail) {
    PackedRow row;
#pragma GCC unroll 16
    for (int k = 0; k < kPacks; ++k) row.packs[k] = load(p, k, tail);
    return row;
  }
  template <class Out>
  void store(Out* p, int tail) const {
#pragma GCC unroll 16
    for (int k = 0; k < kPacks; ++k) {
      if constexpr (kTail) {
        packs[k].store(p, tail);
      } else {
        packs[k].store(p + column(k, tail));
      }
    }
  }
  void add(const PackedRow& row) {
#pragma GCC unroll 16
    for (int k = 0; k < kPacks; ++k) packs[k].add(row.packs[k]);
  }
  void add(const T* p, int tail) {
#pragma GCC unroll 16
    for (int k = 0; k < kPacks; ++k) packs[k].add(load(p, k, tail));
  }
  void add_product(Sum<T> w, const T* p, int tail) {
#pragma GCC unroll 16
    for (int k = 0; k < kPacks; ++k) packs[k].add_product(w, load(p, k, tail));
  }
  void scale(Sum<T> w) {
#pragma GCC unroll 16
    for (int k = 0; k < kPacks; ++k) packs[k].scale(w);
  }
};

// Adds one row of X to a sum.
template <bool kWeighted, class Row, class T>
[[gnu::always_inline]] inline void add_row(const T* x, [[maybe_unused]] const Sum<T>* weight,
                                           int tail, Row& sum) {
  if constexpr (kWeighted) {
    sum.add_product(*weight, x, tail);
  } else {
    sum.add(x, tail);
  }
}

// The sum of kCount rows of X. A tree, so that few additions have to wait for others.
template <int kCount, bool kWeighted, class Row, class T>
[[gnu::always_inline]] inline Row sum_rows(const T* const* x_rows,
                                           [[maybe_unused]] const Sum<T>* weights, int tail) {
  constexpr int kHalf = kCount / 2;
  const Sum<T>* others = kWeighted ? weights + kHalf : nullptr;
  if constexpr (kCount == 1) {
    Row row = Row::load(*x_rows, tail);
    if constexpr (kWeighted) row.scale(*weights);
    return row;
  } else {
    Row row = sum_rows<kHalf, kWeighted, Row>(x_rows, weights, tail);
    if constexpr (kCount == 2) {
      add_row<kWeighted>(x_rows[1], others, tail, row);
    } else {
      row.add(sum_rows<kHalf, kWeighted, Row>(x_rows + kHalf, others, tail));
    }
    return row;
  }
}

template <int kGroup, bool kWeighted, class Row, class T>
[[gnu::always_inline]] inline void add_group(const T* const* x_rows, const Sum<T>* weights,
                                             int tail, Row& sum) {
  if constexpr (kGroup == 1) {
    add_row<kWeighted>(*x_rows, weights, tail, sum);
  } else {
    sum.add(sum_rows<kGroup, kWeighted, Row>(x_rows, weights, tail));
  }
}

// Rows of so many cache lines to have on their way.
constexpr int rows_ahead(int lines) {
  return lines < 1 ? kLinesAhead : lines < kLinesAhead ? kLinesAhead / lines : 1;
}

// The first `count` of kMostGroup pointers, and `other` after them; reads all. On vectors, because
// compilers make branches of such a choice between two pointers.
template <class T>
inline void take_first(const T* const* from, int count, const T* other, const T** taken) {
  static_assert(sizeof(T*) == sizeof(std::int64_t));
  constexpr int kLanes = kVectorBytes / 8;
  static constexpr std::int64_t kNumbers[kMostGroup] = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto others = reinterpret_cast<std::intptr_t>(other) + LongVector{};
  for (int i = 0; i < kMostGroup; i += kLanes) {
    const auto numbers = load_vector<LongVector>(kNumbers + i);
    store_vector(taken + i, numbers < count ? load_vector<LongVector>(from + i) : others);
  }
}

// The first `count` weights, zeros after them; reads none beyond. The whole pack is stored, because
// what a masked store wrote cannot be forwarded to the loads that follow.
template <class S>
struct SomeWeights {
  alignas(kCacheLine) S w[kCheapTail ? Pack<S>::kLanes : kMostGroup];

  void take_first(const S* weights, int count) {
    if constexpr (kCheapTail) {
      Pack<S>::load(weights, count).store(w);
    } else {
      for (int i = 0; i < kMostGroup; ++i) w[i] = i < count ? weights[i] : S{0};
    }
  }
};

// Fetches what a later group of nonzeros needs as this one takes its turn.
template <int kGroup, int kLines, bool kWeighted, class T, class Out>
[[gnu::always_inline]] inline void prefetch_group(const Panel<T, Out>& panel, std::int64_t e) {
  for (int i = 0; i < kGroup; ++i) {
    const T* x = panel.x_rows[e + i + rows_ahead(kLines)];
    prefetch_lines(x, kLines);
    // In a narrower panel the test would cost more than the line.
    if (kLines >= 4 && panel.unaligned) prefetch_last_line(x, panel.unaligned);
  }
  panel.coming_indices.prefetch(e);
  if constexpr (kWeighted) panel.coming_values.prefetch(e);
}

template <class P, class Out, int kPacks, bool kTail, bool kWeighted>
void multiply_panel(const Panel<typename P::Element, Out>& operands) {
  using T = typename P::Element;
  using Row = PackedRow<kPacks, kTail, P>;
  constexpr int kGroup = group_size<kPacks, P>();
  constexpr int kLines = lines_of(kPacks * P::kLanes * sizeof(T));
  constexpr int kTargetLines = lines_of(kPacks * P::kLanes * sizeof(Out));
  constexpr int kTargetsAhead = 32 / kTargetLines;
  alignas(kCacheLine) static constexpr T kZeros[kPacks * P::kLanes] = {};
  const Panel<T, Out> panel = operands;  // a copy, which no store to Y can change
  const auto [begin, end] = panel.rows;
  const std::int64_t first = panel.indptr[begin];
  std::int64_t e = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    if (panel.accumulate) {  // stores can wait for memory, this load could not
      const std::int64_t ahead = row + kTargetsAhead < end ? row + kTargetsAhead : row;
      const Out* later = panel.y + ahead * panel.y_stride;
      prefetch_lines(later, kTargetLines);
      if (kTargetLines >= 4) prefetch_last_line(later, kTargetLines * kCacheLine);
    }
    Row sum;
    const std::int64_t row_end = panel.indptr[row + 1] - first;
    for (; e + kGroup < row_end; e += kGroup) {
      prefetch_group<kGroup, kLines, kWeighted>(panel, e);
      const Sum<T>* weights = kWeighted ? panel.weights + e : nullptr;
      add_group<kGroup, kWeighted>(panel.x_rows + e, weights, panel.tail, sum);
    }
    // The last group is filled up with rows of zeros: a loop over what is left, of a different
    // length in every row, would cost a mispredicted branch more.
    const T* some[kMostGroup];
    SomeWeights<Sum<T>> some_weights;
    const int left = static_cast<int>(row_end - e);
    take_first<T>(panel.x_rows + e, left, kZeros, some);
    if constexpr (kWeighted) some_weights.take_first(panel.weights + e, left);
    prefetch_group<kGroup, kLines, kWeighted>(panel, e);
    add_group<kGroup, kWeighted>(some, some_weights.w, panel.tail, sum);
    e = row_end;
    Out* y = panel.y + row * panel.y_stride;
    if (panel.row_scale) sum.scale(panel.row_scale[row]);
    if constexpr (std::is_same_v<T, Out>) {
      if (panel.accumulate) sum.add(y, panel.tail);
    }
    sum.store(y, panel.tail);
  }
}

template <class P, class Out>
using PanelFunction = void (*)(const Panel<typename P::Element, Out>&);

template <class P, class Out, bool kTail, bool kWeighted, int... k>
PanelFunction<P, Out> choose_panel(int packs, std::integer_sequence<int, k...>) {
  // Only a row of less than a pack has a tail.
  static constexpr PanelFunction<P, Out> functions[] = {
      multiply_panel<P, Out, k + 1, (kTail && k == 0), kWeighted>...};
  return functions[packs - 1];
}

// Where the row of X begins for each of these nonzeros and the next kPointersAhead; past the last
// nonzero, anywhere.
template <class Operands, class T>
void point_at_rows(const Operands& a, Span nonzeros, const T* x, const T** x_rows) {
  const auto* indices = a.indices + nonzeros.begin;
  const std::int64_t left = a.indptr[a.rows] - nonzeros.begin;
  const std::int64_t wanted = nonzeros.end - nonzeros.begin + kPointersAhead;
  const std::int64_t count = wanted < left ? wanted : left;
  const std::int64_t stride = a.x_stride;
  for (std::int64_t e = 0; e < count; ++e) x_rows[e] = x + indices[e] * stride;
  for (std::int64_t e = count; e < wanted; ++e) x_rows[e] = x;
}

// Whether all rows of X begin at cache lines.
template <class T, class Index>
bool is_aligned(const SpmmOperands<T, Index>& a) {
  return reinterpret_cast<std::uintptr_t>(a.x) % kCacheLine == 0 &&
         a.x_stride * sizeof(T) % kCacheLine == 0;
}

// values[e] · col_scale[indices[e]] for a range of nonzeros, in `buffer` where it must be made.
template <class T, class Index>
const Sum<T>* weights_of(const SpmmOperands<T, Index>& a, Span nonzeros, Sum<T>* buffer) {
  if (a.values && a.value_stride != 1) {
    const Sum<T>* values = a.values + nonzeros.begin * a.value_stride;
    for (std::int64_t e = 0; e < nonzeros.end - nonzeros.begin; ++e) {
      buffer[e] = values[e * a.value_stride];
      if (a.col_scale) buffer[e] *= a.col_scale[a.indices[nonzeros.begin + e]];
    }
    return buffer;
  }
  if (!a.col_scale) return a.values ? a.values + nonzeros.begin : nullptr;
  const Index* indices = a.indices + nonzeros.begin;
  const Sum<T>* values = a.values ? a.values + nonzeros.begin : nullptr;
  for (std::int64_t e = 0; e < nonzeros.end - nonzeros.begin; ++e) {
    buffer[e] = values ? values[e] * a.col_scale[indices[e]] : a.col_scale[indices[e]];
  }
  return buffer;
}

// At most kBlock nonzeros. Cuts the columns into register panels, as even as possible.
template <class P, class T, class Out, class Index>
void multiply_packs(const SpmmOperands<T, Index>& a, Span columns, Panel<T, Out> panel) {
  constexpr int kLanes = P::kLanes;
  constexpr auto kChoices = std::make_integer_sequence<int, kMaxPacks<P>>();
  const Span nonzeros{panel.indptr[panel.rows.begin], panel.indptr[panel.rows.end]};
  const T* x_rows[kBlock + kPointersAhead];
  Sum<T> buffer[kBlock];
  panel.x_rows = x_rows;
  panel.weights = weights_of(a, nonzeros, buffer);
  panel.coming_indices = Stream(a.indices, nonzeros.begin + kIndicesAhead);
  panel.coming_values = Stream(panel.weights, panel.weights == buffer ? 0 : kValuesAhead);
  const T* x = a.x + columns.begin;
  std::int64_t packs = (columns.end - columns.begin + kLanes - 1) / kLanes;
  std::int64_t panels = (packs + kMaxPacks<P> - 1) / kMaxPacks<P>;
  for (std::int64_t left = columns.end - columns.begin; panels > 0; --panels) {
    const int width = static_cast<int>((packs + panels - 1) / panels);
    const std::int64_t taken = left < width * kLanes ? left : width * kLanes;
    panel.tail = static_cast<int>(taken - (width - 1) * kLanes);
    panel.unaligned = is_aligned(a) ? 0 : taken * static_cast<std::int64_t>(sizeof(T));
    point_at_rows(a, nonzeros, x, x_rows);
    const bool tail = panel.tail < kLanes;
    if (panel.weights) {
      (tail ? choose_panel<P, Out, true, true>(width, kChoices)
            : choose_panel<P, Out, false, true>(width, kChoices))(panel);
    } else {
      (tail ? choose_panel<P, Out, true, false>(width, kChoices)
            : choose_panel<P, Out, false, false>(width, kChoices))(panel);
    }
    x += taken;
    panel.y += taken;
    left -= taken;
    packs -= width;
  }
}

template <class T, class Out, class Index>
void multiply(const SpmmOperands<T, Index>& a, Span columns, const Panel<T, Out>& panel) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (columns.end - columns.begin <= NarrowBfloat16Pack::kLanes) {
      multiply_packs<NarrowBfloat16Pack>(a, columns, panel);
      return;
    }
  }
  multiply_packs<Pack<T>>(a, columns, panel);
}

template <class T, class Index>
void spmm_rows(const SpmmOperands<T, Index>& a, Span rows, Span columns) {
  while (rows.begin < rows.end) {
    Span block = rows;
    const std::int64_t first = a.indptr[block.begin];
    if (a.indptr[block.end] - first > kBlock) {
      block.end = block.begin + 1;  // the driver hands over no longer row
      while (a.indptr[block.end + 1] - first <= kBlock) ++block.end;
    }
    Panel<T, T> panel{};
    panel.indptr = a.indptr;
    panel.rows = block;
    panel.row_scale = a.row_scale;
    panel.y = a.y + columns.begin;
    panel.y_stride = a.y_stride;
    panel.accumulate = a.accumulate;
    multiply(a, columns, panel);
    rows.begin = block.end;
  }
}

template <class T, class Index>
void spmm_partial(const SpmmOperands<T, Index>& a, Span nonzeros, Span columns, Sum<T>* sums) {
  const std::int64_t one_row[] = {nonzeros.begin, nonzeros.end};
  Panel<T, Sum<T>> panel{};
  panel.indptr = one_row;
  panel.rows = {0, 1};
  panel.y = sums;
  multiply(a, columns, panel);
}

// Roofline: reads every cache line that the product reads of X, once per nonzero, in the same order
// and fetched ahead in the same way, without arithmetic and without writing.
template <class T, class Index>
std::uint32_t touch_rows(const SpmmOperands<T, Index>& a, Span nonzeros) {
  const std::int64_t bytes = a.columns * static_cast<std::int64_t>(sizeof(T));
  const int lines = lines_of(bytes);
  const int distance = rows_ahead(lines);
  const T* x_rows[kBlock + kPointersAhead];
  WordVector seen{};
  for (Span block = nonzeros; block.begin < nonzeros.end; block.begin = block.end) {
    block.end = nonzeros.end - block.begin < kBlock ? nonzeros.end : block.begin + kBlock;
    point_at_rows(a, block, a.x, x_rows);
    const Stream coming(a.indices, block.begin + kIndicesAhead);
    for (std::int64_t e = 0; e < block.end - block.begin; ++e) {
      prefetch_lines(x_rows[e + distance], lines);
      if (e % 8 == 0) coming.prefetch(e);
      const char* x = reinterpret_cast<const char*>(x_rows[e]);
      for (std::int64_t b = 0; b + kVectorBytes <= bytes; b += kCacheLine) {
        seen |= load_vector<WordVector>(x + b);
      }
    }
  }
  return seen[0];
}

}  // namespace spgnn::SPGNN_ISA
