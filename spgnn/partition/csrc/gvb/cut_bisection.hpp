// Edge-cut partitions of a small graph: multilevel recursive bisection.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cut_graph.hpp"
#include "heap.hpp"
#include "random.hpp"

namespace spgnn::gvb {

using Sides = std::vector<std::uint8_t>;
using Bounds =
    std::array<std::vector<std::int64_t>, 2>;  // largest weight of a side, per constraint

// Bounds of the two sides, and the weight side 0 aims at, where side 0 will be cut into `left` of
// `parts` parts. Each further bisection may use up an equal share of the imbalance that is left
// (Schlag 2016).
inline std::pair<Bounds, std::vector<std::int64_t>> bounds_of_sides(
    const std::vector<std::int64_t>& total_weight, const std::vector<std::int64_t>& max_weight,
    Part left, Part parts) {
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

// Two-way refinement after Fiduccia & Mattheyses (1982).
class CutBisectionRefiner {
 public:
  CutBisectionRefiner(const CutGraph& graph, const Bounds& bounds, Sides& side, Random& random)
      : graph_(graph),
        bounds_(bounds),
        side_(side),
        random_(random),
        gain_(graph.num_vertices, 0),
        locked_(graph.num_vertices, 0),
        heap_{VertexHeap<Key>(graph.num_vertices), VertexHeap<Key>(graph.num_vertices)} {
    for (auto& weight : weight_) weight.assign(graph.constraints, 0);
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      add_weight(v, side_[v], 1);
      for (const auto [u, w] : graph.edges_of(v)) {
        gain_[v] += side_[u] == side_[v] ? -w : w;
        if (side_[u] != side_[v]) cut_ += w;
      }
    }
    cut_ /= 2;
  }

  std::int64_t cut() const { return cut_; }

  // How far the sides exceed their bounds, summed as shares of the bounds.
  double overload() const {
    double sum = 0;
    for (int s = 0; s < 2; ++s) {
      for (int c = 0; c < graph_.constraints; ++c) sum += std::max(0.0, load(s, c) - 1);
    }
    return sum;
  }

  // Passes until one brings nothing; each moves every vertex at most once and keeps its best state.
  void run(int max_passes, std::int32_t patience) {
    for (int pass = 0; pass < max_passes && run_pass(patience); ++pass) {
    }
  }

  // Moves vertices from side 1 to side 0, best gain first, until side 0 has its share.
  void grow(const std::vector<std::int64_t>& target) {
    auto& heap = heap_[1];
    for (Vertex v = any_unlocked(); v >= 0;) {
      move(v);
      locked_[v] = 1;
      bool done = false;
      for (int c = 0; c < graph_.constraints; ++c) done |= weight_[0][c] >= target[c];
      if (done) break;
      while (!heap.empty() && !fits(heap.top(), 0)) heap.remove(heap.top());
      v = heap.empty() ? any_unlocked() : heap.top();
      if (v >= 0 && heap.contains(v)) heap.remove(v);
    }
    unlock();
  }

 private:
  using Key = std::pair<std::int64_t, std::uint32_t>;  // gain, then chance

  void unlock() {
    for (auto& heap : heap_) heap.clear();
    std::fill(locked_.begin(), locked_.end(), 0);
  }

  Vertex any_unlocked() {
    const Vertex n = graph_.num_vertices;
    const auto first = static_cast<Vertex>(random_.below(static_cast<std::uint32_t>(n)));
    for (Vertex i = 0; i < n; ++i) {
      const Vertex v = (first + i) % n;
      if (!locked_[v] && side_[v] == 1 && fits(v, 0)) return v;
    }
    return -1;
  }

  void add_weight(Vertex v, int side, int sign) {
    const auto weight = graph_.weight_of(v);
    for (int c = 0; c < graph_.constraints; ++c) weight_[side][c] += sign * weight[c];
  }

  bool fits(Vertex v, int side) const {
    const auto weight = graph_.weight_of(v);
    for (int c = 0; c < graph_.constraints; ++c) {
      if (weight_[side][c] + weight[c] > bounds_[side][c]) return false;
    }
    return true;
  }

  double load(int s, int c) const {
    return static_cast<double>(weight_[s][c]) /
           static_cast<double>(std::max<std::int64_t>(1, bounds_[s][c]));
  }

  void queue(Vertex v) {
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
    for (const auto [u, w] : graph_.edges_of(v)) {
      gain_[u] += side_[u] == to ? -2 * std::int64_t{w} : 2 * std::int64_t{w};
      if (!locked_[u]) queue(u);
    }
  }

  // The side to take the next vertex from: an overloaded one, else the one with the higher gain.
  int choose_side(double over) {
    if (over > 0) {
      const int heavy = worst_load(0) >= worst_load(1) ? 0 : 1;
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

  double worst_load(int s) const {
    double worst = 0;
    for (int c = 0; c < graph_.constraints; ++c) worst = std::max(worst, load(s, c));
    return worst;
  }

  void queue_boundary() {
    const bool all = overload() > 0;
    for (Vertex v = 0; v < graph_.num_vertices; ++v) {
      const auto edges = graph_.edges_of(v);
      const auto crosses = [&](const CutGraph::Edge& edge) { return side_[edge.to] != side_[v]; };
      if (all || std::any_of(edges.begin(), edges.end(), crosses)) queue(v);
    }
  }

  bool run_pass(std::int32_t patience) {
    queue_boundary();
    std::vector<Vertex> moved;
    const double first_over = overload();
    const std::int64_t first_cut = cut_;
    double over = first_over, best_over = first_over;
    std::int64_t best_cut = cut_;
    std::size_t best = 0;
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
    for (; moved.size() > best; moved.pop_back()) move(moved.back());
    unlock();
    return best_over < first_over || best_cut < first_cut;
  }

  const CutGraph& graph_;
  const Bounds& bounds_;
  Sides& side_;
  Random& random_;
  std::vector<std::int64_t> gain_;
  std::vector<std::uint8_t> locked_;
  std::array<VertexHeap<Key>, 2> heap_;
  std::array<std::vector<std::int64_t>, 2> weight_;
  std::int64_t cut_ = 0;
};

struct BisectionOptions {
  int tries = 20;               // growths on the coarsest level
  int passes = 6;               // of refinement per level
  std::int32_t patience = 100;  // moves without improvement before a pass ends
};

// Splits the vertices of a graph into parts by bisections, each multilevel.
class RecursiveBisection {
 public:
  // max_weight: bound of a part per constraint.
  RecursiveBisection(std::vector<std::int64_t> max_weight, BisectionOptions options)
      : max_weight_(std::move(max_weight)), options_(options) {}

  std::vector<Part> operator()(const CutGraph& graph, Part parts, const Random& random) {
    labels_.assign(graph.num_vertices, 0);
    std::vector<Vertex> all(graph.num_vertices);
    std::iota(all.begin(), all.end(), 0);
    split(graph, all, 0, parts, random);
    return std::move(labels_);
  }

 private:
  // Labels `vertices` (vertex i of the graph is vertices[i] of the whole) with
  // [first, first + parts).
  void split(const CutGraph& graph, const std::vector<Vertex>& vertices, Part first, Part parts,
             const Random& random) {
    if (parts == 1 || graph.num_vertices == 0) {
      for (Vertex v : vertices) labels_[v] = first;
      return;
    }
    const Part left = parts / 2;
    Random own = random.split(static_cast<std::uint64_t>(first) << 20 | parts);
    const Sides side = bisect(graph, left, parts, own);
    for (int s = 0; s < 2; ++s) {
      std::vector<Vertex> members;
      const CutGraph half = induced(graph, side, s, vertices, members);
      split(half, members, s == 0 ? first : first + left, s == 0 ? left : parts - left, random);
    }
  }

  Sides bisect(const CutGraph& graph, Part left, Part parts, Random& random) const {
    constexpr Vertex kCoarsest = 80;
    const auto [bounds, target] = bounds_of_sides(graph.total_weight(), max_weight_, left, parts);
    std::vector<std::int64_t> heaviest = graph.total_weight();
    for (std::int64_t& weight : heaviest) weight = weight * 3 / 2 / kCoarsest + 1;
    const std::vector<CutLevel> levels = coarsen(graph, kCoarsest, heaviest, random);
    Sides side =
        bisect_coarsest(levels.empty() ? graph : levels.back().coarse, bounds, target, random);
    for (std::size_t i = levels.size(); i-- > 0;) {
      const CutGraph& finer = i == 0 ? graph : levels[i - 1].coarse;
      Sides projected(finer.num_vertices);
      for (Vertex v = 0; v < finer.num_vertices; ++v) projected[v] = side[levels[i].coarse_of[v]];
      side = std::move(projected);
      CutBisectionRefiner(finer, bounds, side, random).run(options_.passes, options_.patience);
    }
    return side;
  }

  // Grows side 0 from random vertices, refines, and keeps the best of several tries.
  Sides bisect_coarsest(const CutGraph& graph, const Bounds& bounds,
                        const std::vector<std::int64_t>& target, Random& random) const {
    Sides best;
    std::pair<double, std::int64_t> best_score{std::numeric_limits<double>::max(), 0};
    for (int attempt = 0; attempt < options_.tries; ++attempt) {
      Sides side(graph.num_vertices, 1);
      CutBisectionRefiner refiner(graph, bounds, side, random);
      refiner.grow(target);
      refiner.run(options_.passes, options_.patience);
      const std::pair<double, std::int64_t> score{refiner.overload(), refiner.cut()};
      if (score < best_score) {
        best = std::move(side);
        best_score = score;
      }
    }
    return best;
  }

  // The subgraph of one side.
  static CutGraph induced(const CutGraph& graph, const Sides& side, int s,
                          const std::vector<Vertex>& vertices, std::vector<Vertex>& members) {
    CutGraph half;
    half.constraints = graph.constraints;
    std::vector<Vertex> id(graph.num_vertices, -1);
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      if (side[v] == s) id[v] = half.num_vertices++;
    }
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      if (side[v] != s) continue;
      members.push_back(vertices[v]);
      const auto weight = graph.weight_of(v);
      half.vertex_weight.insert(half.vertex_weight.end(), weight.begin(), weight.end());
      for (const auto [u, w] : graph.edges_of(v)) {
        if (side[u] == s) half.edges.push_back({id[u], w});
      }
      half.begin.push_back(static_cast<std::int64_t>(half.edges.size()));
    }
    return half;
  }

  std::vector<std::int64_t> max_weight_;
  BisectionOptions options_;
  std::vector<Part> labels_;
};

}  // namespace spgnn::gvb
