// Bisection, of a graph by cut edges and of a hypergraph by cut nets, and again of the halves.
#pragma once

#include "coarsen.hpp"
#include "parallel.hpp"

namespace spgnn::gvb {

using Sides = std::vector<u8>;

struct BisectionOptions {
  int tries = 20;      // growths on the coarsest level
  int passes = 6;      // of refinement per level
  i32 patience = 100;  // moves without improvement before a pass ends
  int threads = 1;     // the sides do not depend on it
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
// the parts [first, first + parts), whose shares are those of their bounds. Each further bisection
// may use up an equal share of the imbalance that is left (Schlag 2016).
inline std::pair<Bound, std::vector<i64>> bounds_of_sides(const std::vector<i64>& total_weight,
                                                          const Bound& max_weight, Part first,
                                                          Part left, Part parts) {
  const std::size_t m = total_weight.size();
  Bound bounds(2 * m);
  std::vector<i64> target;
  const double depth = std::ceil(std::log2(parts));
  for (std::size_t c = 0; c < m; ++c) {
    const auto sum = [&](Part begin, Part count) {
      double all = 0;
      for (Part p = begin; p < begin + count; ++p) {
        all += static_cast<double>(max_weight[p * m + c]);
      }
      return all;
    };
    const double weight = static_cast<double>(total_weight[c]), all = sum(first, parts);
    const double room = all / std::max(weight, 1.0);
    const double factor = std::max(1.0, std::pow(room, 1 / depth));
    const double left_weight = weight * sum(first, left) / std::max(all, 1.0);
    target.push_back(static_cast<i64>(left_weight));
    bounds[c] = static_cast<i64>(std::ceil(left_weight * factor));
    bounds[m + c] = static_cast<i64>(std::ceil((weight - left_weight) * factor));
  }
  return {bounds, target};
}

// The weights of the two sides against their bounds.
class SideWeights {
 public:
  SideWeights(const WeightedVertices& vertices, const Bound& bounds, const Sides& side)
      : constraints_(vertices.constraints), bounds_(bounds), weight_(vertices, side, 2) {}

  void move(Vertex v, int from) { weight_.move(v, from, 1 - from); }
  bool fits(Vertex v, int s) const { return weight_.fits(v, s, bounds_); }

  bool reaches(int s, const std::vector<i64>& target) const {
    for (int c = 0; c < constraints_; ++c) {
      if (weight_(s, c) >= target[c]) return true;
    }
    return false;
  }

  // How far the sides exceed their bounds, summed as shares of the bounds.
  double overload() const {
    double sum = 0;
    for (int s = 0; s < 2; ++s) {
      for (int c = 0; c < constraints_; ++c) {
        if (weight_(s, c) > bounds_[s * constraints_ + c]) sum += excess(s, c);
      }
    }
    return sum;
  }

  // The side with the constraint that is closest to its bound, or farthest above it.
  int fuller() const { return worst_excess(0) >= worst_excess(1) ? 0 : 1; }

 private:
  double excess(int s, int c) const {
    const i64 bound = bounds_[s * constraints_ + c];
    return static_cast<double>(weight_(s, c) - bound) /
           static_cast<double>(std::max<i64>(1, bound));
  }

  double worst_excess(int s) const {
    double worst = -1;
    for (int c = 0; c < constraints_; ++c) worst = std::max(worst, excess(s, c));
    return worst;
  }

  int constraints_;
  const Bound& bounds_;
  PartWeights weight_;
};

// Moves vertices across to lower the cut, within the bounds; fixed ones stay. A Cut has
//   bool kStartFits            whether growth must start from a vertex that side 0 can take
//   i64 measure(gain)          fills in what moving each vertex takes off the cut; returns the cut
//   bool on_boundary(v, gain)  whether v, of this gain, is at a cut edge or net
//   void move(v, to, change)   calls change(u, by) for every other vertex whose gain changes
template <class Cut> class TwoWayRefiner {
 public:
  using Graph = typename Cut::Graph;

  TwoWayRefiner(const Graph& graph, const Bound& bounds, Sides& side, Random& random)
      : graph_(graph), num_vertices_(graph.num_vertices), side_(side), random_(random),
        weights_(graph, bounds, side), cut_(graph, side), gain_(num_vertices_, 0),
        locked_(num_vertices_, 0),
        heap_{VertexHeap<Key>(num_vertices_), VertexHeap<Key>(num_vertices_)},
        cut_weight_(cut_.measure(gain_)) {
    unlock();
  }

  // How good the sides are, less is better: first the overload, then the cut.
  using Score = std::pair<double, i64>;
  Score score() const { return {weights_.overload(), cut_weight_}; }

  // Passes until one brings nothing; each moves every vertex at most once and keeps its best state.
  void run(int max_passes, i32 patience) {
    for (int pass = 0; pass < max_passes && run_pass(patience); ++pass) {}
  }

  // Moves vertices from side 1 to side 0, best gain first, until side 0 has its share.
  void grow(const std::vector<i64>& target) {
    auto& heap = heap_[1];
    if (!graph_.fixed.empty()) {
      if (weights_.reaches(0, target)) return;
      queue_boundary();
    }
    for (Vertex v = heap.empty() ? any_for_growth(Cut::kStartFits) : heap.top(); v >= 0;) {
      lock_and_move(v);
      if (weights_.reaches(0, target)) break;
      while (!heap.empty() && !weights_.fits(heap.top(), 0)) heap.remove(heap.top());
      v = heap.empty() ? any_for_growth(true) : heap.top();
    }
    unlock();
  }

 private:
  using Key = std::pair<i64, u32>;  // gain, then chance

  void unlock() {
    for (auto& heap : heap_) heap.clear();
    for (Vertex v = 0; v < num_vertices_; ++v) locked_[v] = graph_.is_fixed(v);
  }

  // The first of side 1 (that side 0 can take, if it must fit) from a random one on; -1: none.
  Vertex any_for_growth(bool must_fit) {
    const auto first = static_cast<Vertex>(random_.below(static_cast<u32>(num_vertices_)));
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
        heap.contains(v) ? heap.key(v).second : static_cast<u32>(random_.next() >> 32);
    heap.set(v, {gain_[v], chance});
  }

  void queue_boundary() {
    const bool all = weights_.overload() > 0;
    for (Vertex v = 0; v < num_vertices_; ++v) {
      if (!locked_[v] && (all || cut_.on_boundary(v, gain_[v]))) queue(v);
    }
  }

  // Calls changed(u) for the vertices whose gain changes.
  template <class Changed> void move(Vertex v, const Changed& changed) {
    const int from = side_[v], to = 1 - from;
    side_[v] = static_cast<u8>(to);
    weights_.move(v, from);
    cut_weight_ -= gain_[v];
    gain_[v] = -gain_[v];
    cut_.move(v, to, [&](Vertex u, i64 by) {
      gain_[u] += by;
      changed(u);
    });
  }

  void lock_and_move(Vertex v) {
    auto& heap = heap_[side_[v]];
    if (heap.contains(v)) heap.remove(v);
    locked_[v] = 1;
    move(v, [this](Vertex u) {
      if (!locked_[u]) queue(u);
    });
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

  bool run_pass(i32 patience) {
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
    for (; moved.size() > best_length; moved.pop_back()) move(moved.back(), [](Vertex) {});
    unlock();
    return best < first;
  }

  const Graph& graph_;
  const Vertex num_vertices_;
  Sides& side_;
  Random& random_;
  SideWeights weights_;
  Cut cut_;
  std::vector<i64> gain_;
  std::vector<u8> locked_;
  std::array<VertexHeap<Key>, 2> heap_;
  i64 cut_weight_;
};

// Grows side 0 from random vertices, refines, and keeps the best of several tries.
template <class Cut>
Sides bisect_coarsest(const typename Cut::Graph& graph, const Bound& bounds,
                      const std::vector<i64>& target, const BisectionOptions& options,
                      Random& random) {
  Sides best;
  typename TwoWayRefiner<Cut>::Score best_score{std::numeric_limits<double>::max(), 0};
  for (int attempt = 0; attempt < options.tries; ++attempt) {
    Sides side(graph.num_vertices, 1);
    for (Vertex v = 0; v < std::ssize(graph.fixed); ++v) side[v] = graph.fixed[v] != 0;
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

// Two sides of at most `bounds`, side 0 aiming at `target`: bisects the coarsest level and refines.
template <class Cut>
Sides bisect_levels(const typename Cut::Graph& graph, CoarsenOptions coarsening, Vertex stop_at,
                    const Bound& bounds, const std::vector<i64>& target,
                    const BisectionOptions& options, Random& random) {
  // What is around a fixed vertex goes where that is, and not only its own edges.
  coarsening.join_fixed = true;
  const auto levels = coarsen(graph, coarsening, stop_at, random);
  Sides side = bisect_coarsest<Cut>(coarsest(graph, levels), bounds, target, options, random);
  return uncoarsen(graph, levels, std::move(side), [&](const auto& finer, Sides& sides) {
    TwoWayRefiner<Cut>(finer, bounds, sides, random).run(options.passes, options.patience);
  });
}

// Two-way partitions of a graph: the cost of cut edges, and a multilevel bisection for it.

// The weight of the edges between the sides, as TwoWayRefiner wants it.
class EdgeCut {
 public:
  using Graph = CutGraph;
  static constexpr bool kStartFits = true;

  EdgeCut(const CutGraph& graph, const Sides& side)
      : graph_(graph), side_(side), inner_gain_(graph.num_vertices, 0) {}

  i64 measure(std::vector<i64>& gain) {
    i64 twice = 0;  // every edge is seen from both ends
    for (Vertex v = 0; v < graph_.num_vertices; ++v) {
      i64 all = 0, across = 0;
      for (const auto [u, w] : graph_.edges_of(v)) {
        all += w;
        across += side_[u] == side_[v] ? 0 : w;
      }
      inner_gain_[v] = -all;
      gain[v] = 2 * across - all;
      twice += across;
    }
    return twice / 2;
  }

  bool on_boundary(Vertex v, i64 gain) const { return gain > inner_gain_[v]; }

  template <class Change> void move(Vertex v, int to, const Change& change) const {
    for (const auto [u, w] : graph_.edges_of(v)) {
      change(u, side_[u] == to ? -2 * i64{w} : 2 * i64{w});
    }
  }

 private:
  const CutGraph& graph_;
  const Sides& side_;
  std::vector<i64> inner_gain_;  // of a vertex with no cut edge
};

// Splits a graph in two sides of at most `bounds`, side 0 aiming at weight `target`.
inline Sides bisect(const CutGraph& graph, const Bound& bounds, const std::vector<i64>& target,
                    const BisectionOptions& options, Random& random) {
  constexpr Vertex kCoarsest = 80;
  CoarsenOptions coarsening;
  for (i64 total : graph.total_weight()) {
    coarsening.max_weight.push_back(total * 3 / 2 / kCoarsest + 1);
  }
  return bisect_levels<EdgeCut>(graph, coarsening, kCoarsest, bounds, target, options, random);
}

// The subgraph of one side; vertices keep their order.
inline CutGraph induced(const CutGraph& graph, const Sides& side, int s) {
  std::vector<Vertex> id;
  CutGraph half{vertices_of_side(graph, side, s, id)};
  for (Vertex v = 0; v < graph.num_vertices; ++v) {
    if (side[v] != s) continue;
    for (const auto [u, w] : graph.edges_of(v)) {
      if (side[u] == s) half.edges.push_back({id[u], w});
    }
    half.begin.push_back(std::ssize(half.edges));
  }
  return half;
}

// Two-way partitions of a hypergraph: the cost of cut nets, and a multilevel bisection for it.

// The weight of the nets with pins on both sides, as TwoWayRefiner wants it.
class NetCut {
 public:
  using Graph = Hypergraph;
  static constexpr bool kStartFits = false;

  NetCut(const Hypergraph& h, const Sides& side) : h_(h), side_(side), count_(h.num_nets()) {
    for (Net e = 0; e < h.num_nets(); ++e) {
      for (Vertex v : h.pins_of(e)) ++count_[e][side[v]];
    }
  }

  i64 measure(std::vector<i64>& gain) const {
    i64 cut = 0;
    for (Net e = 0; e < h_.num_nets(); ++e) {
      if (is_cut(e)) cut += h_.net_weight[e];
    }
    for (Vertex v = 0; v < h_.num_vertices; ++v) {
      const int s = side_[v];
      for (Net e : h_.nets_of(v)) {
        if (count_[e][s] == 1) gain[v] += h_.net_weight[e];
        if (count_[e][1 - s] == 0) gain[v] -= h_.net_weight[e];
      }
    }
    return cut;
  }

  bool on_boundary(Vertex v, i64) const {
    const auto nets = h_.nets_of(v);
    return std::any_of(nets.begin(), nets.end(), [&](Net e) { return is_cut(e); });
  }

  template <class Change> void move(Vertex v, int to, const Change& change) {
    const int from = 1 - to;
    for (Net e : h_.nets_of(v)) {
      const i64 w = h_.net_weight[e];
      auto& count = count_[e];
      if (count[to] == 0) {
        change_all(e, v, w, change);
      } else if (count[to] == 1) {
        change_lone(e, v, to, -w, change);
      }
      --count[from];
      ++count[to];
      if (count[from] == 0) {
        change_all(e, v, -w, change);
      } else if (count[from] == 1) {
        change_lone(e, v, from, w, change);
      }
    }
  }

 private:
  bool is_cut(Net e) const { return count_[e][0] > 0 && count_[e][1] > 0; }

  template <class Change>
  void change_all(Net e, Vertex except, i64 by, const Change& change) const {
    for (Vertex u : h_.pins_of(e)) {
      if (u != except) change(u, by);
    }
  }

  template <class Change>
  void change_lone(Net e, Vertex except, int s, i64 by, const Change& change) const {
    for (Vertex u : h_.pins_of(e)) {
      if (u == except || side_[u] != s) continue;
      change(u, by);
      return;
    }
  }

  const Hypergraph& h_;
  const Sides& side_;
  std::vector<std::array<i32, 2>> count_;  // pins of each net on either side
};

// Splits h in two sides of at most `bounds`, side 0 aiming at weight `target`.
inline Sides bisect(const Hypergraph& h, const Bound& bounds, const std::vector<i64>& target,
                    const BisectionOptions& options, Random& random) {
  constexpr Vertex kCoarsest = 120;
  CoarsenOptions coarsening;
  coarsening.rooted = false;
  coarsening.pair_budget = 12;
  for (i64 total : h.total_weight()) coarsening.max_weight.push_back(total / 40 + 1);
  return bisect_levels<NetCut>(h, coarsening, kCoarsest, bounds, target, options, random);
}

// The part of h on one side; nets keep their pins there.
inline Hypergraph induced(const Hypergraph& h, const Sides& side, int s) {
  std::vector<Vertex> id;
  Hypergraph half{vertices_of_side(h, side, s, id)};
  for (Net e = 0; e < h.num_nets(); ++e) {
    for (Vertex v : h.pins_of(e)) {
      if (id[v] >= 0) half.pins.push_back(id[v]);
    }
    half.close_net(h.net_weight[e]);
  }
  half.num_scatter = half.num_nets();
  half.build_incidence();
  return half;
}

// k parts by one bisection after another.

// Graph: CutGraph or Hypergraph, each with a `bisect` and an `induced` of its own.
template <class Graph> class RecursiveBisection {
 public:
  // options.tries: of the first bisection; later ones get as many as the root of their share.
  RecursiveBisection(Bound max_weight, BisectionOptions options)
      : max_weight_(std::move(max_weight)), options_(options) {}

  std::vector<Part> operator()(const Graph& graph, Part parts, const Random& random) {
    labels_.assign(graph.num_vertices, 0);
    fixed_ = graph.fixed;
    whole_ = parts;
    std::vector<Vertex> all(graph.num_vertices);
    std::iota(all.begin(), all.end(), 0);
    split(Graph(graph), all, 0, parts, random, options_.threads);
    return std::move(labels_);
  }

 private:
  // Labels `vertices` (numbers in the whole) with [first, first + parts); halves side by side.
  void split(Graph graph, const std::vector<Vertex>& vertices, Part first, Part parts,
             const Random& random, int threads) {
    if (parts == 1 || graph.num_vertices == 0) {
      for (Vertex v : vertices) labels_[v] = first;
      return;
    }
    const Part left = parts / 2;
    Random own = random.split(static_cast<u64>(first) << 20 | parts);
    const auto [bounds, target] =
        bounds_of_sides(graph.total_weight(), max_weight_, first, left, parts);
    graph.fixed = fixed_sides(vertices, first + left);
    const Sides side = bisect(graph, bounds, target, options_for(parts), own);
    parallel_chunks(2, threads, [&](i64 s, int) {
      std::vector<Vertex> members;
      for (Vertex v = 0; v < graph.num_vertices; ++v) {
        if (side[v] == s) members.push_back(vertices[v]);
      }
      split(induced(graph, side, static_cast<int>(s)), members, s == 0 ? first : first + left,
            s == 0 ? left : parts - left, random, threads / 2);
    });
  }

  // The side of each vertex that is fixed to a part, where parts from `middle` on are side 1.
  std::vector<Part> fixed_sides(const std::vector<Vertex>& vertices, Part middle) const {
    std::vector<Part> sides;
    if (fixed_.empty()) return sides;
    for (Vertex v : vertices) sides.push_back(fixed_[v] < 0 ? -1 : fixed_[v] >= middle);
    return sides;
  }

  BisectionOptions options_for(Part parts) const {
    constexpr int kLeast = 6;
    const double share = std::sqrt(static_cast<double>(parts) / whole_);
    BisectionOptions options = options_;
    options.tries =
        std::min(options.tries, std::max(kLeast, static_cast<int>(options.tries * share)));
    return options;
  }

  Bound max_weight_;
  BisectionOptions options_;
  std::vector<Part> fixed_;  // of the whole graph
  Part whole_ = 1;
  std::vector<Part> labels_;
};

}  // namespace spgnn::gvb
