// Two-way partitions of a hypergraph: the cost of cut nets, and a multilevel bisection for it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "hypergraph.hpp"
#include "random.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

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

  std::int64_t measure(std::vector<std::int64_t>& gain) const {
    std::int64_t cut = 0;
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

  bool on_boundary(Vertex v) const {
    const auto nets = h_.nets_of(v);
    return std::any_of(nets.begin(), nets.end(), [&](Net e) { return is_cut(e); });
  }

  template <class Change>
  void move(Vertex v, int to, const Change& change) {
    const int from = 1 - to;
    for (Net e : h_.nets_of(v)) {
      const std::int64_t w = h_.net_weight[e];
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
  void change_all(Net e, Vertex except, std::int64_t by, const Change& change) const {
    for (Vertex u : h_.pins_of(e)) {
      if (u != except) change(u, by);
    }
  }

  template <class Change>
  void change_lone(Net e, Vertex except, int s, std::int64_t by, const Change& change) const {
    for (Vertex u : h_.pins_of(e)) {
      if (u == except || side_[u] != s) continue;
      change(u, by);
      return;
    }
  }

  const Hypergraph& h_;
  const Sides& side_;
  std::vector<std::array<std::int32_t, 2>> count_;  // pins of each net on either side
};

// Splits h in two sides of at most `bounds`, side 0 aiming at weight `target`.
inline Sides bisect(const Hypergraph& h, const Bounds& bounds,
                    const std::vector<std::int64_t>& target, const BisectionOptions& options,
                    Random& random) {
  constexpr Vertex kCoarsest = 120;
  CoarsenOptions coarsening;
  coarsening.rooted = false;
  coarsening.pair_budget = 12;
  for (std::int64_t total : h.total_weight()) coarsening.max_weight.push_back(total / 40 + 1);
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

}  // namespace spgnn::gvb
