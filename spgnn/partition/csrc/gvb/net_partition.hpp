// A first k-way partition by recursive bisection of the hypergraph: the true volume, at a price.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "net_bisection.hpp"

namespace spgnn::gvb {

class NetRecursiveBisection {
 public:
  // max_weight: bound of a part per constraint.
  NetRecursiveBisection(std::vector<std::int64_t> max_weight, BisectionOptions options)
      : max_weight_(std::move(max_weight)), options_(options) {}

  std::vector<Part> operator()(const Hypergraph& h, Part parts, const Random& random) {
    labels_.assign(h.num_vertices, 0);
    std::vector<Vertex> all(h.num_vertices);
    std::iota(all.begin(), all.end(), 0);
    split(h, all, 0, parts, random);
    return std::move(labels_);
  }

 private:
  // Labels `vertices` (vertex i of h is vertices[i] of the whole) with [first, first + parts).
  void split(const Hypergraph& h, const std::vector<Vertex>& vertices, Part first, Part parts,
             const Random& random) {
    if (parts == 1 || h.num_vertices == 0) {
      for (Vertex v : vertices) labels_[v] = first;
      return;
    }
    const Part left = parts / 2;
    Random own = random.split(static_cast<std::uint64_t>(first) << 20 | parts);
    const auto [bounds, target] = bounds_of_sides(h.total_weight(), max_weight_, left, parts);
    const Sides side = bisect(h, bounds, target, options_, own);
    std::array<Hypergraph, 2> half;
    std::array<std::vector<Vertex>, 2> members;
    for (int s = 0; s < 2; ++s) half[s] = induced(h, side, s, vertices, members[s]);
    split(half[0], members[0], first, left, random);
    split(half[1], members[1], first + left, parts - left, random);
  }

  // The part of h on one side; nets keep their pins there, those with fewer than two are dropped.
  static Hypergraph induced(const Hypergraph& h, const Sides& side, int s,
                            const std::vector<Vertex>& vertices, std::vector<Vertex>& members) {
    Hypergraph sub;
    sub.constraints = h.constraints;
    std::vector<Vertex> id(h.num_vertices, -1);
    for (Vertex v = 0; v < h.num_vertices; ++v) {
      if (side[v] != s) continue;
      id[v] = sub.num_vertices++;
      members.push_back(vertices[v]);
      for (std::int64_t weight : h.weight_of(v)) sub.vertex_weight.push_back(weight);
    }
    for (Net e = 0; e < h.num_nets(); ++e) {
      const auto begin = sub.pins.size();
      for (Vertex v : h.pins_of(e)) {
        if (id[v] >= 0) sub.pins.push_back(id[v]);
      }
      if (sub.pins.size() - begin < 2) {
        sub.pins.resize(begin);
      } else {
        sub.close_net(h.net_weight[e]);
      }
    }
    sub.num_scatter = sub.num_nets();
    sub.build_incidence();
    return sub;
  }

  std::vector<std::int64_t> max_weight_;
  BisectionOptions options_;
  std::vector<Part> labels_;
};

}  // namespace spgnn::gvb
