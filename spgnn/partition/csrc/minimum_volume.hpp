// Counts the rows that a partition moves when every block takes a minimum vertex cover.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "block_covers.hpp"
#include "volume.hpp"

namespace spgnn {

inline CoverVolume count_minimum_covers(const Adjacency& adjacency, Labels labels,
                                        std::int64_t parts, int threads, const Tick& tick) {
  const int used = static_cast<int>(std::clamp<std::int64_t>(threads, 1, parts));
  const Members members(labels, parts);
  struct Worker {
    BlockCovers covers;
    CoverVolume volume;
  };
  std::vector<Worker> workers;
  for (int thread = 0; thread < used; ++thread) {
    workers.push_back({BlockCovers(adjacency, labels, parts, members, false), CoverVolume(parts)});
  }
  parallel_chunks(
      parts, used,
      [&](std::int64_t p, int thread) {
        auto& [covers, volume] = workers[thread];
        covers.of_rows(p, [&](std::int64_t q, std::int64_t rows) { volume.add(q, p, rows); });
      },
      tick);
  CoverVolume total = std::move(workers[0].volume);
  for (int thread = 1; thread < used; ++thread) total.add(workers[thread].volume);
  return total;
}

}  // namespace spgnn
