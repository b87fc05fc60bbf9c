// Rows of X and of Y in registers, and the order in which rows of X are summed.
#pragma once

#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

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

// The sum of kCount rows of X. A tree, so that few additions have to wait for others. Of a pair,
// the second product is rounded before the first is added to it.
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

// The same for a group of which only kCount rows are there: to the bit (but for the sign of a zero,
// which no sum that began with +0 shows) what a group filled up with rows of zeros gives.
template <int kCount, bool kWeighted, class Row, class Rows, class S>
[[gnu::always_inline]] inline Row sum_first_rows(Rows x_rows, [[maybe_unused]] const S* weights,
                                                 int tail) {
  constexpr int kWhole = kCount > 1 ? 2 : 1;
  Row row = sum_rows<kWhole, kWeighted, Row>(x_rows, weights, tail);
  if constexpr (kCount > kWhole) {
    const S* others = kWeighted ? weights + kWhole : nullptr;
    row.add(sum_first_rows<kCount - kWhole, kWeighted, Row>(x_rows + kWhole, others, tail));
  }
  return row;
}

// Adds what is left of a group: less than a whole one.
template <int kGroup, bool kWeighted, class Row, class Rows, class S>
[[gnu::always_inline]] inline void add_first_rows(int count, Rows x_rows, const S* weights,
                                                  int tail, Row& sum) {
  static_assert(kGroup <= 4);
  if constexpr (kGroup > 1) {
    if (count == 1) sum.add(sum_first_rows<1, kWeighted, Row>(x_rows, weights, tail));
  }
  if constexpr (kGroup > 2) {
    if (count == 2) sum.add(sum_first_rows<2, kWeighted, Row>(x_rows, weights, tail));
    if (count == 3) sum.add(sum_first_rows<3, kWeighted, Row>(x_rows, weights, tail));
  }
}

}  // namespace spgnn::SPGNN_ISA
