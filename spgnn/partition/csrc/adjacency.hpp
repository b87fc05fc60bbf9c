// The square sparse matrix that is partitioned, without values: row v needs the rows of H named by
// its columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "input_error.hpp"

namespace spgnn {

struct Adjacency {
  std::span<const std::int64_t> indptr;   // vertices + 1
  std::span<const std::int32_t> indices;  // each in [0, vertices)

  std::int64_t vertices() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  std::int64_t edges() const { return static_cast<std::int64_t>(indices.size()); }
  std::span<const std::int32_t> row(std::int64_t v) const {
    return indices.subspan(indptr[v], indptr[v + 1] - indptr[v]);
  }

  // Whether the columns of every row rise: no duplicates.
  bool canonical() const {
    for (std::int64_t v = 0; v < vertices(); ++v) {
      const auto columns = row(v);
      if (std::adjacent_find(columns.begin(), columns.end(), std::greater_equal<>()) !=
          columns.end()) {
        return false;
      }
    }
    return true;
  }
};

// A memory-mapped matrix is not read before it is used, so a broken file shows only here.
inline void require_vertex(std::int32_t column, std::int64_t vertices, std::int64_t row) {
  if (static_cast<std::uint32_t>(column) >= static_cast<std::uint64_t>(vertices)) [[unlikely]] {
    throw InputError("row " + std::to_string(row) + " has column index " + std::to_string(column) +
                     ", outside [0, " + std::to_string(vertices) + ")");
  }
}

// Rows cut into chunks of about equal work (nonzeros plus rows), so that threads end together.
class RowChunks {
 public:
  RowChunks(const Adjacency& adjacency, std::int64_t work_per_chunk)
      : adjacency_(adjacency),
        work_per_chunk_(work_per_chunk),
        count_((adjacency.edges() + adjacency.vertices() + work_per_chunk - 1) / work_per_chunk) {}

  std::int64_t count() const { return count_; }
  std::int64_t first(std::int64_t chunk) const {
    // The work before row v is indptr[v] + v, which rises strictly with v.
    std::int64_t low = 0, high = adjacency_.vertices();
    std::int64_t target = chunk * work_per_chunk_;
    while (low < high) {
      std::int64_t middle = low + (high - low) / 2;
      if (adjacency_.indptr[middle] + middle < target) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  std::int64_t last(std::int64_t chunk) const {
    return chunk + 1 == count_ ? adjacency_.vertices() : first(chunk + 1);
  }

 private:
  Adjacency adjacency_;
  std::int64_t work_per_chunk_;
  std::int64_t count_;
};

}  // namespace spgnn
