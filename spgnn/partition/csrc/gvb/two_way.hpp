// Two-way partitioning, whatever is cut: bounds of the two sides, refinement after Fiduccia &
// Mattheyses (1982), and the multilevel scheme around it. What a cut costs is a `Cut`: EdgeCut of
// cut_bisection.hpp for graphs, NetCut of net_bisection.hpp for hypergraphs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "coarsen.hpp"
#include "heap.hpp"
#include "random.hpp"

namespace spgnn::gvb {

using Sides = std::vector<std::uint8_t>;
using Bounds = std::array<Bound, 2>;  // of either side

struct BisectionOptions {
  int tries = 20;               // growths on the coarsest level
  int passes = 6;               // of refinement per level
  std::int32_t patience = 100;  // moves without improvement before a pass ends
};

// The vertices of one side, in their order; `id` becomes their numbers, -1 for the others.
inline WeightedVertices vertices_of_side(const WeightedVertices& vertices, const Sides& side, int s,
                                         std::vector<Vertex>& id) {
  WeightedVertices half{0, vertices.constraints, {}};
  id.assign(side.size(), -1);
  for (Vertex v = 0; v < vertices.num_vertices; ++v) {
    if (side[v] != s) continue;
    id[v] = half.num_vertices++;
    const auto weight = vertices.weight_of(v);
    half.vertex_weight.insert(half.vertex_weight.end(), weight.begin(), weight.end());
  }
  return half;
}

// Bounds of the two sides, and the weight side 0 aims at, where side 0 will be cut into `left` of
// `parts` parts. Each further bisection may use up an equal share of the imbalance that is left
// (Schlag 2016).
inline std::pair<Bounds, std::vector<std::int64_t>> bounds_of_sides(
    const std::vector<std::int64_t>& total_weight, const Bound& max_weight, Part left, Part parts) {
  Bounds bounds;
  std::vector<std::int64_t> target;
  const double depth = std::ceil(std::log2(parts));
  for (std::size_t c = 0; c < total_weight.size(); ++c) {
    const auto weight = static_cast<double>(total_weight[c]);
    const double room = static_cast<double>(max_weight[c]) * parts / std::max(weight, 1.0);
    const double factor = std::max(1.0, std::pow(room, 1 / depth));
    const double left_weight = weight * left / parts;
    target.push_back(static_cast<std::int64_t>(left_weight));
    bounds[0].push_back(static_cast<std::int64_t>(std::ceil(left_weight * factor)));
    bounds[1].push_back(static_cast<std::int64_t>(std::ceil((weight - left_weight) * factor)));
  }
  return {bounds, target};
}

// The weights of the two sides against their bounds.
class SideWeights {
 public:
  SideWeights(const WeightedVertices& vertices, const Bounds& bounds, const Sides& side)
      : constraints_(vertices.constraints), bounds_(bounds), weight_(vertices, side, 2) {}

  void move(Vertex v, int from) { weight_.move(v, from, 1 - from); }
  bool fits(Vertex v, int s) const { return weight_.fits(v, s, bounds_[s]); }

  bool reaches(int s, const std::vector<std::int64_t>& target) const {
    for (int c = 0; c < constraints_; ++c) {
      if (weight_(s, c) >= target[c]) return true;
    }
    return false;
  }

  // How far the sides exceed their bounds, summed as shares of the bounds.
  double overload() const {
    double sum = 0;
    for (int s = 0; s < 2; ++s) {
      for (int c = 0; c < constraints_; ++c) sum += std::max(0.0, excess(s, c));
    }
    return sum;
  }

  // The side with the constraint that is closest to its bound, or farthest above it.
  int fuller() const { return worst_excess(0) >= worst_excess(1) ? 0 : 1; }

 private:
  double excess(int s, int c) const {
    return static_cast<double>(weight_(s, c) - bounds_[s][c]) /
           static_cast<double>(std::max<std::int64_t>(1, bounds_[s][c]));
  }

  double worst_excess(int s) const {
    double worst = -1;
    for (int c = 0; c < constraints_; ++c) worst = std::max(worst, excess(s, c));
    return worst;
  }

  int constraints_;
  const Bounds& bounds_;
  PartWeights weight_;
};

// Moves vertices across to lower the cut, within the bounds. A Cut, made from a graph and its
// sides, has
//   bool kStartFits               whether growth must start from a vertex that side 0 can take
//   std::int64_t measure(gain)    fills in what moving each vertex would take off the cut; returns
//                                 the cut
//   bool on_boundary(v)           whether v is at a cut edge or net
//   void move(v, to, change)      calls change(u, by) for every other vertex u whose gain changes
//                                 as v goes to side `to`, as often as it changes
template <class Cut>
class TwoWayRefiner {
 public:
  using Graph = typename Cut::Graph;

  TwoWayRefiner(const Graph& graph, const Bounds& bounds, Sides& side, Random& random)
      : num_vertices_(graph.num_vertices),
        side_(side),
        random_(random),
        weights_(graph, bounds, side),
        cut_(graph, side),
        gain_(num_vertices_, 0),
        locked_(num_vertices_, 0),
        heap_{VertexHeap<Key>(num_vertices_), VertexHeap<Key>(num_vertices_)},
        cut_weight_(cut_.measure(gain_)) {}

  // How good the sides are, less is better: first the overload, then the cut.
  using Score = std::pair<double, std::int64_t>;
  Score score() const { return {weights_.overload(), cut_weight_}; }

  // Passes until one brings nothing; each moves every vertex at most once and keeps its best state.
  void run(int max_passes, std::int32_t patience) {
    for (int pass = 0; pass < max_passes && run_pass(patience); ++pass) {
    }
  }

  // Moves vertices from side 1 to side 0, best gain first, until side 0 has its share.
  void grow(const std::vector<std::int64_t>& target) {
    auto& heap = heap_[1];
    for (Vertex v = any_for_growth(Cut::kStartFits); v >= 0;) {
      lock_and_move(v);
      if (weights_.reaches(0, target)) break;
      while (!heap.empty() && !weights_.fits(heap.top(), 0)) heap.remove(heap.top());
      v = heap.empty() ? any_for_growth(true) : heap.top();
    }
    unlock();
  }

 private:
  using Key = std::pair<std::int64_t, std::uint32_t>;  // gain, then chance

  void unlock() {
    for (auto& heap : heap_) heap.clear();
    std::fill(locked_.begin(), locked_.end(), 0);
  }

  // The first vertex of side 1, and if it must fit one that side 0 can take, counted from a random
  // one; -1 if there is none.
  Vertex any_for_growth(bool must_fit) {
    const auto first =
        static_cast<Vertex>(random_.below(static_cast<std::uint32_t>(num_vertices_)));
    for (Vertex i = 0; i < num_vertices_; ++i) {
      const Vertex v = (first + i) % num_vertices_;
      if (!locked_[v] && side_[v] == 1 && (!must_fit || weights_.fits(v, 0))) return v;
    }
    return -1;
  }

  void queue(Vertex v) {
    auto& heap = heap_[side_[v]];
    // Keep the tie-breaking number of a vertex that is already queued.
    const auto chance =
        heap.contains(v) ? heap.key(v).second : static_cast<std::uint32_t>(random_.next() >> 32);
    heap.set(v, {gain_[v], chance});
  }

  void queue_boundary() {
    const bool all = weights_.overload() > 0;
    for (Vertex v = 0; v < num_vertices_; ++v) {
      if (all || cut_.on_boundary(v)) queue(v);
    }
  }

  void move(Vertex v) {
    const int from = side_[v], to = 1 - from;
    side_[v] = static_cast<std::uint8_t>(to);
    weights_.move(v, from);
    cut_weight_ -= gain_[v];
    gain_[v] = -gain_[v];
    cut_.move(v, to, [this](Vertex u, std::int64_t by) {
      gain_[u] += by;
      if (!locked_[u]) queue(u);
    });
  }

  void lock_and_move(Vertex v) {
    auto& heap = heap_[side_[v]];
    if (heap.contains(v)) heap.remove(v);
    locked_[v] = 1;
    move(v);
  }

  bool movable(int s) const { return !heap_[s].empty() && weights_.fits(heap_[s].top(), 1 - s); }

  // The side to take the next vertex from: an overloaded one, else the one with the higher gain.
  int choose_side(double overload) {
    if (overload > 0) {
      const int full = weights_.fuller();
      return heap_[full].empty() ? -1 : full;
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

  bool run_pass(std::int32_t patience) {
    queue_boundary();
    std::vector<Vertex> moved;
    const Score first = score();
    Score now = first, best = first;
    std::size_t best_length = 0;
    while (moved.size() < best_length + patience) {
      const int s = choose_side(now.first);
      if (s < 0) break;
      moved.push_back(heap_[s].top());
      lock_and_move(moved.back());
      now = score();
      if (now < best) {
        best = now;
        best_length = moved.size();
      }
    }
    for (; moved.size() > best_length; moved.pop_back()) move(moved.back());
    unlock();
    return best < first;
  }

  const Vertex num_vertices_;
  Sides& side_;
  Random& random_;
  SideWeights weights_;
  Cut cut_;
  std::vector<std::int64_t> gain_;
  std::vector<std::uint8_t> locked_;
  std::array<VertexHeap<Key>, 2> heap_;
  std::int64_t cut_weight_;
};

// Grows side 0 from random vertices, refines, and keeps the best of several tries.
template <class Cut>
Sides bisect_coarsest(const typename Cut::Graph& graph, const Bounds& bounds,
                      const std::vector<std::int64_t>& target, const BisectionOptions& options,
                      Random& random) {
  Sides best;
  typename TwoWayRefiner<Cut>::Score best_score{std::numeric_limits<double>::max(), 0};
  for (int attempt = 0; attempt < options.tries; ++attempt) {
    Sides side(graph.num_vertices, 1);
    TwoWayRefiner<Cut> refiner(graph, bounds, side, random);
    refiner.grow(target);
    refiner.run(options.passes, options.patience);
    if (refiner.score() < best_score) {
      best_score = refiner.score();
      best = std::move(side);
    }
  }
  return best;
}

// Splits a graph in two sides of at most `bounds`, side 0 aiming at weight `target`: bisects the
// coarsest level, and refines on the way back.
template <class Cut>
Sides bisect_levels(const typename Cut::Graph& graph, const CoarsenOptions& coarsening,
                    Vertex stop_at, const Bounds& bounds, const std::vector<std::int64_t>& target,
                    const BisectionOptions& options, Random& random) {
  const auto levels = coarsen(graph, coarsening, stop_at, random);
  Sides side = bisect_coarsest<Cut>(coarsest(graph, levels), bounds, target, options, random);
  return uncoarsen(graph, levels, std::move(side), [&](const auto& finer, Sides& sides) {
    TwoWayRefiner<Cut>(finer, bounds, sides, random).run(options.passes, options.patience);
  });
}

}  // namespace spgnn::gvb
