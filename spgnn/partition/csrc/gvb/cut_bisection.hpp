// Two-way partitions of a graph: the cost of cut edges, a multilevel bisection for it, and the
// split into k parts by one bisection after another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
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
  std::vector<std::int64_t> heaviest = graph.total_weight();
  for (std::int64_t& weight : heaviest) weight = weight * 3 / 2 / kCoarsest + 1;
  const std::vector<CutLevel> levels = coarsen(graph, kCoarsest, heaviest, random);
  return bisect_levels<EdgeCut>(graph, levels, bounds, target, options, random);
}

// Splits the vertices of a graph into parts by bisections, each multilevel.
class RecursiveBisection {
 public:
  // max_weight: bound of a part per constraint.
  RecursiveBisection(std::vector<std::int64_t> max_weight, BisectionOptions options)
      : max_weight_(std::move(max_weight)), options_(options) {}

  std::vector<Part> operator()(const CutGraph& graph, Part parts, const Random& random) {
    labels_.assign(graph.num_vertices, 0);
    std::vector<Vertex> all(graph.num_vertices);
    std::iota(all.begin(), all.end(), 0);
    split(graph, all, 0, parts, random);
    return std::move(labels_);
  }

 private:
  // Labels `vertices` (vertex i of the graph is vertices[i] of the whole) with
  // [first, first + parts).
  void split(const CutGraph& graph, const std::vector<Vertex>& vertices, Part first, Part parts,
             const Random& random) {
    if (parts == 1 || graph.num_vertices == 0) {
      for (Vertex v : vertices) labels_[v] = first;
      return;
    }
    const Part left = parts / 2;
    Random own = random.split(static_cast<std::uint64_t>(first) << 20 | parts);
    const auto [bounds, target] = bounds_of_sides(graph.total_weight(), max_weight_, left, parts);
    const Sides side = bisect(graph, bounds, target, options_, own);
    for (int s = 0; s < 2; ++s) {
      std::vector<Vertex> members;
      const CutGraph half = induced(graph, side, s, vertices, members);
      split(half, members, s == 0 ? first : first + left, s == 0 ? left : parts - left, random);
    }
  }

  // The subgraph of one side.
  static CutGraph induced(const CutGraph& graph, const Sides& side, int s,
                          const std::vector<Vertex>& vertices, std::vector<Vertex>& members) {
    CutGraph half;
    half.constraints = graph.constraints;
    std::vector<Vertex> id(graph.num_vertices, -1);
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      if (side[v] == s) id[v] = half.num_vertices++;
    }
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      if (side[v] != s) continue;
      members.push_back(vertices[v]);
      const auto weight = graph.weight_of(v);
      half.vertex_weight.insert(half.vertex_weight.end(), weight.begin(), weight.end());
      for (const auto [u, w] : graph.edges_of(v)) {
        if (side[u] == s) half.edges.push_back({id[u], w});
      }
      half.begin.push_back(static_cast<std::int64_t>(half.edges.size()));
    }
    return half;
  }

  std::vector<std::int64_t> max_weight_;
  BisectionOptions options_;
  std::vector<Part> labels_;
};

}  // namespace spgnn::gvb
