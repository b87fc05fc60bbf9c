// The square sparse matrix that is partitioned, without values: row v needs the rows of H named by
// its columns; what other partitioners want of it, and groups of its vertices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "inlined.hpp"
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
    return first_where(0, adjacency_.vertices(), [&](std::int64_t v) {
      return adjacency_.indptr[v] + v >= chunk * work_per_chunk_;
    });
  }
  std::int64_t last(std::int64_t chunk) const {
    return chunk + 1 == count_ ? adjacency_.vertices() : first(chunk + 1);
  }

 private:
  Adjacency adjacency_;
  std::int64_t work_per_chunk_;
  std::int64_t count_;
};

// What other partitioners want: its undirected graph, its column-net hypergraph.

struct Graph {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> indices;
};

// The transposed adjacency; rows come out sorted if duplicates are.
inline Graph transpose(const Adjacency& adjacency) {
  std::int64_t n = adjacency.vertices();
  Graph t{std::vector<std::int64_t>(n + 1), std::vector<std::int32_t>(adjacency.edges())};
  for (std::int64_t v = 0; v < n; ++v) {
    for (std::int64_t e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
      require_vertex(adjacency.indices[e], n, v);
      ++t.indptr[adjacency.indices[e] + 1];
    }
  }
  std::partial_sum(t.indptr.begin(), t.indptr.end(), t.indptr.begin());
  std::vector<std::int64_t> next(t.indptr.begin(), t.indptr.end() - 1);
  for (std::int64_t v = 0; v < n; ++v) {
    for (std::int64_t e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
      t.indices[next[adjacency.indices[e]]++] = static_cast<std::int32_t>(v);
    }
  }
  return t;
}

// Net v of the column-net hypergraph: v itself and all rows that need it, sorted, each once.
inline Graph column_nets(const Adjacency& adjacency) {
  Graph t = transpose(adjacency);
  std::int64_t n = adjacency.vertices();
  Graph nets{{0}, {}};
  nets.indptr.reserve(n + 1);
  nets.indices.reserve(adjacency.edges() + n);
  for (std::int64_t v = 0; v < n; ++v) {
    std::int64_t begin = nets.indptr.back();
    nets.indices.push_back(static_cast<std::int32_t>(v));
    nets.indices.insert(nets.indices.end(), t.indices.begin() + t.indptr[v],
                        t.indices.begin() + t.indptr[v + 1]);
    std::sort(nets.indices.begin() + begin, nets.indices.end());
    nets.indices.erase(std::unique(nets.indices.begin() + begin, nets.indices.end()),
                       nets.indices.end());
    nets.indptr.push_back(static_cast<std::int64_t>(nets.indices.size()));
  }
  return nets;
}

// Adjacency of A + Aᵀ without diagonal and duplicates; rows sorted.
inline Graph symmetrize(const Adjacency& adjacency) {
  Graph t = transpose(adjacency);
  std::int64_t n = adjacency.vertices();
  Graph both{{0}, {}};
  both.indptr.reserve(n + 1);
  both.indices.reserve(adjacency.edges());
  for (std::int64_t v = 0; v < n; ++v) {
    std::int64_t begin = both.indptr.back();
    auto append = [&](auto first, auto last) {
      both.indices.insert(both.indices.end(), first, last);
    };
    append(adjacency.indices.begin() + adjacency.indptr[v],
           adjacency.indices.begin() + adjacency.indptr[v + 1]);
    append(t.indices.begin() + t.indptr[v], t.indices.begin() + t.indptr[v + 1]);
    std::sort(both.indices.begin() + begin, both.indices.end());
    auto end = std::unique(both.indices.begin() + begin, both.indices.end());
    end = std::remove(both.indices.begin() + begin, end, static_cast<std::int32_t>(v));
    both.indices.erase(end, both.indices.end());
    both.indptr.push_back(static_cast<std::int64_t>(both.indices.size()));
  }
  return both;
}

// Renames labels, each in [0, size), to 0, 1, … in order of first appearance; returns how many
// there are.
template <class Labels>
std::int64_t number_in_order(Labels& labels) {
  Labels name(labels.size());  // + 1, so that 0 means none
  std::int32_t count = 0;
  for (std::int32_t& label : labels) {
    if (name[label] == 0) name[label] = ++count;
    label = name[label] - 1;
  }
  return count;
}

// The vertices of each of `count` groups, in rising order.
class Members {
 public:
  Members(std::span<const std::int32_t> group_of, std::int64_t count)
      : begin_(count + 1, 0), vertices_(group_of.size()) {
    for (std::int32_t group : group_of) ++begin_[group + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t v = 0; v < group_of.size(); ++v) {
      vertices_[next[group_of[v]]++] = static_cast<std::int32_t>(v);
    }
  }

  std::span<const std::int32_t> of(std::int64_t group) const {
    return {vertices_.data() + begin_[group], vertices_.data() + begin_[group + 1]};
  }

 private:
  std::vector<std::int64_t> begin_;
  std::vector<std::int32_t> vertices_;
};

}  // namespace spgnn
