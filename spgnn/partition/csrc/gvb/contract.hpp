// Contraction: clusters of vertices become the vertices of a coarser graph or hypergraph.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cut_graph.hpp"
#include "groups.hpp"
#include "hypergraph.hpp"
#include "random.hpp"

namespace spgnn::gvb {

// A cluster weighs what its vertices do.
inline WeightedVertices contract_weights(const WeightedVertices& fine,
                                         const std::vector<Vertex>& coarse_of, Vertex count) {
  const std::int64_t m = fine.constraints;
  WeightedVertices coarse{count, fine.constraints, std::vector<std::int64_t>(count * m, 0)};
  for (Vertex v = 0; v < fine.num_vertices; ++v) {
    const auto weight = fine.weight_of(v);
    for (std::int64_t c = 0; c < m; ++c) coarse.vertex_weight[coarse_of[v] * m + c] += weight[c];
  }
  return coarse;
}

// Edges between the same clusters become one, those inside a cluster vanish.
inline CutGraph contract(const CutGraph& fine, const std::vector<Vertex>& coarse_of, Vertex count) {
  CutGraph coarse{contract_weights(fine, coarse_of, count)};
  const Members members(coarse_of, count);
  coarse.edges.reserve(fine.edges.size() / 2);
  EdgeCollector collector(coarse);
  for (Vertex c = 0; c < count; ++c) {
    for (Vertex v : members.of(c)) {
      for (const auto [to, w] : fine.edges_of(v)) {
        if (coarse_of[to] != c) collector.add(coarse_of[to], w);
      }
    }
    collector.close_vertex();
  }
  return coarse;
}

// Nets of one pin vanish, equal nets (same pins, same root if roots matter) become one.
class NetContraction {
 public:
  NetContraction(const Hypergraph& fine, const std::vector<Vertex>& coarse_of, Vertex count,
                 bool rooted)
      : fine_(fine),
        coarse_of_(coarse_of),
        rooted_(rooted),
        coarse_{contract_weights(fine, coarse_of, count)},
        last_net_(count, -1) {}

  Hypergraph operator()() {
    std::size_t slots = 16;
    while (slots < static_cast<std::size_t>(fine_.num_nets()) * 2) slots *= 2;
    slot_.assign(slots, -1);
    for (Net e = 0; e < fine_.num_nets(); ++e) {
      // A scattered and a gathered net are never equal.
      if (e == fine_.num_scatter) {
        coarse_.num_scatter = coarse_.num_nets();
        std::fill(slot_.begin(), slot_.end(), -1);
      }
      add_net(e);
    }
    if (fine_.num_scatter == fine_.num_nets()) coarse_.num_scatter = coarse_.num_nets();
    coarse_.pins.shrink_to_fit();
    slot_ = {};
    coarse_.build_incidence();
    return std::move(coarse_);
  }

 private:
  void add_net(Net e) {
    const auto first = coarse_.pins.size();
    for (Vertex v : fine_.pins_of(e)) {
      const Vertex pin = coarse_of_[v];
      if (last_net_[pin] == e) continue;
      last_net_[pin] = e;
      coarse_.pins.push_back(pin);
    }
    if (coarse_.pins.size() - first < 2 || merged(first, fine_.net_weight[e])) {
      coarse_.pins.resize(first);
    } else {
      coarse_.close_net(fine_.net_weight[e]);
    }
  }

  // Whether there is such a net already, which then takes the weight. Nets with the same 64-bit key
  // are taken to be equal; a false match would only blur a coarse level, never the result, which is
  // measured on the finest.
  bool merged(std::size_t first, std::int32_t weight) {
    const std::size_t size = coarse_.pins.size() - first;
    std::uint64_t key = rooted_ ? mix(static_cast<std::uint64_t>(coarse_.pins[first]) << 32) : size;
    for (auto i = first; i < coarse_.pins.size(); ++i) key += mix(coarse_.pins[i]);
    std::size_t slot = mix(key) & (slot_.size() - 1);
    for (; slot_[slot] >= 0; slot = (slot + 1) & (slot_.size() - 1)) {
      if (key_[slot_[slot]] != key) continue;
      coarse_.net_weight[slot_[slot]] += weight;
      return true;
    }
    slot_[slot] = coarse_.num_nets();
    key_.push_back(key);
    return false;
  }

  const Hypergraph& fine_;
  const std::vector<Vertex>& coarse_of_;
  const bool rooted_;
  Hypergraph coarse_;
  std::vector<Net> last_net_, slot_;
  std::vector<std::uint64_t> key_;
};

inline Hypergraph contract(const Hypergraph& fine, const std::vector<Vertex>& coarse_of,
                           Vertex count, bool rooted) {
  return NetContraction(fine, coarse_of, count, rooted)();
}

}  // namespace spgnn::gvb
