// Clusters in the making: every vertex begins as one of its own, and singletons join others.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "groups.hpp"
#include "vertices.hpp"

namespace spgnn::gvb {

struct CoarsenOptions {
  Bound max_weight;              // of a cluster
  std::int32_t max_members = 2;  // vertices that become one in one step
  // Clusters may not span two of these groups (labels of a partition to be kept).
  const std::vector<Part>* groups = nullptr;
  // Of hypergraphs only:
  std::int64_t pair_budget = 16;  // rated pairs per pin: bounds which nets are rated in full
  bool rooted = true;             // false: roots do not matter (only λ counts)
};

class Clusters {
 public:
  Clusters(const WeightedVertices& vertices, const CoarsenOptions& options)
      : num_vertices_(vertices.num_vertices),
        constraints_(vertices.constraints),
        options_(options),
        leader_(vertices.num_vertices),
        members_(vertices.num_vertices, 1),
        weight_(vertices.vertex_weight) {
    std::iota(leader_.begin(), leader_.end(), 0);
  }

  // Only singletons join, so a leader never changes its own.
  Vertex leader(Vertex v) const { return leader_[v]; }
  std::int32_t members(Vertex cluster) const { return members_[cluster]; }
  std::int64_t weight(Vertex cluster) const { return weight_[cluster * constraints_]; }
  bool alone(Vertex u) const { return members_[u] == 1; }

  bool fits(Vertex u, Vertex cluster) const {
    if (members_[cluster] >= options_.max_members) return false;
    for (std::int64_t c = 0; c < constraints_; ++c) {
      if (weight_[u * constraints_ + c] + weight_[cluster * constraints_ + c] >
          options_.max_weight[c]) {
        return false;
      }
    }
    return options_.groups == nullptr || (*options_.groups)[u] == (*options_.groups)[cluster];
  }

  void join(Vertex u, Vertex cluster) {
    leader_[u] = cluster;
    ++members_[cluster];
    members_[u] = 0;
    for (std::int64_t c = 0; c < constraints_; ++c) {
      weight_[cluster * constraints_ + c] += weight_[u * constraints_ + c];
    }
  }

  // Leaves of a hub that is full, and vertices without neighbours, would stall coarsening: those
  // with the same favourite are joined to each other (two-hop matching, as in KaMinPar).
  // favourite(u): the vertex that u would have liked to join, -1 where there is none.
  template <class Favourite>
  void pair_by_favourite(const std::vector<Vertex>& order, const Favourite& favourite) {
    std::vector<Vertex> waiting(static_cast<std::size_t>(num_vertices_) + 1, -1);
    for (Vertex u : order) {
      if (!alone(u)) continue;
      const Vertex liked = favourite(u);
      Vertex& partner = waiting[liked < 0 ? num_vertices_ : liked];
      if (partner >= 0 && fits(u, partner)) {
        join(u, partner);
        if (liked >= 0) partner = -1;
      } else {
        partner = u;
      }
    }
  }

  // The cluster of each vertex, numbered in order of first appearance; and how many there are.
  std::pair<std::vector<Vertex>, Vertex> numbered() && {
    const auto count = static_cast<Vertex>(number_in_order(leader_));
    return {std::move(leader_), count};
  }

 private:
  Vertex num_vertices_;
  std::int64_t constraints_;
  const CoarsenOptions& options_;
  std::vector<Vertex> leader_;
  std::vector<std::int32_t> members_;  // of a leader's cluster; 0 for those who joined one
  std::vector<std::int64_t> weight_;   // [vertices × constraints], of a leader's cluster
};

}  // namespace spgnn::gvb
