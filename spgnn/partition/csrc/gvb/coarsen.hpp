// Coarsening, of graphs and hypergraphs alike: cluster vertices that belong together, contract the
// clusters, and so on; and the way back.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "contract.hpp"
#include "edge_matching.hpp"
#include "net_clustering.hpp"
#include "random.hpp"

namespace spgnn::gvb {

template <class Graph>
struct Level {
  Graph coarse;
  std::vector<Vertex> coarse_of;  // vertex of the next finer level -> vertex of `coarse`
};

// One step of coarsening; nothing where it would not shrink the graph any more.
template <class Graph>
std::optional<Level<Graph>> coarsen_once(const Graph& graph, const CoarsenOptions& options,
                                         Random& random) {
  constexpr double kStalled = 0.95;
  auto [coarse_of, count] = cluster(graph, options, random);
  if (count > kStalled * graph.num_vertices) return std::nullopt;
  if constexpr (std::is_same_v<Graph, Hypergraph>) {
    Graph coarse = contract(graph, coarse_of, count, options.rooted);
    return Level<Graph>{std::move(coarse), std::move(coarse_of)};
  } else {
    Graph coarse = contract(graph, coarse_of, count);
    return Level<Graph>{std::move(coarse), std::move(coarse_of)};
  }
}

// A graph that has nearly as many edges as the one it was made from need not be kept: where edges
// are spread at random, ten such levels would take ten times the memory of the graph. Hypergraphs
// lose pins with every level.
inline bool worth_keeping(const CutGraph& graph, const CutGraph& finer) {
  constexpr double kKept = 0.75;
  return graph.edges.size() <=
         static_cast<std::size_t>(kKept * static_cast<double>(finer.edges.size()));
}
inline bool worth_keeping(const Hypergraph&, const Hypergraph&) { return true; }

// Coarser and coarser graphs until at most `stop_at` vertices are left or nothing shrinks.
template <class Graph>
std::vector<Level<Graph>> coarsen(const Graph& graph, const CoarsenOptions& options, Vertex stop_at,
                                  Random& random) {
  std::vector<Level<Graph>> levels;
  const Graph* finest = &graph;
  while (finest->num_vertices > stop_at) {
    auto level = coarsen_once(*finest, options, random);
    if (!level) break;
    const Graph& finer = levels.size() < 2 ? graph : levels[levels.size() - 2].coarse;
    if (levels.empty() || worth_keeping(levels.back().coarse, finer)) {
      levels.push_back(std::move(*level));
    } else {
      for (Vertex& v : levels.back().coarse_of) v = level->coarse_of[v];
      levels.back().coarse = std::move(level->coarse);
    }
    finest = &levels.back().coarse;
  }
  return levels;
}

// Values of the vertices of a level, for the finer vertices that each is made of.
template <class Graph, class T>
std::vector<T> on_fine(const Level<Graph>& level, const std::vector<T>& coarse) {
  std::vector<T> fine(level.coarse_of.size());
  for (std::size_t v = 0; v < fine.size(); ++v) fine[v] = coarse[level.coarse_of[v]];
  return fine;
}

// The other way; all vertices of a cluster must have the same value.
template <class Graph, class T>
std::vector<T> on_coarse(const Level<Graph>& level, const std::vector<T>& fine) {
  std::vector<T> coarse(level.coarse.num_vertices);
  for (std::size_t v = 0; v < fine.size(); ++v) coarse[level.coarse_of[v]] = fine[v];
  return coarse;
}

// Takes labels of the coarsest of the levels to `graph`, by refine(finer graph, labels) on each.
template <class Graph, class T, class Refine>
std::vector<T> uncoarsen(const Graph& graph, const std::vector<Level<Graph>>& levels,
                         std::vector<T> labels, const Refine& refine) {
  for (std::size_t i = levels.size(); i-- > 0;) {
    labels = on_fine(levels[i], labels);
    refine(i == 0 ? graph : levels[i - 1].coarse, labels);
  }
  return labels;
}

template <class Graph>
const Graph& coarsest(const Graph& graph, const std::vector<Level<Graph>>& levels) {
  return levels.empty() ? graph : levels.back().coarse;
}

}  // namespace spgnn::gvb
