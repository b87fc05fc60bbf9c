// Communities of a graph: groups with more edge weight inside than chance would put there.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "contract.hpp"
#include "random.hpp"

namespace spgnn::gvb {

// Greedy modularity (Blondel et al. 2008, "Louvain"): each vertex joins the neighbouring community
// that gains most; communities become the vertices of a coarser graph, until hardly any join.
class Communities {
 public:
  explicit Communities(Random& random) : random_(random) {}

  // The community of each vertex, numbered from 0.
  std::vector<Vertex> operator()(const CutGraph& graph) {
    volume_.assign(graph.num_vertices, 0.0);
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      for (const auto [u, w] : graph.edges_of(v)) volume_[v] += w;
    }
    total_ = std::accumulate(volume_.begin(), volume_.end(), 0.0);
    std::vector<Vertex> community(graph.num_vertices);
    std::iota(community.begin(), community.end(), 0);
    CutGraph coarse;
    const CutGraph* finest = &graph;
    while (true) {
      join(*finest);
      const Vertex count = number_communities();
      for (Vertex& c : community) c = community_[c];
      if (count > kStalled * finest->num_vertices) return community;
      coarse = contract(*finest, community_, count);
      finest = &coarse;
    }
  }

 private:
  static constexpr int kRounds = 6;
  static constexpr double kWorthARound = 0.01;  // share of vertices that moved
  static constexpr double kStalled = 0.95;

  // Lets the vertices of one level choose, starting from a community for each.
  void join(const CutGraph& graph) {
    const Vertex n = graph.num_vertices;
    community_.resize(n);
    std::iota(community_.begin(), community_.end(), 0);
    std::vector<double> sum = volume_;
    weight_to_.assign(n, 0.0);
    std::vector<Vertex> order = community_;
    random_.shuffle(order);
    for (int round = 0; round < kRounds; ++round) {
      Vertex moved = 0;
      for (Vertex v : order) {
        const Vertex own = community_[v];
        sum[own] -= volume_[v];
        community_[v] = best_for(graph, v, sum);
        sum[community_[v]] += volume_[v];
        moved += community_[v] != own;
      }
      if (moved < kWorthARound * n) return;
    }
  }

  // sum: the volumes of the communities without v.
  Vertex best_for(const CutGraph& graph, Vertex v, const std::vector<double>& sum) {
    near_.clear();
    for (const auto [u, w] : graph.edges_of(v)) {
      const Vertex c = community_[u];
      if (weight_to_[c] == 0) near_.push_back(c);
      weight_to_[c] += w;
    }
    const auto gain = [&](Vertex c) { return weight_to_[c] - volume_[v] * sum[c] / total_; };
    Vertex best = community_[v];
    double best_gain = gain(best);
    for (Vertex c : near_) {
      if (gain(c) <= best_gain) continue;
      best_gain = gain(c);
      best = c;
    }
    for (Vertex c : near_) weight_to_[c] = 0;
    return best;
  }

  Vertex number_communities() {
    const auto count = static_cast<Vertex>(number_in_order(community_));
    std::vector<double> volume(count, 0.0);
    for (std::size_t v = 0; v < community_.size(); ++v) volume[community_[v]] += volume_[v];
    volume_ = std::move(volume);
    return count;
  }

  Random& random_;
  // Of the vertices of a level: weight of their edges, inner ones twice.
  std::vector<double> volume_;
  double total_ = 0;
  std::vector<Vertex> community_;  // on this level
  std::vector<double> weight_to_;  // from a vertex to each community
  std::vector<Vertex> near_;
};

}  // namespace spgnn::gvb
