// Weighted graphs whose edge cut stands in for volume where moves must be cheap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "hypergraph.hpp"
#include "random.hpp"

namespace spgnn::gvb {

struct CutGraph {
  struct Edge {
    Vertex to;
    std::int32_t weight;
  };

  Vertex num_vertices = 0;
  int constraints = 1;
  std::vector<std::int64_t> vertex_weight;  // [vertices × constraints]
  std::vector<std::int64_t> begin{0};       // [vertices + 1]
  std::vector<Edge> edges;                  // both directions, no loops, one per pair

  std::span<const Edge> edges_of(Vertex v) const {
    return {edges.data() + begin[v], edges.data() + begin[v + 1]};
  }
  std::span<const std::int64_t> weight_of(Vertex v) const {
    return {vertex_weight.data() + static_cast<std::int64_t>(v) * constraints,
            static_cast<std::size_t>(constraints)};
  }
  std::vector<std::int64_t> total_weight() const {
    std::vector<std::int64_t> total(constraints, 0);
    for (std::size_t i = 0; i < vertex_weight.size(); ++i) {
      total[i % constraints] += vertex_weight[i];
    }
    return total;
  }
};

// Gathers weighted neighbours of one vertex after another, adding up those that come twice.
class EdgeCollector {
 public:
  EdgeCollector(CutGraph& graph, Vertex num_vertices) : graph_(graph), place_(num_vertices, -1) {}

  void add(Vertex to, std::int64_t weight) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    std::int64_t& place = place_[to];
    if (place < first_) {
      place = static_cast<std::int64_t>(graph_.edges.size());
      graph_.edges.push_back({to, 0});
    }
    std::int32_t& sum = graph_.edges[place].weight;
    sum = static_cast<std::int32_t>(std::min(kMost, sum + weight));
  }

  void close_vertex() {
    first_ = static_cast<std::int64_t>(graph_.edges.size());
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
  CutGraph graph;
  graph.num_vertices = h.num_vertices;
  graph.constraints = h.constraints;
  graph.vertex_weight = h.vertex_weight;
  graph.edges.reserve(h.pins.size());
  EdgeCollector collector(graph, h.num_vertices);
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

struct CutLevel {
  CutGraph coarse;
  std::vector<Vertex> coarse_of;  // vertex of the next finer level -> vertex of `coarse`
};

// Pairs of vertices along heavy edges (Karypis & Kumar 1998), contracted.
class CutMatching {
 public:
  CutMatching(const CutGraph& graph, const std::vector<std::int64_t>& max_weight, Random& random)
      : graph_(graph),
        max_weight_(max_weight),
        random_(random),
        mate_(graph.num_vertices, -1),
        favourite_(graph.num_vertices, -1) {}

  CutLevel operator()() {
    const std::vector<Vertex> order = light_degrees_first();
    for (Vertex u : order) match_along_edge(u);
    match_by_favourite(order);
    return contract();
  }

 private:
  // In random order hubs would take the neighbours that leaves have no alternative to.
  std::vector<Vertex> light_degrees_first() {
    constexpr std::int64_t kClasses = 64;
    std::vector<Vertex> shuffled(graph_.num_vertices), order(graph_.num_vertices);
    for (Vertex v = 0; v < graph_.num_vertices; ++v) shuffled[v] = v;
    random_.shuffle(shuffled);
    std::vector<std::int64_t> next(kClasses + 1, 0);
    const auto degree_class = [&](Vertex v) {
      return std::min<std::int64_t>(kClasses - 1, graph_.begin[v + 1] - graph_.begin[v]);
    };
    for (Vertex v : shuffled) ++next[degree_class(v) + 1];
    for (std::int64_t d = 0; d < kClasses; ++d) next[d + 1] += next[d];
    for (Vertex v : shuffled) order[next[degree_class(v)]++] = v;
    return order;
  }

  bool fit(Vertex u, Vertex v) const {
    const auto one = graph_.weight_of(u), other = graph_.weight_of(v);
    for (int c = 0; c < graph_.constraints; ++c) {
      if (one[c] + other[c] > max_weight_[c]) return false;
    }
    return true;
  }

  void match_along_edge(Vertex u) {
    if (mate_[u] >= 0) return;
    Vertex best = -1;
    std::int32_t best_weight = 0, heaviest = 0;
    for (const auto [v, weight] : graph_.edges_of(u)) {
      if (weight > heaviest) {
        heaviest = weight;
        favourite_[u] = v;
      }
      if (weight > best_weight && mate_[v] < 0 && fit(u, v)) {
        best = v;
        best_weight = weight;
      }
    }
    if (best >= 0) join(u, best);
  }

  // Leaves of one hub, and vertices without edges, are joined to each other; else they would stop
  // the coarsening.
  void match_by_favourite(const std::vector<Vertex>& order) {
    std::vector<Vertex> waiting(static_cast<std::size_t>(graph_.num_vertices) + 1, -1);
    for (Vertex u : order) {
      if (mate_[u] >= 0) continue;
      Vertex& other = waiting[favourite_[u] < 0 ? graph_.num_vertices : favourite_[u]];
      if (other >= 0 && fit(u, other)) {
        join(u, other);
        other = -1;
      } else {
        other = u;
      }
    }
  }

  void join(Vertex u, Vertex v) {
    mate_[u] = v;
    mate_[v] = u;
  }

  CutLevel contract() const {
    CutLevel level;
    level.coarse_of.assign(graph_.num_vertices, -1);
    std::vector<std::pair<Vertex, Vertex>> members;
    for (Vertex u = 0; u < graph_.num_vertices; ++u) {
      if (level.coarse_of[u] >= 0) continue;
      level.coarse_of[u] = static_cast<Vertex>(members.size());
      if (mate_[u] >= 0) level.coarse_of[mate_[u]] = level.coarse_of[u];
      members.push_back({u, mate_[u]});
    }
    CutGraph& coarse = level.coarse;
    coarse.num_vertices = static_cast<Vertex>(members.size());
    coarse.constraints = graph_.constraints;
    coarse.edges.reserve(graph_.edges.size() / 2);
    EdgeCollector collector(coarse, coarse.num_vertices);
    for (Vertex c = 0; c < coarse.num_vertices; ++c) {
      const auto weight = graph_.weight_of(members[c].first);
      coarse.vertex_weight.insert(coarse.vertex_weight.end(), weight.begin(), weight.end());
      for (Vertex v : {members[c].first, members[c].second}) {
        if (v < 0) continue;
        for (const auto [to, w] : graph_.edges_of(v)) {
          if (level.coarse_of[to] != c) collector.add(level.coarse_of[to], w);
        }
      }
      if (members[c].second >= 0) {
        const auto other = graph_.weight_of(members[c].second);
        auto* sum = coarse.vertex_weight.data() + coarse.vertex_weight.size() - other.size();
        for (std::size_t i = 0; i < other.size(); ++i) sum[i] += other[i];
      }
      collector.close_vertex();
    }
    return level;
  }

  const CutGraph& graph_;
  const std::vector<std::int64_t>& max_weight_;
  Random& random_;
  std::vector<Vertex> mate_, favourite_;
};

// Coarser and coarser graphs until at most `stop_at` vertices are left or nothing shrinks. A graph
// that has nearly as many edges as the one it was made from is not kept: where edges are spread at
// random, ten such levels would take ten times the memory of the graph.
inline std::vector<CutLevel> coarsen(const CutGraph& graph, Vertex stop_at,
                                     const std::vector<std::int64_t>& max_weight, Random& random) {
  constexpr double kStalled = 0.95, kKept = 0.75;
  std::vector<CutLevel> levels;
  const CutGraph* finest = &graph;
  while (finest->num_vertices > stop_at) {
    CutLevel level = CutMatching(*finest, max_weight, random)();
    if (level.coarse.num_vertices > kStalled * finest->num_vertices) break;
    const CutGraph& kept = levels.size() < 2 ? graph : levels[levels.size() - 2].coarse;
    const auto most_edges =
        static_cast<std::size_t>(kKept * static_cast<double>(kept.edges.size()));
    if (!levels.empty() && levels.back().coarse.edges.size() > most_edges) {
      for (Vertex& v : levels.back().coarse_of) v = level.coarse_of[v];
      levels.back().coarse = std::move(level.coarse);
    } else {
      levels.push_back(std::move(level));
    }
    finest = &levels.back().coarse;
  }
  return levels;
}

}  // namespace spgnn::gvb
