// What other partitioners want of an adjacency: its undirected graph, its column-net hypergraph.
#pragma once

#include <numeric>
#include <vector>

#include "adjacency.hpp"

namespace spgnn {

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

}  // namespace spgnn
