// Moves that lower the potential of a partition's volumes, as GreedyRefiner wants them.
#pragma once

#include <vector>

#include "move_finder.hpp"
#include "seeds.hpp"

namespace spgnn::gvb {

class VolumeMoves {
 public:
  static constexpr bool kQueuedAtFirst = false;

  VolumeMoves(VolumeState& state, const Bound& max_weight)
      : state_(state), finder_(state, max_weight) {}

  std::vector<Vertex> boundary() const { return gvb::boundary(state_); }

  void begin_round() { before_ = state_.cost(); }
  bool end_round() const {
    constexpr double kWorthARound = 1e-3;
    return state_.cost() <= before_ * (1 - kWorthARound);
  }

  Part try_move(Vertex v) {
    if (finder_.hopeless(v)) return -1;
    const Move move = finder_.best(v);
    if (move.to < 0 || move.gain <= 1e-9) return -1;
    const Part from = state_.part(v);
    const double before = state_.cost();
    state_.move(v, move.to);
    if (state_.cost() < before) return from;
    state_.move(v, from);
    return -1;
  }

  // Pins of nets that are new in v's part, and of nets that have one pin left where it came from.
  template <class Visit>
  void for_affected(Vertex v, Part from, const Visit& visit) const {
    constexpr std::int64_t kLargestNet = 256;
    const Hypergraph& h = state_.hypergraph();
    for (Net e : h.nets_of(v)) {
      if (h.size(e) > kLargestNet) continue;
      const bool entered = state_.counts().lone(e, state_.part(v));
      if (!entered && !state_.counts().lone(e, from)) continue;
      for (Vertex u : h.pins_of(e)) {
        if (entered || state_.part(u) == from) visit(u);
      }
    }
  }

 private:
  VolumeState& state_;
  MoveFinder finder_;
  double before_ = 0;
};

}  // namespace spgnn::gvb
