// Localised k-way Fiduccia–Mattheyses search: climbs out of local minima, keeps the best prefix.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "heap.hpp"
#include "move_finder.hpp"
#include "random.hpp"
#include "seeds.hpp"

namespace spgnn::gvb {

// Searches grow from a few boundary vertices each (Sanders & Schulz 2011); every move of a search
// is made, also a losing one, and undone at the end unless a later prefix paid for it.
class LocalSearch {
 public:
  LocalSearch(VolumeState& state, const Bound& max_weight, std::int32_t patience, Random& random)
      : state_(state),
        finder_(state, max_weight),
        random_(random),
        patience_(patience),
        heap_(state.hypergraph().num_vertices),
        status_(state.hypergraph().num_vertices, kFree),
        stamp_(state.hypergraph().num_vertices, 0) {}

  // Ends early once the searches have cost `budget` units of work.
  void run(int max_passes, std::int64_t budget) {
    budget_ = finder_.work() + budget;
    for (int pass = 0; pass < max_passes && finder_.work() < budget_; ++pass) {
      const double before = state_.cost();
      run_pass(boundary(state_));
      if (state_.cost() > before * (1 - kWorthAPass)) break;
    }
  }

  // One pass that starts from the vertices of `seeds` alone.
  void run_from(std::vector<Vertex> seeds, std::int64_t budget) {
    budget_ = finder_.work() + budget;
    run_pass(std::move(seeds));
  }

 private:
  enum Status : std::uint8_t { kFree, kSeen, kMoved };
  static constexpr std::size_t kSeeds = 8;
  static constexpr std::int64_t kLargestNet = 128;
  static constexpr int kWidest = 32;  // vertices queued by one move
  static constexpr double kWorthAPass = 2e-3;

  void run_pass(std::vector<Vertex> seeds) {
    std::fill(status_.begin(), status_.end(), kFree);
    random_.shuffle(seeds);
    std::size_t next = 0;
    while (next < seeds.size() && finder_.work() < budget_) {
      for (std::size_t found = 0; next < seeds.size() && found < kSeeds; ++next) {
        if (status_[seeds[next]] != kFree) continue;
        queue(seeds[next]);
        ++found;
      }
      search();
    }
  }

  void search() {
    moves_.clear();
    std::size_t best = 0;
    double best_cost = state_.cost();
    while (!heap_.empty() && moves_.size() < best + patience_) {
      const Vertex v = heap_.top();
      const Move move = finder_.best(v);
      if (move.to < 0) {
        heap_.remove(v);
        continue;
      }
      // Keys only fall behind; a stale one is put right when it comes up.
      if (move.gain < heap_.key(v) - 1e-9) {
        heap_.set(v, move.gain);
        if (heap_.top() != v) continue;
      }
      heap_.remove(v);
      moves_.push_back({v, state_.part(v)});
      status_[v] = kMoved;
      apply(v, move.to);
      if (state_.cost() < best_cost - 1e-7) {
        best_cost = state_.cost();
        best = moves_.size();
      }
    }
    for (; moves_.size() > best; moves_.pop_back()) {
      state_.move(moves_.back().first, moves_.back().second);
      status_[moves_.back().first] = kSeen;
    }
    heap_.clear();
  }

  // Moves v and queues the vertices whose gain this can have raised.
  void apply(Vertex v, Part to) {
    const Part from = state_.part(v);
    state_.move(v, to);
    const Hypergraph& h = state_.hypergraph();
    ++now_;
    int queued = 0;
    for (Net e : h.nets_of(v)) {
      if (h.size(e) > kLargestNet) continue;
      const bool entered = state_.counts().lone(e, to);
      const bool lone = state_.counts().lone(e, from);
      if (!entered && !lone) continue;
      for (Vertex u : h.pins_of(e)) {
        if (status_[u] == kMoved || stamp_[u] == now_) continue;
        if (!entered && state_.part(u) != from) continue;
        stamp_[u] = now_;
        queue(u);
        if (++queued == kWidest) return;
      }
    }
  }

  void queue(Vertex v) {
    const Move move = finder_.best(v);
    if (status_[v] == kFree) status_[v] = kSeen;
    if (move.to >= 0) heap_.set(v, move.gain);
  }

  VolumeState& state_;
  MoveFinder finder_;
  Random& random_;
  std::size_t patience_;
  std::int64_t budget_ = 0;
  VertexHeap<double> heap_;
  std::vector<std::uint8_t> status_;
  std::vector<std::int32_t> stamp_;
  std::int32_t now_ = 0;
  std::vector<std::pair<Vertex, Part>> moves_;
};

}  // namespace spgnn::gvb
