// Brings every part within its bound, at the least cost in volume.
#pragma once

#include "move_finder.hpp"

namespace spgnn::gvb {

// The vertices whose gain a move of v out of part `from` can have raised: pins of nets that are new
// in v's part, and of nets that have one pin left where it came from.
template <class Visit>
void for_affected(const VolumeState& state, Vertex v, Part from, const Visit& visit) {
  constexpr i64 kLargestNet = 256;
  const Hypergraph& h = state.hypergraph();
  for (Net e : h.nets_of(v)) {
    if (h.size(e) > kLargestNet) continue;
    const bool entered = state.counts().lone(e, state.part(v));
    if (!entered && !state.counts().lone(e, from)) continue;
    for (Vertex u : h.pins_of(e)) {
      if (entered || state.part(u) == from) visit(u);
    }
  }
}

class Rebalancer {
 public:
  Rebalancer(VolumeState& state, const Bound& max_weight)
      : state_(state), max_weight_(max_weight), finder_(state, max_weight),
        heap_(state.hypergraph().num_vertices), stamp_(state.hypergraph().num_vertices, 0) {}

  // True if all parts are within bounds afterwards.
  bool run() {
    for (Part p = 0; p < state_.parts() && state_.parts() > kFewParts; ++p) {
      by_load_.insert({overload(p), p});
    }
    for (int round = 0; round < kRounds; ++round) {
      bool balanced = true;
      for (Part p = 0; p < state_.parts(); ++p) balanced &= state_.weights().within(p, max_weight_);
      if (balanced) return true;
      std::vector<std::vector<Vertex>> members(state_.parts());
      for (Vertex v = 0; v < state_.hypergraph().num_vertices; ++v) {
        if (overload(state_.part(v)) > 0 || !by_load_.empty()) {
          members[state_.part(v)].push_back(v);
        }
      }
      // After half the rounds only the fit counts: weights are packed, heaviest first.
      const bool pack = round >= kRounds / 2;
      for (Part p = 0; p < state_.parts(); ++p) {
        relieve(p, members[p], pack);
        if (pack) exchange(p, members);
      }
    }
    return false;
  }

 private:
  static constexpr int kRounds = 8;
  static constexpr Part kFewParts = 4096;
  static constexpr int kLightest = 16;
  static constexpr std::size_t kFewNets = 32;  // vertices in more keep their keys, to save time

  // Largest share by which a part exceeds a bound.
  double overload(Part p) const {
    double worst = -1;
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      worst = std::max(worst, load(p, c) - 1);
    }
    return worst;
  }

  double load(Part p, int c) const {
    return static_cast<double>(state_.weights()(p, c)) / bound_of(p, c);
  }

  double bound_of(Part p, int c) const { return static_cast<double>(std::max<i64>(1, most(p, c))); }
  i64 most(Part p, int c) const {
    return max_weight_[p * static_cast<std::size_t>(state_.hypergraph().constraints) + c];
  }

  // Sends members of p on until it keeps its bounds: those that cost least per weight first, and
  // what a move brings to the border. Where that ends, what costs least in the part with most room.
  void relieve(Part p, const std::vector<Vertex>& members, bool pack) {
    if (overload(p) <= 0) return;
    heap_.clear();
    if (!pack) {
      for (Vertex v : members) queue(p, v);
    }
    std::vector<Vertex> inner;
    bool listed = false;
    while (overload(p) > 0) {
      Vertex v = -1;
      Move move;
      if (!heap_.empty()) {
        v = heap_.top();
        move = finder_.best(v);
        const double key = key_of(p, v, move);
        // Keys may fall behind; a stale one is put right when it comes up.
        if (key < heap_.key(v) - 1e-9) {
          heap_.set(v, key);
          if (heap_.top() != v) continue;
        }
        heap_.remove(v);
        if (move.to < 0) continue;
      } else {
        if (!std::exchange(listed, true)) inner = cheapest_last(p, members, pack);
        if (inner.empty()) return;
        v = inner.back();
        inner.pop_back();
        if (state_.part(v) != p) continue;
        move.to = lightest(v);
      }
      if (relief(p, v) <= 0 || move.to == p || !improves(v, p, move.to)) continue;
      make(v, move.to);
      if (pack) continue;
      ++now_;
      for_affected(state_, v, p, [&](Vertex u) {
        if (std::exchange(stamp_[u], now_) == now_) return;  // shares several nets with v
        const bool known = heap_.contains(u) && state_.hypergraph().nets_of(u).size() > kFewNets;
        if (state_.part(u) == p && !known) queue(p, u);
      });
    }
  }

  void queue(Part p, Vertex v) {
    const Move move = finder_.best(v);
    if (move.to >= 0 && relief(p, v) > 0) heap_.set(v, key_of(p, v, move));
  }

  // What leaves at a gain goes first, else by the cost per weight.
  double key_of(Part p, Vertex v, const Move& move) const {
    if (move.to < 0) return std::numeric_limits<double>::lowest();
    return move.gain >= 0 ? move.gain * 1e6 : move.gain / std::max(relief(p, v), 1e-12);
  }

  // Members by cost per weight in the part with most room, or by weight; the first to go is last.
  std::vector<Vertex> cheapest_last(Part p, const std::vector<Vertex>& members, bool pack) {
    std::vector<std::pair<double, Vertex>> keys;
    for (Vertex v : members) {
      const double share = relief(p, v);
      if (state_.part(v) != p || share <= 0 || state_.hypergraph().is_fixed(v)) continue;
      keys.push_back({pack ? share : key_of(p, v, {finder_.gain(v, lightest(v)), 0}), v});
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Vertex> order;
    for (const auto& [key, v] : keys) order.push_back(v);
    return order;
  }

  // Where p holds several too heavy vertices, the lightest part takes one and sends its own on.
  void exchange(Part p, const std::vector<std::vector<Vertex>>& members) {
    if (overload(p) <= 0) return;
    Vertex heaviest = -1;
    for (Vertex v : members[p]) {
      if (state_.part(v) != p || state_.hypergraph().is_fixed(v)) continue;
      if (heaviest < 0 || relief(p, v) > relief(p, heaviest)) heaviest = v;
    }
    if (heaviest < 0) return;
    const Part q = lightest(heaviest);
    if (q == p || !room_for(heaviest, q)) return;
    std::vector<Vertex> others;
    if (!by_load_.empty()) others = members[q];  // as the round began
    for (Vertex v = 0; by_load_.empty() && v < state_.hypergraph().num_vertices; ++v) {
      if (state_.part(v) == q) others.push_back(v);
    }
    make(heaviest, q);
    relieve(q, others, false);
  }

  // Whether v would fit in q if all room of the other parts took weight from there.
  bool room_for(Vertex v, Part q) const {
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      i64 room = most(q, c) - state_.weights()(q, c) - weight[c];
      for (Part p = 0; p < state_.parts(); ++p) {
        const i64 left = state_.weights()(p, c) - (p == state_.part(v) ? weight[c] : 0);
        if (p != q) room += std::max<i64>(0, most(p, c) - left);
      }
      if (weight[c] > most(q, c) || room < 0) return false;
    }
    return true;
  }

  // Weight of v in the constraints its part exceeds, as a share of the bounds.
  double relief(Part p, Vertex v) const {
    double sum = 0;
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      if (state_.weights()(p, c) > most(p, c)) {
        sum += static_cast<double>(weight[c]) / bound_of(p, c);
      }
    }
    return sum;
  }

  // The part whose fullest constraint stays lowest with v; of many parts, among the lightest.
  Part lightest(Vertex v) const {
    Part best = 0;
    double best_load = 1e300;
    const auto consider = [&](Part p) {
      if (p == state_.part(v)) return;
      const double loaded = load_with(p, v);
      if (loaded < best_load) {
        best_load = loaded;
        best = p;
      }
    };
    if (by_load_.empty()) {
      for (Part p = 0; p < state_.parts(); ++p) consider(p);
    } else {
      auto next = by_load_.begin();
      for (int i = 0; i < kLightest; ++i) consider((next++)->second);
    }
    return best;
  }

  void make(Vertex v, Part to) {
    const std::array<Part, 2> parts{state_.part(v), to};
    if (!by_load_.empty()) {
      for (Part p : parts) by_load_.erase({overload(p), p});
    }
    state_.move(v, to);
    if (state_.parts() > kFewParts) {
      for (Part p : parts) by_load_.insert({overload(p), p});
    }
  }

  double load_with(Part p, Vertex v) const {
    double worst = 0;
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      worst = std::max(worst, load(p, c) + static_cast<double>(weight[c]) / bound_of(p, c));
    }
    return worst;
  }

  // A move helps if the target fits, or at least ends below where the source was.
  bool improves(Vertex v, Part from, Part to) const {
    return finder_.fits(v, to) || load_with(to, v) < overload(from) + 1;
  }

  VolumeState& state_;
  const Bound& max_weight_;
  MoveFinder finder_;
  VertexHeap<double> heap_;
  std::vector<i32> stamp_;  // the last move that a vertex was looked at after
  i32 now_ = 0;
  std::set<std::pair<double, Part>> by_load_;  // the parts, where they are many
};

}  // namespace spgnn::gvb
