// The square sparse pattern that is partitioned: row v needs the rows of H named by its columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace spgnn {

struct Pattern {
  std::span<const std::int64_t> indptr;   // vertices + 1
  std::span<const std::int32_t> indices;  // each in [0, vertices)

  std::int64_t vertices() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  std::int64_t edges() const { return static_cast<std::int64_t>(indices.size()); }
};

// The pattern came from outside and is wrong; Python sees spgnn.InputError.
struct BadPattern : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A memory-mapped pattern is not read before it is used, so a broken file shows only here.
inline void require_vertex(std::int32_t column, std::int64_t vertices, std::int64_t row) {
  if (static_cast<std::uint32_t>(column) >= static_cast<std::uint64_t>(vertices)) [[unlikely]] {
    throw BadPattern("row " + std::to_string(row) + " has column index " + std::to_string(column) +
                     ", outside [0, " + std::to_string(vertices) + ")");
  }
}

// Rows cut into chunks of about equal work (nonzeros plus rows), so that threads end together.
class RowChunks {
 public:
  RowChunks(const Pattern& pattern, std::int64_t work_per_chunk)
      : pattern_(pattern),
        work_per_chunk_(work_per_chunk),
        count_((pattern.edges() + pattern.vertices() + work_per_chunk - 1) / work_per_chunk) {}

  std::int64_t count() const { return count_; }
  std::int64_t first(std::int64_t chunk) const {
    // The work before row v is indptr[v] + v, which rises strictly with v.
    std::int64_t low = 0, high = pattern_.vertices();
    std::int64_t target = chunk * work_per_chunk_;
    while (low < high) {
      std::int64_t middle = low + (high - low) / 2;
      if (pattern_.indptr[middle] + middle < target) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  std::int64_t last(std::int64_t chunk) const {
    return chunk + 1 == count_ ? pattern_.vertices() : first(chunk + 1);
  }

 private:
  Pattern pattern_;
  std::int64_t work_per_chunk_;
  std::int64_t count_;
};

}  // namespace spgnn
