// Rows of X: in registers, in the order in which they are summed, from afar or from near.
#pragma once

#include <cstdint>

#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

// Rows of X and of Y in registers, and the order in which rows of X are summed.

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

// Most nonzeros of a row that are summed before they reach its accumulators.
inline constexpr int kMostGroup = 8;
// Cache lines of X to have on their way at any time. Measured: 16 to 256 each gain, 512 nothing
// more.
inline constexpr int kLinesAhead = 256;
inline constexpr int kPointersAhead = kLinesAhead + kMostGroup;

// Rows of so many cache lines to have on their way.
constexpr int rows_ahead(int lines) {
  return lines < 1 ? kLinesAhead : lines < kLinesAhead ? kLinesAhead / lines : 1;
}

// Of the pointers whose numbers begin with `number`, those below `count`, and `other` in place of
// the rest. On vectors, because compilers make branches of such a choice between two pointers.
template <class T>
inline void store_first(LongVector pointers, int number, int count, const T* other,
                        const T** stored) {
  static_assert(sizeof(T*) == sizeof(std::int64_t));
  static constexpr std::int64_t kNumbers[kMostGroup] = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto others = reinterpret_cast<std::intptr_t>(other) + LongVector{};
  const auto numbers = load_vector<LongVector>(kNumbers + number);
  store_vector(stored + number, numbers < count ? pointers : others);
}

inline constexpr int kLongLanes = kVectorBytes / 8;

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

// Rows of X that come from afar: pointers to them are put together first, and each is asked for
// long before its turn, as are indices and values. Nonzeros count from the first of a panel.
template <class T>
struct FarRows {
  using Element = T;
  template <int kGroup>
  static constexpr int kLeastLeft = 1;  // nonzeros of a row that whole groups must leave
  const T* const* x_rows;               // of each nonzero, and of the next kPointersAhead
  std::int64_t unaligned;  // bytes of such a row if it may begin within a cache line, else 0
  Stream coming_indices;   // what to fetch when a nonzero's turn comes
  Stream coming_values;

  const T* const* from(std::int64_t e) const { return x_rows + e; }

  // Fetches what a later group of nonzeros needs as this one takes its turn.
  template <int kGroup, int kLines, bool kWeighted>
  [[gnu::always_inline]] void prefetch(std::int64_t e) const {
    for (int i = 0; i < kGroup; ++i) {
      const T* x = x_rows[e + i + rows_ahead(kLines)];
      prefetch_lines(x, kLines);
      // In a narrower panel the test would cost more than the line.
      if (kLines >= 4 && unaligned) prefetch_last_line(x, unaligned);
    }
    coming_indices.prefetch(e);
    if constexpr (kWeighted) coming_values.prefetch(e);
  }

  template <int kLines>
  [[gnu::always_inline]] static void prefetch_target(const void* y) {
    prefetch_lines(y, kLines);
    if (kLines >= 4) prefetch_last_line(y, kLines * kCacheLine);
  }

  // The last group is filled up with rows of zeros: a loop over what is left, of a different length
  // in every row, would cost a mispredicted branch more.
  template <int kGroup, int kLines, bool kWeighted, class Row>
  [[gnu::always_inline]] void add_last(std::int64_t e, int left, const Sum<T>* weights, int tail,
                                       Row& sum) const {
    alignas(kCacheLine) static constexpr T kZeros[sizeof(Row) / sizeof(Sum<T>)] = {};
    const T* some[kMostGroup];
    SomeWeights<Sum<T>> some_weights;
    for (int i = 0; i < kMostGroup; i += kLongLanes) {
      store_first(load_vector<LongVector>(x_rows + e + i), i, left, kZeros, some);
    }
    if constexpr (kWeighted) some_weights.take_first(weights, left);
    prefetch<kGroup, kLines, kWeighted>(e);
    add_group<kGroup, kWeighted>(static_cast<const T* const*>(some), some_weights.w, tail, sum);
  }
};

// Rows of X that a cache holds. The processor looks far enough ahead by itself, and everything else
// is only more to do.
template <class T, class Index>
struct NearRows {
  using Element = T;
  template <int kGroup>
  static constexpr int kLeastLeft = kGroup < kMostGroup ? 0 : 1;
  const T* x;
  const Index* indices;
  std::int64_t stride;

  const T* operator[](std::int64_t e) const { return x + indices[e] * stride; }
  NearRows operator+(std::int64_t e) const { return {x, indices + e, stride}; }
  NearRows from(std::int64_t e) const { return *this + e; }

  template <int kGroup, int kLines, bool kWeighted>
  static void prefetch(std::int64_t) {}
  template <int kLines>
  static void prefetch_target(const void*) {}

  // In the largest group a mispredicted branch costs more than some rows of zeros, in smaller ones,
  // of longer rows, it costs less.
  template <int kGroup, int kLines, bool kWeighted, class Row>
  [[gnu::always_inline]] void add_last(std::int64_t e, int left, const Sum<T>* weights, int tail,
                                       Row& sum) const {
    if constexpr (kGroup < kMostGroup) {
      add_first_rows<kGroup, kWeighted>(left, from(e), weights, tail, sum);
    } else {
      alignas(kCacheLine) static constexpr T kZeros[sizeof(Row) / sizeof(Sum<T>)] = {};
      const T* padded[kMostGroup];
      SomeWeights<Sum<T>> some_weights;
      point_at_first(e, left, kZeros, padded);
      if constexpr (kWeighted) some_weights.take_first(weights, left);
      const T* const* some = padded;
      if (left <= kGroup / 2) {
        sum.add(sum_rows<kGroup / 2, kWeighted, Row>(some, some_weights.w, tail));
      } else {
        add_group<kGroup, kWeighted>(some, some_weights.w, tail, sum);
      }
    }
  }

 private:
  void point_at_first(std::int64_t e, int count, const T* other, const T** pointers) const {
    const auto first = reinterpret_cast<std::intptr_t>(x) + LongVector{};
    const auto bytes = stride * static_cast<std::int64_t>(sizeof(T));
    for (int i = 0; i < kMostGroup; i += kLongLanes) {
      const int here = count < i ? 0 : count - i < kLongLanes ? count - i : kLongLanes;
      const LongVector rows = load_longs(indices + e + i, here);
      store_first(first + rows * bytes, i, count, other, pointers);
    }
  }
};

}  // namespace spgnn::SPGNN_ISA
