// Weighted graphs whose edge cut stands in for volume where moves must be cheap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hypergraph.hpp"

namespace spgnn::gvb {

struct CutGraph : WeightedVertices {
  struct Edge {
    Vertex to;
    std::int32_t weight;
  };

  std::vector<std::int64_t> begin{0};  // [vertices + 1]
  std::vector<Edge> edges{};           // both directions, no loops, one per pair

  std::span<const Edge> edges_of(Vertex v) const {
    return {edges.data() + begin[v], edges.data() + begin[v + 1]};
  }
};

// Gathers weighted neighbours of one vertex after another, adding up those that come twice.
class EdgeCollector {
 public:
  explicit EdgeCollector(CutGraph& graph) : graph_(graph), place_(graph.num_vertices, -1) {}

  void add(Vertex to, std::int64_t weight) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    std::int64_t& place = place_[to];
    if (place < first_) {
      place = std::ssize(graph_.edges);
      graph_.edges.push_back({to, 0});
    }
    std::int32_t& sum = graph_.edges[place].weight;
    sum = static_cast<std::int32_t>(std::min(kMost, sum + weight));
  }

  void close_vertex() {
    first_ = std::ssize(graph_.edges);
    graph_.begin.push_back(first_);
  }

 private:
  CutGraph& graph_;
  std::vector<std::int64_t> place_;
  std::int64_t first_ = 0;  // of the vertex at hand
};

// A star per net, from its root to its other pins. Cutting one edge of a net of d + 1 pins costs a
// row only if no other pin lies there, which for many pins is unlikely: with k parts an edge
// weighs k / (k + d).
inline CutGraph star_graph(const Hypergraph& h, Part parts) {
  constexpr double kScale = 1024;
  const auto weight_in = [&](Net e) {
    const double share = parts / static_cast<double>(parts + h.size(e) - 1);
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(kScale * h.net_weight[e] * share));
  };
  CutGraph graph{{h}};
  graph.edges.reserve(h.pins.size());
  EdgeCollector collector(graph);
  for (Vertex v = 0; v < h.num_vertices; ++v) {
    for (Net e : h.nets_of(v)) {
      const std::int64_t weight = weight_in(e);
      if (h.root(e) != v) {
        collector.add(h.root(e), weight);
      } else {
        for (Vertex pin : h.pins_of(e).subspan(1)) collector.add(pin, weight);
      }
    }
    collector.close_vertex();
  }
  return graph;
}

}  // namespace spgnn::gvb
