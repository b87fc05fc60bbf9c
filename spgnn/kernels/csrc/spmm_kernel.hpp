// The inner loops of SpMM: row accumulators held in registers, panel by panel; and of SDDMM.
#pragma once

#include <type_traits>
#include <utility>

#include "kernel_table.hpp"
#include "x_rows.hpp"

namespace spgnn::SPGNN_ISA {

// Most nonzeros of a block, whose weights and pointers into X are put together at a time; no task
// has a longer row (see spmm.hpp). Both fit the first-level cache beside what is fetched ahead.
inline constexpr i64 kBlock = 2048;
// How far ahead indices are fetched: beyond the block that is put together next.
inline constexpr i64 kIndicesAhead = 2 * kBlock;
// The same for values, which are read where they are.
inline constexpr i64 kValuesAhead = 512;

// Widest register panel, in packs: a load needs a register too, unless it is an operand of AVX2's
// sums. Wider rows take two panels of half the width, which takes 1.2 to 1.4 times as long.
template <class P>
inline constexpr int kMaxPacks = P::kVectors > 1          ? kVectorRegisters / 3
                                 : kVectorRegisters == 32 ? 24
                                                          : kVectorBytes / 2;
template <> inline constexpr int kMaxPacks<NarrowBfloat16Pack> = 1;

// Nonzeros summed pairwise before they reach the accumulators: what half of the registers hold.
template <int kPacks, class P> constexpr int group_size() {
  int group = kMostGroup;
  while (group > 1 && group * kPacks * P::kVectors > kVectorRegisters / 2) group /= 2;
  return group;
}

// Rows of Y, and the nonzeros that make them.
template <class Out, class S> struct Target {
  const i64* indptr;
  Span rows;
  const S* row_scale;  // per row of Y
  RowsOf<Out> y;
  bool accumulate;
  bool resume = false;  // whether y has sums of earlier nonzeros, to be gone on with
};

// Some packs of their columns. Nonzeros count from the first of these rows.
template <class Rows, class Out> struct Panel : Target<Out, Sum<typename Rows::Element>> {
  using S = Sum<typename Rows::Element>;
  Rows x_rows{};
  const S* weights = nullptr;  // of each nonzero; null if all ones
  int tail = 0;                // columns of the last pack that are in no other
};

template <class P, class Rows, class Out, int kPacks, int kGroup, bool kTail, bool kWeighted>
void multiply_panel(const Panel<Rows, Out>& operands) {
  using T = typename P::Element;
  using Row = PackedRow<kPacks, kTail, P>;
  constexpr int kLines = lines_of(kPacks * P::kLanes * sizeof(T));
  constexpr int kTargetLines = lines_of(kPacks * P::kLanes * sizeof(Out));
  constexpr int kTargetsAhead = 32 / kTargetLines;
  const Panel<Rows, Out> panel = operands;  // a copy, which no store to Y can change
  const auto [begin, end] = panel.rows;
  const i64 first = panel.indptr[begin];
  i64 e = 0;
  for (i64 row = begin; row < end; ++row) {
    if (panel.accumulate || panel.resume) {  // stores can wait for memory, this load could not
      const i64 ahead = row + kTargetsAhead < end ? row + kTargetsAhead : row;
      panel.x_rows.template prefetch_target<kTargetLines>(panel.y[ahead]);
    }
    Row sum;
    if constexpr (std::is_same_v<T, Out>) {
      if (panel.resume) sum = Row::load(panel.y[row], panel.tail);
    }
    const i64 row_end = panel.indptr[row + 1] - first;
    for (; e + kGroup <= row_end; e += kGroup) {
      panel.x_rows.template prefetch<kGroup, kLines, kWeighted>(e);
      const Sum<T>* weights = kWeighted ? panel.weights + e : nullptr;
      add_group<kGroup, kWeighted>(panel.x_rows.from(e), weights, panel.tail, sum);
    }
    if constexpr (kGroup > 1) {
      if (const int left = static_cast<int>(row_end - e)) {
        panel.x_rows.template prefetch<kGroup, kLines, kWeighted>(e);
        const Sum<T>* weights = kWeighted ? panel.weights + e : nullptr;
        sum.add(sum_first_rows<kGroup, kWeighted, Row>(left, panel.x_rows.from(e), weights,
                                                       panel.tail));
      }
    }
    e = row_end;
    Out* y = panel.y[row];
    if (panel.row_scale) sum.scale(panel.row_scale[row]);
    if constexpr (std::is_same_v<T, Out>) {
      if (panel.accumulate) sum.add(y, panel.tail);
    }
    sum.store(y, panel.tail);
  }
}

template <class Rows, class Out> using PanelFunction = void (*)(const Panel<Rows, Out>&);

template <class P, class Rows, class Out, bool kTail, bool kWeighted, int... k>
PanelFunction<Rows, Out> whole_panel(int packs, std::integer_sequence<int, k...>) {
  // Only a row of less than a pack has a tail.
  static constexpr PanelFunction<Rows, Out> functions[] = {
      multiply_panel<P, Rows, Out, k + 1, group_size<k + 1, P>(), (kTail && k == 0), kWeighted>...};
  return functions[packs - 1];
}

template <class P, class Rows, class Out, bool kTail, bool kWeighted>
PanelFunction<Rows, Out> choose_panel(int packs) {
  constexpr auto kChoices = std::make_integer_sequence<int, kMaxPacks<P>>();
  return whole_panel<P, Rows, Out, kTail, kWeighted>(packs, kChoices);
}

// Rows of X of these nonzeros and the next kPointersAhead; past the last nonzero, any.
template <class Operands, class T>
void point_at_rows(const Operands& a, Span nonzeros, const T* x, const T** x_rows) {
  const auto* indices = a.indices + nonzeros.begin;
  const i64 left = a.indptr[a.rows] - nonzeros.begin;
  const i64 wanted = nonzeros.end - nonzeros.begin + kPointersAhead;
  const i64 count = wanted < left ? wanted : left;
  const i64 stride = a.x.stride;
  for (i64 e = 0; e < count; ++e) x_rows[e] = x + indices[e] * stride;
  for (i64 e = count; e < wanted; ++e) x_rows[e] = x;
}

// Whether all rows of X begin at cache lines.
template <class T, class Index> bool is_aligned(const SpmmOperands<T, Index>& a) {
  return reinterpret_cast<std::uintptr_t>(a.x.data) % kCacheLine == 0 &&
         a.x.stride * sizeof(T) % kCacheLine == 0;
}

// values[e] · col_scale[indices[e]] for a range of nonzeros, in `buffer` where it must be made.
template <class T, class Index>
const Sum<T>* weights_of(const SpmmOperands<T, Index>& a, Span nonzeros, Sum<T>* buffer) {
  if (!a.col_scale && (!a.values || a.values.stride == 1)) {
    return a.values ? a.values[nonzeros.begin] : nullptr;
  }
  const Index* indices = a.indices + nonzeros.begin;
  const RowsOf<const Sum<T>> values{a.values ? a.values[nonzeros.begin] : nullptr, a.values.stride};
  for (i64 e = 0; e < nonzeros.end - nonzeros.begin; ++e) {
    buffer[e] = values ? *values[e] : Sum<T>{1};
    if (a.col_scale) buffer[e] *= a.col_scale[indices[e]];
  }
  return buffer;
}

// `columns` of X and Y in so many packs.
template <class P, class Rows, class Out>
void multiply_columns(Panel<Rows, Out> panel, i64 columns, int packs) {
  panel.tail = static_cast<int>(columns - (packs - 1) * P::kLanes);
  const bool tail = panel.tail < P::kLanes;
  if (panel.weights) {
    (tail ? choose_panel<P, Rows, Out, true, true>(packs)
          : choose_panel<P, Rows, Out, false, true>(packs))(panel);
  } else {
    (tail ? choose_panel<P, Rows, Out, true, false>(packs)
          : choose_panel<P, Rows, Out, false, false>(packs))(panel);
  }
}

// Register panels, as even as possible.
template <class P> class Panels {
 public:
  explicit Panels(i64 columns)
      : columns_(columns), packs_((columns + P::kLanes - 1) / P::kLanes),
        panels_((packs_ + kMaxPacks<P> - 1) / kMaxPacks<P>) {}

  i64 count() const { return panels_; }
  // Where panel i begins, in packs; wider panels come first.
  i64 first_pack(i64 i) const {
    const i64 wider = packs_ % panels_;
    return packs_ / panels_ * i + (i < wider ? i : wider);
  }
  int packs(i64 i) const { return static_cast<int>(first_pack(i + 1) - first_pack(i)); }
  Span columns(i64 i) const {
    const i64 end = first_pack(i + 1) * P::kLanes;
    return {first_pack(i) * P::kLanes, end < columns_ ? end : columns_};
  }

 private:
  i64 columns_, packs_, panels_;
};

// At most kBlock nonzeros.
template <class P, class T, class Out, class Index>
void multiply_packs(const SpmmOperands<T, Index>& a, const Target<Out, Sum<T>>& target) {
  const Span nonzeros{target.indptr[target.rows.begin], target.indptr[target.rows.end]};
  Sum<T> buffer[kBlock];
  const Sum<T>* weights = weights_of(a, nonzeros, buffer);
  const Panels<P> panels(a.columns);
  const auto multiply_panels = [&](const auto& rows_from) {
    for (i64 i = 0; i < panels.count(); ++i) {
      const auto [begin, end] = panels.columns(i);
      Panel<decltype(rows_from(begin, end)), Out> panel{target, rows_from(begin, end), weights};
      panel.y.data += begin;
      multiply_columns<P>(panel, end - begin, panels.packs(i));
    }
  };
  if (a.near) {
    return multiply_panels([&](i64 begin, i64) {
      return NearRows<T, Index>{a.x.data + begin, a.indices + nonzeros.begin, a.x.stride};
    });
  }
  const T* x_rows[kBlock + kPointersAhead];
  const Stream coming_indices(a.indices, nonzeros.begin + kIndicesAhead);
  const Stream coming_values(weights, weights == buffer ? 0 : kValuesAhead);
  multiply_panels([&](i64 begin, i64 end) {
    point_at_rows(a, nonzeros, a.x.data + begin, x_rows);
    const i64 bytes = is_aligned(a) ? 0 : (end - begin) * i64{sizeof(T)};
    return FarRows<T>{x_rows, bytes, coming_indices, coming_values};
  });
}

template <class T, class Out, class Index>
void multiply(const SpmmOperands<T, Index>& a, const Target<Out, Sum<T>>& target) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (a.columns <= NarrowBfloat16Pack::kLanes) {
      multiply_packs<NarrowBfloat16Pack>(a, target);
      return;
    }
  }
  multiply_packs<Pack<T>>(a, target);
}

template <class T, class Index> void spmm_rows(const SpmmOperands<T, Index>& a, Span rows) {
  while (rows.begin < rows.end) {
    Span block = rows;
    const i64 first = a.indptr[block.begin];
    if (a.indptr[block.end] - first > kBlock) {
      block.end = block.begin + 1;  // the driver hands over no longer row
      while (a.indptr[block.end + 1] - first <= kBlock) ++block.end;
    }
    multiply(a, Target<T, Sum<T>>{a.indptr, block, a.row_scale, a.y, a.accumulate});
    rows.begin = block.end;
  }
}

// Rows are cut between groups, wherever the nearest cut to the end of the block is, and sums go on
// in Y: the same additions in the same order as without blocks, whatever the order of columns.
template <class T, class Index>
void spmm_block(const SpmmOperands<T, Index>& a, const SourceBlock& block, Span rows) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    constexpr i64 kVisitsAhead = 16;
    const bool weighted = a.values || a.col_scale;
    const T* x_rows[kBlock + kPointersAhead];
    T weights[kBlock];
    i64 indptr[kBlock + 1] = {};
    const Panels<Pack<T>> panels(a.columns);
    i64 count = 0, begin = rows.begin, row = rows.begin;
    const auto multiply_rows = [&] {
      for (int i = 0; i < kPointersAhead; ++i) x_rows[count + i] = a.x.data;
      Panel<FarRows<T>, T> panel{
          {indptr, {0, row - begin}, nullptr, {nullptr, a.y.stride}, false, !block.first}};
      if (block.last && a.row_scale) panel.row_scale = a.row_scale + begin;
      if (weighted) panel.weights = weights;
      panel.x_rows.x_rows = x_rows;
      panel.x_rows.coming_indices = panel.x_rows.coming_values = Stream(indptr, 0);
      i64 shift = 0;
      for (i64 i = 0; i < panels.count() && row > begin; ++i) {
        const auto [from, to] = panels.columns(i);
        for (i64 e = 0; e < count; ++e) x_rows[e] += from - shift;
        shift = from;
        panel.x_rows.unaligned = is_aligned(a) ? 0 : (to - from) * sizeof(T);
        panel.y.data = a.y[begin] + from;
        multiply_columns<Pack<T>>(panel, to - from, panels.packs(i));
      }
      count = 0;
      begin = row;
    };
    for (; row < rows.end; ++row) {
      const i64 first = block.next[row], end = a.indptr[row + 1];
      if (row + kVisitsAhead < rows.end) {
        const i64 ahead = block.next[row + kVisitsAhead];
        __builtin_prefetch(a.indices + ahead);
        if (a.values) __builtin_prefetch(a.values[ahead]);
      }
      if (end - a.indptr[row] > kBlock) {
        multiply_rows();
        begin = row + 1;
        continue;
      }
      i64 e = first;
      if (block.last) {
        e = end;
      } else {
        while (e + kMostGroup <= end && a.indices[e + kMostGroup / 2] < block.end) e += kMostGroup;
      }
      block.next[row] = e;
      if (count + e - first > kBlock || row - begin == kBlock) multiply_rows();
      for (i64 k = 0; k < e - first; ++k) { x_rows[count + k] = a.x[a.indices[first + k]]; }
      for (i64 k = 0; weighted && k < e - first; ++k) {
        weights[count + k] = a.values ? *a.values[first + k] : T{1};
        if (a.col_scale) weights[count + k] *= a.col_scale[a.indices[first + k]];
      }
      count += e - first;
      indptr[row - begin + 1] = count;
    }
    multiply_rows();
  }
}

template <class T, class Index>
void spmm_partial(const SpmmOperands<T, Index>& a, Span nonzeros, Sum<T>* sums) {
  const i64 one_row[] = {nonzeros.begin, nonzeros.end};
  multiply(a, Target<Sum<T>, Sum<T>>{one_row, {0, 1}, nullptr, sums, 0, false});
}

// Products of rows of two dense matrices where a sparse one has nonzeros (SDDMM).

template <class T> inline Sum<T> dot(const T* x, const T* g, i64 columns) {
  constexpr int kLanes = Pack<T>::kLanes;
  Pack<T> sum;
  i64 c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    sum.add_product(Pack<T>::load(x + c), Pack<T>::load(g + c));
  }
  if (c < columns) {
    const int rest = static_cast<int>(columns - c);
    sum.add_product(Pack<T>::load(x + c, rest), Pack<T>::load(g + c, rest));
  }
  return sum.total();
}

// At most kBlock nonzeros.
template <class T, class Index> void sddmm(const SddmmOperands<T, Index>& a, Span nonzeros) {
  const T* x_rows[kBlock + kPointersAhead];
  point_at_rows(a, nonzeros, a.x.data, x_rows);
  const int lines = lines_of(a.columns * static_cast<i64>(sizeof(T)));
  const int ahead = rows_ahead(lines);
  i64 row = first_where(0, a.rows - 1, [&](i64 r) { return a.indptr[r + 1] > nonzeros.begin; });
  for (i64 e = nonzeros.begin; e < nonzeros.end; ++e) {
    while (a.indptr[row + 1] <= e) ++row;
    const T* const* x = x_rows + (e - nonzeros.begin);
    prefetch_lines(x[ahead], lines);
    Sum<T> product = dot(*x, a.g[row], a.columns);
    if (a.row_scale) product *= a.row_scale[row];
    if (a.col_scale) product *= a.col_scale[a.indices[e]];
    *a.products[e] = product;
  }
}

}  // namespace spgnn::SPGNN_ISA
