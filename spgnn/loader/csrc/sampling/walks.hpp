// Vertices and edges of random walks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "buffer.hpp"
#include "hash.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// Walks [starts, length + 1] that take a uniform entry of a vertex's row, and stay where it has
// none. Walk i draws by itself, whoever else starts where it does.
template <class Index>
Buffer<std::int64_t> random_walks(const Rows<Index>& rows, std::span<const std::int64_t> starts,
                                  std::int64_t length, const Draw& draw, int threads) {
  constexpr std::int64_t kPerTask = 64;
  const auto count = static_cast<std::int64_t>(starts.size());
  Buffer<std::int64_t> walks(count * (length + 1));
  for_each_task((count + kPerTask - 1) / kPerTask, threads, [&](std::int64_t task) {
    const std::int64_t first = task * kPerTask, end = std::min(first + kPerTask, count);
    for (std::int64_t i = first; i < end; ++i) walks[i * (length + 1)] = starts[i];
    // Step by step for all of them, so that they wait for memory at the same time.
    for (std::int64_t step = 0; step < length; ++step) {
      const HopDraws draws(draw, step);
      for (std::int64_t i = first; i < end; ++i) {
        __builtin_prefetch(rows.indptr + walks[i * (length + 1) + step]);
      }
      for (std::int64_t i = first; i < end; ++i) {
        const std::int64_t at = walks[i * (length + 1) + step];
        const std::int64_t from = rows.indptr[at], degree = rows.indptr[at + 1] - from;
        const std::uint64_t random = draws.of(rows.id(at), i)[0];
        walks[i * (length + 1) + step + 1] =
            degree ? static_cast<std::int64_t>(rows.indices[from + below(random, degree)]) : at;
      }
    }
  });
  return walks;
}

}  // namespace spgnn
