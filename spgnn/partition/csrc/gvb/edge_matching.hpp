// Pairs of vertices along heavy edges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "clusters.hpp"
#include "cut_graph.hpp"
#include "random.hpp"

namespace spgnn::gvb {

// Every vertex is matched with the free neighbour at its heaviest edge (Karypis & Kumar 1998).
class EdgeMatching {
 public:
  EdgeMatching(const CutGraph& graph, const CoarsenOptions& options, Random& random)
      : graph_(graph),
        random_(random),
        pairs_(graph, options),
        favourite_(graph.num_vertices, -1) {}

  std::pair<std::vector<Vertex>, Vertex> operator()() {
    const std::vector<Vertex> order = light_degrees_first();
    for (Vertex u : order) {
      if (pairs_.alone(u)) match(u);
    }
    pairs_.pair_by_favourite(order, [&](Vertex u) { return favourite_[u]; });
    return std::move(pairs_).numbered();
  }

 private:
  // In random order hubs would take the neighbours that leaves have no alternative to.
  std::vector<Vertex> light_degrees_first() {
    constexpr std::int64_t kClasses = 64;
    std::vector<Vertex> shuffled(graph_.num_vertices), order(graph_.num_vertices);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    random_.shuffle(shuffled);
    std::vector<std::int64_t> next(kClasses + 1, 0);
    const auto degree_class = [&](Vertex v) {
      return std::min(kClasses - 1, std::ssize(graph_.edges_of(v)));
    };
    for (Vertex v : shuffled) ++next[degree_class(v) + 1];
    for (std::int64_t d = 0; d < kClasses; ++d) next[d + 1] += next[d];
    for (Vertex v : shuffled) order[next[degree_class(v)]++] = v;
    return order;
  }

  void match(Vertex u) {
    Vertex best = -1;
    std::int32_t best_weight = 0, heaviest = 0;
    for (const auto [v, weight] : graph_.edges_of(u)) {
      if (weight > heaviest) {
        heaviest = weight;
        favourite_[u] = v;
      }
      if (weight > best_weight && pairs_.alone(v) && pairs_.fits(u, v)) {
        best = v;
        best_weight = weight;
      }
    }
    if (best >= 0) pairs_.join(u, best);
  }

  const CutGraph& graph_;
  Random& random_;
  Clusters pairs_;
  std::vector<Vertex> favourite_;
};

// The pair, or single vertex, that each vertex is in, numbered from 0; and how many there are.
inline std::pair<std::vector<Vertex>, Vertex> cluster(const CutGraph& graph,
                                                      const CoarsenOptions& options,
                                                      Random& random) {
  return EdgeMatching(graph, options, random)();
}

}  // namespace spgnn::gvb
