// Two-way partitions of a graph: the cost of cut edges, and a multilevel bisection for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cut_graph.hpp"
#include "random.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

// The weight of the edges between the sides, as TwoWayRefiner wants it.
class EdgeCut {
 public:
  using Graph = CutGraph;
  static constexpr bool kStartFits = true;

  EdgeCut(const CutGraph& graph, const Sides& side) : graph_(graph), side_(side) {}

  std::int64_t measure(std::vector<std::int64_t>& gain) const {
    std::int64_t twice = 0;  // every edge is seen from both ends
    for (Vertex v = 0; v < graph_.num_vertices; ++v) {
      for (const auto [u, w] : graph_.edges_of(v)) {
        gain[v] += side_[u] == side_[v] ? -w : w;
        if (side_[u] != side_[v]) twice += w;
      }
    }
    return twice / 2;
  }

  bool on_boundary(Vertex v) const {
    const auto edges = graph_.edges_of(v);
    const auto crosses = [&](const CutGraph::Edge& edge) { return side_[edge.to] != side_[v]; };
    return std::any_of(edges.begin(), edges.end(), crosses);
  }

  template <class Change>
  void move(Vertex v, int to, const Change& change) const {
    for (const auto [u, w] : graph_.edges_of(v)) {
      change(u, side_[u] == to ? -2 * std::int64_t{w} : 2 * std::int64_t{w});
    }
  }

 private:
  const CutGraph& graph_;
  const Sides& side_;
};

// Splits a graph in two sides of at most `bounds`, side 0 aiming at weight `target`.
inline Sides bisect(const CutGraph& graph, const Bounds& bounds,
                    const std::vector<std::int64_t>& target, const BisectionOptions& options,
                    Random& random) {
  constexpr Vertex kCoarsest = 80;
  CoarsenOptions coarsening;
  for (std::int64_t total : graph.total_weight()) {
    coarsening.max_weight.push_back(total * 3 / 2 / kCoarsest + 1);
  }
  return bisect_levels<EdgeCut>(graph, coarsening, kCoarsest, bounds, target, options, random);
}

// The subgraph of one side; vertices keep their order.
inline CutGraph induced(const CutGraph& graph, const Sides& side, int s) {
  std::vector<Vertex> id;
  CutGraph half{vertices_of_side(graph, side, s, id)};
  for (Vertex v = 0; v < graph.num_vertices; ++v) {
    if (side[v] != s) continue;
    for (const auto [u, w] : graph.edges_of(v)) {
      if (side[u] == s) half.edges.push_back({id[u], w});
    }
    half.begin.push_back(std::ssize(half.edges));
  }
  return half;
}

}  // namespace spgnn::gvb
