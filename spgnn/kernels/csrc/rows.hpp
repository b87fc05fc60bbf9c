// Gather, scatter-add and dropout of listed rows on threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Whether every number of the list is in [0, limit).
template <class Index>
bool in_range(const Index* rows, std::int64_t count, std::int64_t limit) {
  bool outside = false;
  for (std::int64_t i = 0; i < count; ++i) {
    outside |=
        static_cast<std::uint64_t>(std::int64_t{rows[i]}) >= static_cast<std::uint64_t>(limit);
  }
  return !outside;
}

// The finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), for the seed of a mask.
inline std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Calls work(span) for spans of about 64 KiB of rows each.
template <class T, class Index, class Work>
void for_each_span(const RowOperands<T, Index>& a, int threads, const Work& work) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, a.columns * sizeof(T));
  const std::int64_t rows = std::max<std::int64_t>(16, (std::int64_t{64} << 10) / row_bytes);
  for_each_task((a.count + rows - 1) / rows, threads, [&](std::int64_t task) {
    work(Span{task * rows, std::min((task + 1) * rows, a.count)});
  });
}

template <class T, class Index>
void gather_rows(const KernelTable& table, const RowOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<RowKernels<T, Index>>(table.rows);
  for_each_span(a, threads, [&](Span listed) { kernels.gather(a, listed); });
}

// Every thread walks the whole list and adds the rows it owns, so each row of Y receives its
// contributions in the order of the list, whatever the number of threads.
template <class T, class Index>
void scatter_add_rows(const KernelTable& table, const RowOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<RowKernels<T, Index>>(table.rows);
  const bool small = a.count * a.columns < 16384;
  const int owners = small ? 1 : std::max(1, threads);
  for_each_task(owners, threads, [&](std::int64_t owner) {
    kernels.scatter_add(a, static_cast<std::uint32_t>(owner), static_cast<std::uint32_t>(owners));
  });
}

template <class T>
void dropout_rows(const KernelTable& table, const RowOperands<T, std::int64_t>& a,
                  const DropoutRule& rule, int threads) {
  const auto& kernel = std::get<DropoutKernel<T>>(table.dropout);
  for_each_span(a, threads, [&](Span listed) { kernel(a, rule, listed); });
}

}  // namespace spgnn
