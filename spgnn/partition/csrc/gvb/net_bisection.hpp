// Two-way partitioning of a hypergraph: multilevel, Fiduccia & Mattheyses (1982) on the cut nets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "coarsen.hpp"
#include "cut_bisection.hpp"
#include "heap.hpp"
#include "hypergraph.hpp"
#include "random.hpp"

namespace spgnn::gvb {

// The cut of a two-way partition and the gain of moving each vertex, kept up to date.
class NetBisectionRefiner {
 public:
  NetBisectionRefiner(const Hypergraph& h, const Bounds& bounds, Sides& side, Random& random)
      : h_(h),
        bounds_(bounds),
        side_(side),
        random_(random),
        count_(h.num_nets()),
        gain_(h.num_vertices, 0),
        locked_(h.num_vertices, 0),
        heap_{VertexHeap<Key>(h.num_vertices), VertexHeap<Key>(h.num_vertices)} {
    for (auto& weight : weight_) weight.assign(h.constraints, 0);
    for (Vertex v = 0; v < h.num_vertices; ++v) add_weight(v, side_[v], 1);
    for (Net e = 0; e < h.num_nets(); ++e) {
      count_[e] = {0, 0};
      for (Vertex v : h.pins_of(e)) ++count_[e][side_[v]];
      if (count_[e][0] > 0 && count_[e][1] > 0) cut_ += h.net_weight[e];
    }
    for (Vertex v = 0; v < h.num_vertices; ++v) gain_[v] = fresh_gain(v);
  }

  std::int64_t cut() const { return cut_; }

  // How far the sides exceed their bounds, summed as shares of the bounds.
  double overload() const {
    double sum = 0;
    for (int s = 0; s < 2; ++s) {
      for (int c = 0; c < h_.constraints; ++c) {
        const double over = static_cast<double>(weight_[s][c] - bounds_[s][c]);
        sum += std::max(0.0, over / static_cast<double>(std::max<std::int64_t>(1, bounds_[s][c])));
      }
    }
    return sum;
  }

  // Passes until one brings nothing; each moves every vertex at most once and keeps its best state.
  void run(int max_passes, std::int32_t patience) {
    for (int pass = 0; pass < max_passes && run_pass(patience); ++pass) {
    }
  }

  // Moves vertices from side 1 to side 0, best gain first, until side 0 has its share.
  void grow(Vertex start, const std::vector<std::int64_t>& target) {
    auto& heap = heap_[1];
    Vertex v = start;
    while (true) {
      move(v);
      locked_[v] = 1;
      for (int c = 0; c < h_.constraints; ++c) {
        if (weight_[0][c] >= target[c]) return finish_growth();
      }
      while (!heap.empty() && !fits(heap.top(), 0)) heap.remove(heap.top());
      if (heap.empty()) {
        v = any_unlocked();
        if (v < 0) return finish_growth();
      } else {
        v = heap.top();
        heap.remove(v);
      }
    }
  }

 private:
  using Key = std::pair<std::int64_t, std::uint32_t>;  // gain, then chance

  void finish_growth() {
    for (auto& heap : heap_) heap.clear();
    std::fill(locked_.begin(), locked_.end(), 0);
  }

  Vertex any_unlocked() {
    const Vertex n = h_.num_vertices;
    const Vertex first = static_cast<Vertex>(random_.below(static_cast<std::uint32_t>(n)));
    for (Vertex i = 0; i < n; ++i) {
      const Vertex v = (first + i) % n;
      if (!locked_[v] && side_[v] == 1 && fits(v, 0)) return v;
    }
    return -1;
  }

  std::int64_t fresh_gain(Vertex v) const {
    std::int64_t gain = 0;
    const int s = side_[v];
    for (Net e : h_.nets_of(v)) {
      if (count_[e][s] == 1) gain += h_.net_weight[e];
      if (count_[e][1 - s] == 0) gain -= h_.net_weight[e];
    }
    return gain;
  }

  void add_weight(Vertex v, int side, int sign) {
    const auto weight = h_.weight_of(v);
    for (int c = 0; c < h_.constraints; ++c) weight_[side][c] += sign * weight[c];
  }

  bool fits(Vertex v, int side) const {
    const auto weight = h_.weight_of(v);
    for (int c = 0; c < h_.constraints; ++c) {
      if (weight_[side][c] + weight[c] > bounds_[side][c]) return false;
    }
    return true;
  }

  void change_gain(Vertex v, std::int64_t by) {
    gain_[v] += by;
    if (locked_[v]) return;
    auto& heap = heap_[side_[v]];
    // Keep the tie-breaking number of a vertex that is already queued.
    const auto chance =
        heap.contains(v) ? heap.key(v).second : static_cast<std::uint32_t>(random_.next() >> 32);
    heap.set(v, {gain_[v], chance});
  }

  void move(Vertex v) {
    const int from = side_[v], to = 1 - from;
    cut_ -= gain_[v];
    side_[v] = static_cast<std::uint8_t>(to);
    add_weight(v, from, -1);
    add_weight(v, to, 1);
    gain_[v] = -gain_[v];
    for (Net e : h_.nets_of(v)) {
      const std::int64_t w = h_.net_weight[e];
      auto& count = count_[e];
      if (count[to] == 0) {
        change_all(e, v, w);
      } else if (count[to] == 1) {
        change_lone(e, v, to, -w);
      }
      --count[from];
      ++count[to];
      if (count[from] == 0) {
        change_all(e, v, -w);
      } else if (count[from] == 1) {
        change_lone(e, v, from, w);
      }
    }
  }

  void change_all(Net e, Vertex except, std::int64_t by) {
    for (Vertex u : h_.pins_of(e)) {
      if (u != except) change_gain(u, by);
    }
  }

  void change_lone(Net e, Vertex except, int side, std::int64_t by) {
    for (Vertex u : h_.pins_of(e)) {
      if (u == except || side_[u] != side) continue;
      change_gain(u, by);
      return;
    }
  }

  void queue_boundary() {
    std::vector<Vertex> queued;
    const bool all = overload() > 0;
    for (Vertex v = 0; v < h_.num_vertices; ++v) {
      bool boundary = all;
      for (Net e : h_.nets_of(v)) {
        if (boundary) break;
        boundary = count_[e][0] > 0 && count_[e][1] > 0;
      }
      if (boundary) change_gain(v, 0);
    }
  }

  // The side to take the next vertex from: an overloaded one, else the one with the higher gain.
  int choose_side(double over) {
    if (over > 0) {
      const int heavy = side_overload(0) >= side_overload(1) ? 0 : 1;
      return heap_[heavy].empty() ? -1 : heavy;
    }
    while (!heap_[0].empty() || !heap_[1].empty()) {
      const std::array<bool, 2> open{movable(0), movable(1)};
      if (open[0] && open[1]) {
        return heap_[0].key(heap_[0].top()) < heap_[1].key(heap_[1].top()) ? 1 : 0;
      }
      if (open[0] || open[1]) return open[0] ? 0 : 1;
      for (auto& heap : heap_) {
        if (!heap.empty()) heap.remove(heap.top());
      }
    }
    return -1;
  }

  bool movable(int s) const { return !heap_[s].empty() && fits(heap_[s].top(), 1 - s); }

  double side_overload(int s) const {
    double worst = -1;
    for (int c = 0; c < h_.constraints; ++c) {
      const double bound = static_cast<double>(std::max<std::int64_t>(1, bounds_[s][c]));
      worst = std::max(worst, static_cast<double>(weight_[s][c]) / bound - 1);
    }
    return worst;
  }

  bool run_pass(std::int32_t patience) {
    queue_boundary();
    std::vector<Vertex> moved;
    const double first_over = overload();
    const std::int64_t first_cut = cut_;
    double best_over = first_over;
    std::int64_t best_cut = cut_;
    std::size_t best = 0;
    double over = first_over;
    while (moved.size() < best + patience) {
      const int s = choose_side(over);
      if (s < 0) break;
      const Vertex v = heap_[s].top();
      heap_[s].remove(v);
      locked_[v] = 1;
      move(v);
      moved.push_back(v);
      over = overload();
      if (over < best_over || (over == best_over && cut_ < best_cut)) {
        best_over = over;
        best_cut = cut_;
        best = moved.size();
      }
    }
    while (moved.size() > best) {
      move(moved.back());
      moved.pop_back();
    }
    for (auto& heap : heap_) heap.clear();
    std::fill(locked_.begin(), locked_.end(), 0);
    return best_over < first_over || best_cut < first_cut;
  }

  const Hypergraph& h_;
  const Bounds& bounds_;
  Sides& side_;
  Random& random_;
  std::vector<std::array<std::int32_t, 2>> count_;
  std::vector<std::int64_t> gain_;
  std::vector<std::uint8_t> locked_;
  std::array<VertexHeap<Key>, 2> heap_;
  std::array<std::vector<std::int64_t>, 2> weight_;
  std::int64_t cut_ = 0;
};

// Grows side 0 from random vertices, refines, and keeps the best of several tries.
inline Sides bisect_coarsest(const Hypergraph& h, const Bounds& bounds,
                             const std::vector<std::int64_t>& target,
                             const BisectionOptions& options, Random& random) {
  Sides best;
  double best_over = std::numeric_limits<double>::max();
  std::int64_t best_cut = 0;
  for (int attempt = 0; attempt < options.tries; ++attempt) {
    Sides side(h.num_vertices, 1);
    NetBisectionRefiner refiner(h, bounds, side, random);
    refiner.grow(static_cast<Vertex>(random.below(static_cast<std::uint32_t>(h.num_vertices))),
                 target);
    refiner.run(options.passes, options.patience);
    const double over = refiner.overload();
    if (over < best_over || (over == best_over && refiner.cut() < best_cut)) {
      best = std::move(side);
      best_over = over;
      best_cut = refiner.cut();
    }
  }
  return best;
}

// Splits h in two sides of at most `bounds`, side 0 aiming at weight `target`.
inline Sides bisect(const Hypergraph& h, const Bounds& bounds,
                    const std::vector<std::int64_t>& target, const BisectionOptions& options,
                    Random& random) {
  constexpr Vertex kCoarsest = 120;
  CoarsenOptions coarsening;
  coarsening.rooted = false;
  coarsening.pair_budget = 12;
  for (std::int64_t total : h.total_weight()) coarsening.max_weight.push_back(total / 40 + 1);
  const std::vector<Level> levels = coarsen(h, coarsening, kCoarsest, random);
  const Hypergraph& coarsest = levels.empty() ? h : levels.back().coarse;
  Sides side = bisect_coarsest(coarsest, bounds, target, options, random);
  for (std::size_t i = levels.size(); i-- > 0;) {
    const Hypergraph& finer = i == 0 ? h : levels[i - 1].coarse;
    Sides projected(finer.num_vertices);
    for (Vertex v = 0; v < finer.num_vertices; ++v) projected[v] = side[levels[i].coarse_of[v]];
    side = std::move(projected);
    NetBisectionRefiner(finer, bounds, side, random).run(options.passes, options.patience);
  }
  return side;
}

}  // namespace spgnn::gvb
