// Running triples of rows: merged, stored, finished.
#pragma once

#include "attention_types.hpp"
#include "segments_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class S>
inline S* at_row(S* array, std::int64_t row, std::int64_t width) {
  return array ? array + row * width : nullptr;
}

template <class S>
inline Triples<S> row_of(const Triples<S>& a, std::int64_t row, std::int64_t heads,
                         std::int64_t columns) {
  return {a.m + row * heads, a.n + row * heads, a.o + row * columns, at_row(a.p, row, columns),
          at_row(a.pi, row, heads)};
}

template <class S>
inline S exp_difference(S x, S of) {
  return x == -static_cast<S>(__builtin_inf()) ? S{0} : exp_of_negative(x - of);
}

// Merges a row's triple into another.
template <class S>
void merge_triple(const Triples<S>& into, const Triples<S>& other, std::int64_t heads,
                  std::int64_t width) {
  for (std::int64_t h = 0; h < heads; ++h) {
    const S m = into.m[h] > other.m[h] ? into.m[h] : other.m[h];
    const S mine = exp_difference(into.m[h], m), its = exp_difference(other.m[h], m);
    const bool both = into.p && other.p;
    into.m[h] = m;
    into.n[h] = into.n[h] * mine + other.n[h] * its;
    if (into.p) into.pi[h] = into.pi[h] * mine + (both ? other.pi[h] * its : S{0});
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c) {
      into.o[c] = into.o[c] * mine + other.o[c] * its;
    }
    if (!into.p) continue;
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c) {
      into.p[c] = into.p[c] * mine + (both ? other.p[c] * its : S{0});
    }
  }
}

template <class T>
void end_triple(const AttentionTarget<T>& target, std::int64_t row, const Triples<Sum<T>>& triple,
                std::int64_t heads, std::int64_t width) {
  using S = Sum<T>;
  const std::int64_t columns = heads * width;
  if (target.ending == Ending::kMerged) {
    merge_triple(row_of(target.triples, row, heads, columns), triple, heads, width);
    return;
  }
  if (target.ending == Ending::kStored) {
    const auto stored = row_of(target.triples, row, heads, columns);
    std::memcpy(stored.m, triple.m, heads * sizeof(S));
    std::memcpy(stored.n, triple.n, heads * sizeof(S));
    std::memcpy(stored.o, triple.o, columns * sizeof(S));
    if (!stored.p) return;
    std::memcpy(stored.p, triple.p, columns * sizeof(S));
    std::memcpy(stored.pi, triple.pi, heads * sizeof(S));
    return;
  }
  T* out = target.out + row * columns;
  S* p = at_row(target.triples.p, row, columns);
  for (std::int64_t h = 0; h < heads; ++h) {
    const S n = triple.n[h], factor = n == 0 ? S{0} : 1 / n;
    target.lse[row * heads + h] = triple.m[h] + static_cast<S>(__builtin_log(n));
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
      out[c] = narrow<T>(triple.o[c] * factor);
    if (!p) continue;
    target.triples.pi[row * heads + h] = triple.pi[h] * factor;
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c) p[c] = triple.p[c] * factor;
  }
}

}  // namespace spgnn::SPGNN_ISA
