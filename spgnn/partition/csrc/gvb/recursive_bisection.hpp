// k parts by one bisection after another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cut_bisection.hpp"
#include "net_bisection.hpp"
#include "random.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

// Graph: CutGraph or Hypergraph, each with a `bisect` and an `induced` of its own.
template <class Graph>
class RecursiveBisection {
 public:
  // max_weight: bound of a part per constraint. options.tries are those of the first bisection; the
  // later ones are many and decide less, so they get fewer: as many as the root of their share.
  RecursiveBisection(std::vector<std::int64_t> max_weight, BisectionOptions options)
      : max_weight_(std::move(max_weight)), options_(options) {}

  std::vector<Part> operator()(const Graph& graph, Part parts, const Random& random) {
    labels_.assign(graph.num_vertices, 0);
    whole_ = parts;
    std::vector<Vertex> all(graph.num_vertices);
    std::iota(all.begin(), all.end(), 0);
    split(graph, all, 0, parts, random);
    return std::move(labels_);
  }

 private:
  // Labels `vertices` (vertex i of the graph is vertices[i] of the whole) with
  // [first, first + parts).
  void split(const Graph& graph, const std::vector<Vertex>& vertices, Part first, Part parts,
             const Random& random) {
    if (parts == 1 || graph.num_vertices == 0) {
      for (Vertex v : vertices) labels_[v] = first;
      return;
    }
    const Part left = parts / 2;
    Random own = random.split(static_cast<std::uint64_t>(first) << 20 | parts);
    const auto [bounds, target] = bounds_of_sides(graph.total_weight(), max_weight_, left, parts);
    const Sides side = bisect(graph, bounds, target, options_for(parts), own);
    for (int s = 0; s < 2; ++s) {
      std::vector<Vertex> members;
      for (Vertex v = 0; v < graph.num_vertices; ++v) {
        if (side[v] == s) members.push_back(vertices[v]);
      }
      split(induced(graph, side, s), members, s == 0 ? first : first + left,
            s == 0 ? left : parts - left, random);
    }
  }

  BisectionOptions options_for(Part parts) const {
    constexpr int kLeast = 6;
    const double share = std::sqrt(static_cast<double>(parts) / whole_);
    BisectionOptions options = options_;
    options.tries =
        std::min(options.tries, std::max(kLeast, static_cast<int>(options.tries * share)));
    return options;
  }

  std::vector<std::int64_t> max_weight_;
  BisectionOptions options_;
  Part whole_ = 1;
  std::vector<Part> labels_;
};

}  // namespace spgnn::gvb
