// Where refinement starts: the vertices whose move can pay.
#pragma once

#include <algorithm>
#include <vector>

#include "volume_state.hpp"

namespace spgnn::gvb {

// Those with a cut net; no other can gain by a move.
inline std::vector<Vertex> boundary(const VolumeState& state) {
  const Hypergraph& h = state.hypergraph();
  std::vector<Vertex> found;
  for (Vertex v = 0; v < h.num_vertices; ++v) {
    const auto nets = h.nets_of(v);
    if (std::any_of(nets.begin(), nets.end(),
                    [&](Net e) { return state.counts().lambda(e) > 1; })) {
      found.push_back(v);
    }
  }
  return found;
}

// Those of the boundary whose move can take a row off a part where a row costs more than `price`:
// its own vertices, and vertices elsewhere that alone make it send (or receive) a row.
inline std::vector<Vertex> near_expensive_parts(const VolumeState& state, double price) {
  const Hypergraph& h = state.hypergraph();
  const PinCounts& counts = state.counts();
  const auto expensive = [&](Part p) { return state.price(p) + state.receive_price(p) > price; };
  std::vector<Vertex> found;
  for (Vertex v = 0; v < h.num_vertices; ++v) {
    const Part own = state.part(v);
    const bool inside = expensive(own);
    const auto relieves = [&](Net e) {
      const PinCounts::Record& net = counts.net(e);
      return net.lambda > 1 && (inside || (expensive(net.root_part) && counts.lone(e, own)));
    };
    const auto nets = h.nets_of(v);
    if (std::any_of(nets.begin(), nets.end(), relieves)) found.push_back(v);
  }
  return found;
}

}  // namespace spgnn::gvb
