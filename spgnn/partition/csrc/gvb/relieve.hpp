// Takes volume off the parts that send most, by moves that make room for themselves.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "move_finder.hpp"

namespace spgnn::gvb {

// Where weights are tight no single move fits, and the part with the maximum keeps it. Here a
// vertex moves anyway, and its new part sends vertices on until it is within its bound; the chain
// stays if it lowered the cost.
class Reliever {
 public:
  Reliever(VolumeState& state, const Bound& max_weight)
      : state_(state), max_weight_(max_weight), finder_(state, max_weight) {}

  // Goes through the parts by falling volume, as long as that helps and the budget lasts.
  void run(std::int64_t budget) {
    const Part tried_at_once = std::min(state_.parts(), std::max<Part>(2, state_.parts() / 4));
    list_members();
    std::vector<Part> order(state_.parts());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < kRounds; ++round) {
      std::stable_sort(order.begin(), order.end(), [&](Part a, Part b) {
        return state_.price(a) + state_.receive_price(a) >
               state_.price(b) + state_.receive_price(b);
      });
      bool helped = false;
      for (Part i = 0; i < tried_at_once; ++i) {
        if (finder_.work() > budget) return;
        helped |= relieve(order[i]);
      }
      if (!helped) return;
    }
  }

 private:
  static constexpr int kRounds = 24;
  static constexpr std::size_t kCandidates = 6, kChain = 48;

  struct Candidate {
    double key;
    Vertex v;
    Part to;
  };

  void list_members() {
    members_.assign(state_.parts(), {});
    for (Vertex v = 0; v < state_.hypergraph().num_vertices; ++v) {
      members_[state_.part(v)].push_back(v);
    }
  }

  // Members of p; those that have left since are dropped on the way.
  const std::vector<Vertex>& members(Part p) {
    std::erase_if(members_[p], [&](Vertex v) { return state_.part(v) != p; });
    return members_[p];
  }

  bool relieve(Part p) {
    std::vector<Candidate> best;
    for (Vertex v : members(p)) {
      const Move move = finder_.best_anywhere(v);
      if (move.to >= 0 && move.gain > 0) best.push_back({move.gain, v, move.to});
    }
    keep_largest(best, kCandidates);
    for (const Candidate& candidate : best) {
      const double before = state_.cost();
      chain_.clear();
      make(candidate.v, candidate.to);
      if (make_room(candidate.to, candidate.v) && state_.cost() < before) {
        for (const auto& [v, from] : chain_) members_[state_.part(v)].push_back(v);
        return true;
      }
      for (; !chain_.empty(); chain_.pop_back()) {
        state_.move(chain_.back().first, chain_.back().second);
      }
    }
    return false;
  }

  // Sends vertices from q to parts with room, cheapest first per weight, until q keeps its bound.
  bool make_room(Part q, Vertex newcomer) {
    if (within(q)) return true;
    std::vector<Candidate> leaving;
    for (Vertex u : members(q)) {
      const Move move = finder_.best(u);
      const double share = share_of(u);
      if (u == newcomer || move.to < 0 || share <= 0) continue;
      leaving.push_back({move.gain >= 0 ? move.gain : move.gain / share, u, move.to});
    }
    keep_largest(leaving, kChain);
    for (const Candidate& candidate : leaving) {
      if (!finder_.fits(candidate.v, candidate.to)) continue;
      make(candidate.v, candidate.to);
      if (within(q)) return true;
    }
    return false;
  }

  static void keep_largest(std::vector<Candidate>& candidates, std::size_t count) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.key > b.key; });
    candidates.resize(std::min(candidates.size(), count));
  }

  void make(Vertex v, Part to) {
    chain_.push_back({v, state_.part(v)});
    state_.move(v, to);
  }

  bool within(Part p) const { return state_.weights().within(p, max_weight_); }

  double share_of(Vertex v) const {
    double sum = 0;
    for (int c = 0; std::int64_t weight : state_.hypergraph().weight_of(v)) {
      sum += static_cast<double>(weight) /
             static_cast<double>(std::max<std::int64_t>(1, max_weight_[c++]));
    }
    return sum;
  }

  VolumeState& state_;
  const Bound& max_weight_;
  MoveFinder finder_;
  std::vector<std::vector<Vertex>> members_;
  std::vector<std::pair<Vertex, Part>> chain_;  // vertices moved, and where they were
};

}  // namespace spgnn::gvb
