// A first k-way partition, for the edge cut of a graph that stands in for the volume.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cut_graph.hpp"
#include "random.hpp"
#include "recursive_bisection.hpp"

namespace spgnn::gvb {

// Greedy k-way refinement of the edge cut: rounds over the vertices whose surroundings changed.
class CutRefiner {
 public:
  CutRefiner(const CutGraph& graph, std::vector<Part>& labels, Part parts,
             const std::vector<std::int64_t>& max_weight, Random& random)
      : graph_(graph),
        labels_(labels),
        max_weight_(max_weight),
        random_(random),
        weight_(static_cast<std::size_t>(parts) * graph.constraints, 0),
        joined_(parts, 0),
        queued_(graph.num_vertices, 0) {
    for (Vertex v = 0; v < graph.num_vertices; ++v) add_weight(v, labels_[v], 1);
  }

  void run(int max_rounds) {
    std::vector<Vertex> active = boundary();
    for (int round = 0; round < max_rounds && !active.empty(); ++round) {
      random_.shuffle(active);
      std::vector<Vertex> next;
      for (Vertex v : active) {
        queued_[v] = 0;
        if (!try_move(v)) continue;
        for (const auto [u, w] : graph_.edges_of(v)) {
          if (queued_[u]) continue;
          queued_[u] = 1;
          next.push_back(u);
        }
      }
      active = std::move(next);
    }
  }

 private:
  void add_weight(Vertex v, Part p, int sign) {
    const auto weight = graph_.weight_of(v);
    for (int c = 0; c < graph_.constraints; ++c) {
      weight_[static_cast<std::int64_t>(p) * graph_.constraints + c] += sign * weight[c];
    }
  }

  std::int64_t weight(Part p, int c) const {
    return weight_[static_cast<std::int64_t>(p) * graph_.constraints + c];
  }

  bool fits(Vertex v, Part to) const {
    const auto own = graph_.weight_of(v);
    for (int c = 0; c < graph_.constraints; ++c) {
      if (weight(to, c) + own[c] > max_weight_[c]) return false;
    }
    return true;
  }

  bool overloaded(Part p) const {
    for (int c = 0; c < graph_.constraints; ++c) {
      if (weight(p, c) > max_weight_[c]) return true;
    }
    return false;
  }

  std::vector<Vertex> boundary() {
    std::vector<Vertex> found;
    for (Vertex v = 0; v < graph_.num_vertices; ++v) {
      for (const auto [u, w] : graph_.edges_of(v)) {
        if (labels_[u] == labels_[v]) continue;
        found.push_back(v);
        queued_[v] = 1;
        break;
      }
    }
    return found;
  }

  bool try_move(Vertex v) {
    touched_.clear();
    for (const auto [u, w] : graph_.edges_of(v)) {
      if (joined_[labels_[u]] == 0) touched_.push_back(labels_[u]);
      joined_[labels_[u]] += w;
    }
    const Part from = labels_[v];
    const std::int64_t inside = joined_[from];
    std::int64_t best_weight = overloaded(from) ? -1 : inside;
    Part best = from;
    for (Part q : touched_) {
      const bool better =
          joined_[q] > best_weight || (joined_[q] == best_weight && weight(q, 0) < weight(best, 0));
      // A move that gains nothing must bring the two parts closer in weight.
      const bool levels = joined_[q] > inside || overloaded(from) ||
                          weight(q, 0) + graph_.weight_of(v)[0] < weight(from, 0);
      if (q != from && better && levels && fits(v, q)) {
        best = q;
        best_weight = joined_[q];
      }
      joined_[q] = 0;
    }
    if (best == from) return false;
    add_weight(v, from, -1);
    add_weight(v, best, 1);
    labels_[v] = best;
    return true;
  }

  const CutGraph& graph_;
  std::vector<Part>& labels_;
  const std::vector<std::int64_t>& max_weight_;
  Random& random_;
  std::vector<std::int64_t> weight_, joined_;
  std::vector<std::uint8_t> queued_;
  std::vector<Part> touched_;
};

struct CutOptions {
  Vertex vertices_per_part = 200;  // where coarsening stops
  int rounds = 8;                  // of refinement per level
  double slack = 0.03;  // a part may exceed its bound by this share: later stages repair it
  int attempts = 6;     // at a small coarsest graph, where little is cut
  BisectionOptions bisection{10, 6, 100};
};

// The weight of cut edges at each part.
inline std::vector<std::int64_t> cut_of_parts(const CutGraph& graph,
                                              const std::vector<Part>& labels, Part parts) {
  std::vector<std::int64_t> cut(parts, 0);
  for (Vertex v = 0; v < graph.num_vertices; ++v) {
    for (const auto [u, w] : graph.edges_of(v)) cut[labels[v]] += labels[u] == labels[v] ? 0 : w;
  }
  return cut;
}

// The best of several recursive bisections, the part with the largest cut counting as much as the
// average, as for volumes. Where hardly anything is cut, as on meshes and roads, refinement hardly
// changes the parts any more; elsewhere one is enough, and so it is where the coarsest graph is not
// small beside the finest, of `finest` vertices.
inline std::vector<Part> partition_coarsest(const CutGraph& graph, Part parts,
                                            const std::vector<std::int64_t>& max_weight,
                                            const CutOptions& options, Vertex finest,
                                            Random& random) {
  constexpr double kHardlyCut = 0.1;  // share of edge weight
  constexpr Vertex kSmall = 4;        // times smaller than the finest, for each further attempt
  const int attempts =
      std::min(options.attempts, 1 + finest / kSmall / std::max<Vertex>(1, graph.num_vertices));
  const double all =
      std::accumulate(graph.edges.begin(), graph.edges.end(), 0.0,
                      [](double sum, const CutGraph::Edge& edge) { return sum + edge.weight; });
  std::vector<Part> best;
  std::int64_t best_score = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::vector<Part> labels = RecursiveBisection<CutGraph>(max_weight, options.bisection)(
        graph, parts, random.split(attempt + 1));
    CutRefiner(graph, labels, parts, max_weight, random).run(options.rounds);
    const std::vector<std::int64_t> cut = cut_of_parts(graph, labels, parts);
    const auto total = std::accumulate(cut.begin(), cut.end(), std::int64_t{0});
    const std::int64_t score = total + parts * *std::max_element(cut.begin(), cut.end());
    if (score < best_score) {
      best_score = score;
      best = std::move(labels);
    }
    if (static_cast<double>(total) > kHardlyCut * all) break;
  }
  return best;
}

// Coarsens, splits the coarsest graph by recursive bisection, and refines on the way back: the
// scheme of METIS's k-way method (Karypis & Kumar 1998).
inline std::vector<Part> cut_partition(const CutGraph& graph, Part parts,
                                       std::vector<std::int64_t> max_weight,
                                       const CutOptions& options, Random& random) {
  for (std::int64_t& bound : max_weight) {
    bound += static_cast<std::int64_t>(options.slack * static_cast<double>(bound));
  }
  const Vertex stop_at = std::max<Vertex>(200, options.vertices_per_part * parts);
  std::vector<std::int64_t> heaviest = graph.total_weight();
  for (std::int64_t& weight : heaviest)
    weight = std::max<std::int64_t>(1, weight * 3 / 2 / stop_at);
  const std::vector<CutLevel> levels = coarsen(graph, stop_at, heaviest, random);
  const CutGraph& coarsest = levels.empty() ? graph : levels.back().coarse;
  std::vector<Part> labels =
      partition_coarsest(coarsest, parts, max_weight, options, graph.num_vertices, random);
  for (std::size_t i = levels.size(); i-- > 0;) {
    const CutGraph& finer = i == 0 ? graph : levels[i - 1].coarse;
    std::vector<Part> projected(finer.num_vertices);
    for (Vertex v = 0; v < finer.num_vertices; ++v) projected[v] = labels[levels[i].coarse_of[v]];
    labels = std::move(projected);
    CutRefiner(finer, labels, parts, max_weight, random).run(options.rounds);
  }
  return labels;
}

}  // namespace spgnn::gvb
