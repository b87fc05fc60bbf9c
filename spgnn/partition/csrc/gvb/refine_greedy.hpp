// Greedy k-way refinement: rounds over the vertices whose surroundings changed.
#pragma once

#include <utility>
#include <vector>

#include "move_finder.hpp"
#include "random.hpp"
#include "seeds.hpp"

namespace spgnn::gvb {

// Moves each vertex to its best part while that lowers the cost; after the first round only
// vertices next to a move are looked at again.
class GreedyRefiner {
 public:
  GreedyRefiner(VolumeState& state, const std::vector<std::int64_t>& max_weight, Random& random)
      : state_(state),
        finder_(state, max_weight),
        random_(random),
        queued_(state.hypergraph().num_vertices, 0) {}

  void run(int max_rounds) { run(max_rounds, boundary(state_)); }

  // The first round looks at the vertices of `active` alone.
  void run(int max_rounds, std::vector<Vertex> active) {
    for (int round = 0; round < max_rounds && !active.empty(); ++round) {
      random_.shuffle(active);
      const double before = state_.cost();
      std::vector<Vertex> next;
      for (Vertex v : active) {
        queued_[v] = 0;
        const Part from = state_.part(v);
        if (try_move(v)) queue_neighbours(v, from, next);
      }
      active = std::move(next);
      if (state_.cost() > before * (1 - kWorthARound)) break;
    }
    for (Vertex v : active) queued_[v] = 0;
  }

 private:
  static constexpr std::int64_t kLargestNet = 256;
  static constexpr double kWorthARound = 1e-3;

  bool try_move(Vertex v) {
    if (finder_.hopeless(v)) return false;
    const Move move = finder_.best(v);
    if (move.to < 0 || move.gain <= 1e-9) return false;
    const Part from = state_.part(v);
    const double before = state_.cost();
    state_.move(v, move.to);
    if (state_.cost() < before) return true;
    state_.move(v, from);
    return false;
  }

  // Those whose gain the move of v can have raised: pins of nets that are new in its part, and of
  // nets that have one pin left where it came from.
  void queue_neighbours(Vertex v, Part from, std::vector<Vertex>& next) {
    const Hypergraph& h = state_.hypergraph();
    for (Net e : h.nets_of(v)) {
      if (h.size(e) > kLargestNet) continue;
      const bool entered = state_.counts().lone(e, state_.part(v));
      if (!entered && !state_.counts().lone(e, from)) continue;
      for (Vertex u : h.pins_of(e)) {
        if (queued_[u] || (!entered && state_.part(u) != from)) continue;
        queued_[u] = 1;
        next.push_back(u);
      }
    }
  }

  VolumeState& state_;
  MoveFinder finder_;
  Random& random_;
  std::vector<std::uint8_t> queued_;
};

}  // namespace spgnn::gvb
