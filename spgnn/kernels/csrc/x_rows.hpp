// Rows of X: in registers, in the order in which they are summed, from afar or from near.
#pragma once

#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

// Rows of X and of Y in registers, and the order in which rows of X are summed.

// The packs of one row in a panel. The last ends where the row ends and shares columns with the one
// before: a masked load would reach into a line that nobody fetched (24 columns of reddit-sayit
// took 1.7 times as long). Loops are unrolled by hand: else sums live in memory.
template <int kPacks, bool kTail, class P> struct PackedRow {
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
#pragma GCC unroll 32
    for (int k = 0; k < kPacks; ++k) row.packs[k] = load(p, k, tail);
    return row;
  }
  template <class Out> void store(Out* p, int tail) const {
#pragma GCC unroll 32
    for (int k = 0; k < kPacks; ++k) {
      if constexpr (kTail) {
        packs[k].store(p, tail);
      } else {
        packs[k].store(p + column(k, tail));
      }
    }
  }
  void add(const PackedRow& row) {
#pragma GCC unroll 32
    for (int k = 0; k < kPacks; ++k) packs[k].add(row.packs[k]);
  }
  void add(const T* p, int tail) {
#pragma GCC unroll 32
    for (int k = 0; k < kPacks; ++k) packs[k].add(load(p, k, tail));
  }
  void add_product(Sum<T> w, const T* p, int tail) {
#pragma GCC unroll 32
    for (int k = 0; k < kPacks; ++k) packs[k].add_product(w, load(p, k, tail));
  }
  void scale(Sum<T> w) {
#pragma GCC unroll 32
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

// The sum of kCount rows of X, as a tree. Of a pair, the second product is rounded first.
template <int kCount, bool kWeighted, class Row, class Rows, class S>
[[gnu::always_inline]] inline Row sum_rows(Rows x_rows, [[maybe_unused]] const S* weights,
                                           int tail) {
  constexpr int kHalf = kCount / 2;
  const S* others = kWeighted ? weights + kHalf : nullptr;
  if constexpr (kCount == 1) {
    Row row = Row::load(x_rows[0], tail);
    if constexpr (kWeighted) row.scale(*weights);
    return row;
  } else if constexpr (kCount == 2) {
    Row row = sum_rows<1, kWeighted, Row>(x_rows + 1, others, tail);
    add_row<kWeighted>(x_rows[0], weights, tail, row);
    return row;
  } else {
    Row row = sum_rows<kHalf, kWeighted, Row>(x_rows, weights, tail);
    row.add(sum_rows<kHalf, kWeighted, Row>(x_rows + kHalf, others, tail));
    return row;
  }
}

template <int kGroup, bool kWeighted, class Row, class Rows, class S>
[[gnu::always_inline]] inline void add_group(Rows x_rows, const S* weights, int tail, Row& sum) {
  if constexpr (kGroup == 1) {
    add_row<kWeighted>(x_rows[0], weights, tail, sum);
  } else {
    sum.add(sum_rows<kGroup, kWeighted, Row>(x_rows, weights, tail));
  }
}

// The same for the first `count` rows of a group: to the bit what a group filled up with zeros
// gives. A branch for each binary digit, which processors foresee best.
template <int kCount, bool kWeighted, class Row, class Rows, class S>
[[gnu::always_inline]] inline Row sum_first_rows(int count, Rows x_rows,
                                                 [[maybe_unused]] const S* weights, int tail) {
  constexpr int kHalf = kCount / 2;
  if constexpr (kHalf > 1) {
    if (!(count & kHalf)) {
      return sum_first_rows<kHalf, kWeighted, Row>(count, x_rows, weights, tail);
    }
  }
  Row row = sum_rows<kHalf, kWeighted, Row>(x_rows, weights, tail);
  if constexpr (kHalf > 1) {
    const S* others = kWeighted ? weights + kHalf : nullptr;
    if (count & (kHalf - 1)) {
      row.add(sum_first_rows<kHalf, kWeighted, Row>(count, x_rows + kHalf, others, tail));
    }
  }
  return row;
}

// Most nonzeros of a row that are summed before they reach its accumulators.
inline constexpr int kMostGroup = 8;
// Cache lines of X on their way at any time. Measured: 16 to 256 each gain, 512 nothing more.
inline constexpr int kLinesAhead = 256;
inline constexpr int kPointersAhead = kLinesAhead + kMostGroup;

// Rows of so many cache lines to have on their way.
constexpr int rows_ahead(int lines) {
  return lines < 1 ? kLinesAhead : lines < kLinesAhead ? kLinesAhead / lines : 1;
}

// Rows of X that come from afar: pointers to them are put together first, and each is asked for
// long before its turn, as are indices and values. Nonzeros count from the first of a panel.
template <class T> struct FarRows {
  using Element = T;
  const T* const* x_rows;  // of each nonzero, and of the next kPointersAhead
  i64 unaligned;           // bytes of such a row if it may begin within a cache line, else 0
  Stream coming_indices;   // what to fetch when a nonzero's turn comes
  Stream coming_values;

  const T* const* from(i64 e) const { return x_rows + e; }

  // Fetches what a later group of nonzeros needs as this one takes its turn.
  template <int kGroup, int kLines, bool kWeighted>
  [[gnu::always_inline]] void prefetch(i64 e) const {
    for (int i = 0; i < kGroup; ++i) {
      const T* x = x_rows[e + i + rows_ahead(kLines)];
      prefetch_lines(x, kLines);
      // In a narrower panel the test would cost more than the line.
      if (kLines >= 4 && unaligned) prefetch_last_line(x, unaligned);
    }
    coming_indices.prefetch(e);
    if constexpr (kWeighted) coming_values.prefetch(e);
  }

  template <int kLines> [[gnu::always_inline]] static void prefetch_target(const void* y) {
    prefetch_lines(y, kLines);
    if (kLines >= 4) prefetch_last_line(y, kLines * kCacheLine);
  }
};

// Rows of X that a cache holds: the processor looks far enough ahead by itself.
template <class T, class Index> struct NearRows {
  using Element = T;
  const T* x;
  const Index* indices;
  i64 stride;

  const T* operator[](i64 e) const { return x + indices[e] * stride; }
  NearRows operator+(i64 e) const { return {x, indices + e, stride}; }
  NearRows from(i64 e) const { return *this + e; }

  template <int kGroup, int kLines, bool kWeighted> static void prefetch(i64) {}
  template <int kLines> static void prefetch_target(const void*) {}
};

}  // namespace spgnn::SPGNN_ISA
