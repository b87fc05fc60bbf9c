// How the inner loops of SpMM come by rows of X: fetched ahead from afar, or read where they are.
#pragma once

#include <cstdint>

#include "packed_row.hpp"
#include "prefetch.hpp"

namespace spgnn::SPGNN_ISA {

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
