// The order in which the samplers read a row: by time, then by original id.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <span>

#include "alias.hpp"
#include "buffer.hpp"

namespace spgnn {

// Entries of each row in order; nothing if they are. `ids` (of columns) and `times` (of entries)
// may be null.
template <class Index>
Buffer<std::int64_t> row_order(std::span<const std::int64_t> indptr, const Index* indices,
                               const std::int64_t* ids, const std::int64_t* times, int threads) {
  const auto before = [=](std::int64_t a, std::int64_t b) {
    if (times && times[a] != times[b]) return times[a] < times[b];
    const std::int64_t left = ids ? ids[indices[a]] : static_cast<std::int64_t>(indices[a]);
    const std::int64_t right = ids ? ids[indices[b]] : static_cast<std::int64_t>(indices[b]);
    return left < right;
  };
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  std::atomic<bool> ordered{true};
  for_each_row(indptr.data(), rows, threads,
               [&](std::int64_t, std::int64_t start, std::int64_t degree) {
                 for (std::int64_t e = start + 1; e < start + degree; ++e) {
                   if (before(e, e - 1)) ordered.store(false, std::memory_order_relaxed);
                 }
               });
  if (ordered) return {};
  Buffer<std::int64_t> order(indptr[rows]);
  for_each_row(indptr.data(), rows, threads,
               [&](std::int64_t, std::int64_t start, std::int64_t degree) {
                 std::int64_t* row = order.data() + start;
                 std::iota(row, row + degree, start);
                 std::sort(row, row + degree, [&](std::int64_t a, std::int64_t b) {
                   return before(a, b) || (!before(b, a) && a < b);
                 });
               });
  return order;
}

}  // namespace spgnn
