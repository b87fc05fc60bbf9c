// Brings every part within its bound, at the least cost in volume.
#pragma once

#include <algorithm>
#include <vector>

#include "move_finder.hpp"

namespace spgnn::gvb {

class Rebalancer {
 public:
  Rebalancer(VolumeState& state, const Bound& max_weight)
      : state_(state), max_weight_(max_weight), finder_(state, max_weight) {}

  // True if all parts are within bounds afterwards.
  bool run() {
    for (int round = 0; round < kRounds; ++round) {
      bool balanced = true;
      for (Part p = 0; p < state_.parts(); ++p) balanced &= state_.weights().within(p, max_weight_);
      if (balanced) return true;
      std::vector<std::vector<Vertex>> members(state_.parts());
      for (Vertex v = 0; v < state_.hypergraph().num_vertices; ++v) {
        if (overload(state_.part(v)) > 0) members[state_.part(v)].push_back(v);
      }
      // After half the rounds only the fit counts: weights are packed, heaviest first.
      const bool pack = round >= kRounds / 2;
      for (Part p = 0; p < state_.parts(); ++p) {
        relieve(p, members[p], pack);
        if (pack) exchange(p, members[p]);
      }
    }
    return false;
  }

 private:
  static constexpr int kRounds = 8;

  // Largest share by which a part exceeds a bound.
  double overload(Part p) const {
    double worst = -1;
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      worst = std::max(worst, load(p, c) - 1);
    }
    return worst;
  }

  double load(Part p, int c) const {
    const auto bound = static_cast<double>(std::max<std::int64_t>(1, max_weight_[c]));
    return static_cast<double>(state_.weights()(p, c)) / bound;
  }

  struct Candidate {
    double key;
    Vertex v;
  };

  void relieve(Part p, const std::vector<Vertex>& members, bool pack) {
    if (overload(p) <= 0) return;
    std::vector<Candidate> candidates;
    for (Vertex v : members) {
      const double share = relief(p, v);
      if (share <= 0) continue;
      if (pack) {
        candidates.push_back({share, v});
        continue;
      }
      const Move move = finder_.best(v);
      const double gain = move.to >= 0 ? move.gain : finder_.gain(v, lightest(v));
      candidates.push_back({gain >= 0 ? gain * 1e6 : gain / share, v});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.key > b.key; });
    for (const Candidate& candidate : candidates) {
      if (overload(p) <= 0) return;
      if (relief(p, candidate.v) <= 0) continue;
      Move move = pack ? Move{} : finder_.best(candidate.v);
      if (move.to < 0) move.to = lightest(candidate.v);
      if (move.to == p || !improves(candidate.v, p, move.to)) continue;
      state_.move(candidate.v, move.to);
    }
  }

  // Where p holds several vertices so heavy that no part has room for one, the lightest part takes
  // one and makes room by sending its own on.
  void exchange(Part p, const std::vector<Vertex>& members) {
    if (overload(p) <= 0) return;
    Vertex heaviest = -1;
    for (Vertex v : members) {
      if (state_.part(v) == p && (heaviest < 0 || relief(p, v) > relief(p, heaviest))) heaviest = v;
    }
    if (heaviest < 0) return;
    const Part q = lightest(heaviest);
    if (q == p || !room_for(heaviest, q)) return;
    std::vector<Vertex> others;
    for (Vertex v = 0; v < state_.hypergraph().num_vertices; ++v) {
      if (state_.part(v) == q) others.push_back(v);
    }
    state_.move(heaviest, q);
    relieve(q, others, false);
  }

  // Whether v would fit in q if all room of the other parts took weight from there.
  bool room_for(Vertex v, Part q) const {
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      std::int64_t room = max_weight_[c] - state_.weights()(q, c) - weight[c];
      for (Part p = 0; p < state_.parts(); ++p) {
        const std::int64_t left = state_.weights()(p, c) - (p == state_.part(v) ? weight[c] : 0);
        if (p != q) room += std::max<std::int64_t>(0, max_weight_[c] - left);
      }
      if (weight[c] > max_weight_[c] || room < 0) return false;
    }
    return true;
  }

  // Weight of v in the constraints its part exceeds, as a share of the bounds.
  double relief(Part p, Vertex v) const {
    double sum = 0;
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      if (state_.weights()(p, c) <= max_weight_[c]) continue;
      sum += static_cast<double>(weight[c]) /
             static_cast<double>(std::max<std::int64_t>(1, max_weight_[c]));
    }
    return sum;
  }

  // The part whose fullest constraint would stay lowest with v.
  Part lightest(Vertex v) const {
    Part best = 0;
    double best_load = 1e300;
    for (Part p = 0; p < state_.parts(); ++p) {
      if (p == state_.part(v)) continue;
      const double loaded = load_with(p, v);
      if (loaded < best_load) {
        best_load = loaded;
        best = p;
      }
    }
    return best;
  }

  double load_with(Part p, Vertex v) const {
    double worst = 0;
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      const auto bound = static_cast<double>(std::max<std::int64_t>(1, max_weight_[c]));
      worst = std::max(worst, load(p, c) + static_cast<double>(weight[c]) / bound);
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
};

}  // namespace spgnn::gvb
