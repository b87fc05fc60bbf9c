// A first k-way partition, for the edge cut; and what a caller chooses about gvb.
#pragma once

#include "coarsen.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

// Greedy k-way refinement: moves each vertex to its best part if that pays; after the first round
// only vertices next to a move. What moves cost is a Moves (CutMoves, VolumeMoves, CoverMoves):
//   bool kQueuedAtFirst             whether vertices still to come in the first round are queued
//   std::vector<Vertex> boundary()  the vertices whose move can pay
//   void begin_round(), bool end_round()   the latter says whether the round paid for another
//   void foresee(vertices)          looks ahead at those that are tried next
//   Part try_move(v)                makes the best move of v, if that pays; the part it left, or −1
//   void for_affected(v, from, f)   calls f(u) for the vertices whose gain that can have raised
template <class Moves> class GreedyRefiner {
 public:
  GreedyRefiner(Moves moves, Vertex num_vertices, Random& random)
      : moves_(std::move(moves)), random_(random), queued_(num_vertices, 0) {}

  void run(int max_rounds) { run(max_rounds, moves_.boundary()); }

  // The first round looks at the vertices of `active` alone.
  void run(int max_rounds, std::vector<Vertex> active) {
    for (Vertex v : active) queued_[v] = Moves::kQueuedAtFirst;
    for (int round = 0; round < max_rounds && !active.empty(); ++round) {
      random_.shuffle(active);
      moves_.begin_round();
      std::vector<Vertex> next;
      const std::size_t batch = active.size() / kBatches + 1;
      for (std::size_t i = 0; i < active.size(); ++i) {
        if (i % batch == 0) {
          moves_.foresee(std::span(active).subspan(i, std::min(batch, active.size() - i)));
        }
        const Vertex v = active[i];
        queued_[v] = 0;
        const Part from = moves_.try_move(v);
        if (from < 0) continue;
        moves_.for_affected(v, from, [&](Vertex u) {
          if (queued_[u]) return;
          queued_[u] = 1;
          next.push_back(u);
        });
      }
      active = std::move(next);
      if (!moves_.end_round()) break;
    }
    for (Vertex v : active) queued_[v] = 0;
  }

 private:
  static constexpr std::size_t kBatches = 256;

  Moves moves_;
  Random& random_;
  std::vector<u8> queued_;
};

// Moves that lower the edge cut, as GreedyRefiner wants them.
class CutMoves {
 public:
  static constexpr bool kQueuedAtFirst = true;

  CutMoves(const CutGraph& graph, std::vector<Part>& labels, Part parts, const Bound& max_weight)
      : graph_(graph), labels_(labels), max_weight_(max_weight), weight_(graph, labels, parts),
        joined_(parts, 0) {}

  std::vector<Vertex> boundary() const {
    std::vector<Vertex> border;
    for (Vertex v = 0; v < graph_.num_vertices; ++v) {
      const auto edges = graph_.edges_of(v);
      const auto crosses = [&](const CutGraph::Edge& e) { return labels_[e.to] != labels_[v]; };
      if (std::any_of(edges.begin(), edges.end(), crosses)) border.push_back(v);
    }
    return border;
  }

  void begin_round() {}
  void foresee(std::span<const Vertex>) {}
  bool end_round() const { return true; }

  Part try_move(Vertex v) {
    if (graph_.is_fixed(v)) return -1;
    touched_.clear();
    for (const auto [u, w] : graph_.edges_of(v)) {
      if (joined_[labels_[u]] == 0) touched_.push_back(labels_[u]);
      joined_[labels_[u]] += w;
    }
    const Part from = labels_[v];
    const i64 inside = joined_[from];
    const bool overloaded = !weight_.within(from, max_weight_);
    i64 best_weight = overloaded ? -1 : inside;
    Part best = from;
    for (Part q : touched_) {
      const bool better = joined_[q] > best_weight ||
                          (joined_[q] == best_weight && weight_(q, 0) < weight_(best, 0));
      // A move that gains nothing must bring the two parts closer in weight.
      const bool levels = joined_[q] > inside || overloaded ||
                          weight_(q, 0) + graph_.weight_of(v)[0] < weight_(from, 0);
      if (q != from && better && levels && weight_.fits(v, q, max_weight_)) {
        best = q;
        best_weight = joined_[q];
      }
      joined_[q] = 0;
    }
    if (best == from) return -1;
    weight_.move(v, from, best);
    labels_[v] = best;
    return from;
  }

  template <class Visit> void for_affected(Vertex v, Part, const Visit& visit) const {
    for (const CutGraph::Edge& edge : graph_.edges_of(v)) visit(edge.to);
  }

 private:
  const CutGraph& graph_;
  std::vector<Part>& labels_;
  const Bound& max_weight_;
  PartWeights weight_;
  std::vector<i64> joined_;  // weight of edges from a vertex to each part
  std::vector<Part> touched_;
};

struct CutOptions {
  Vertex vertices_per_part = 100;  // where coarsening stops
  int rounds = 8;                  // of refinement per level
  double slack = 0.03;  // a part may exceed its bound by this share: later stages repair it
  int attempts = 6;     // at a small coarsest graph, where little is cut
  BisectionOptions bisection{6, 6, 100};
};

inline void lower_cut(const CutGraph& graph, std::vector<Part>& labels, Part parts,
                      const Bound& max_weight, int rounds, Random& random) {
  const CutMoves moves(graph, labels, parts, max_weight);
  GreedyRefiner<CutMoves>(moves, graph.num_vertices, random).run(rounds);
}

// The weight of cut edges at each part.
inline std::vector<i64> cut_of_parts(const CutGraph& graph, const std::vector<Part>& labels,
                                     Part parts) {
  std::vector<i64> cut(parts, 0);
  for (Vertex v = 0; v < graph.num_vertices; ++v) {
    for (const auto [u, w] : graph.edges_of(v)) cut[labels[v]] += labels[u] == labels[v] ? 0 : w;
  }
  return cut;
}

// The best of several recursive bisections, the largest cut of a part counting as much as the
// average. Only where hardly anything is cut, as on meshes and roads, and the coarsest graph is
// small beside the finest, of `finest` vertices, are several worth it.
inline std::vector<Part> partition_coarsest(const CutGraph& graph, Part parts,
                                            const Bound& max_weight, const CutOptions& options,
                                            Vertex finest, Random& random) {
  constexpr double kHardlyCut = 0.1;  // share of edge weight
  constexpr Vertex kSmall = 4;        // times smaller than the finest, for each further attempt
  const int attempts =
      std::min(options.attempts, 1 + finest / kSmall / std::max<Vertex>(1, graph.num_vertices));
  const double all =
      std::accumulate(graph.edges.begin(), graph.edges.end(), 0.0,
                      [](double sum, const CutGraph::Edge& edge) { return sum + edge.weight; });
  std::vector<Part> best;
  i64 best_score = std::numeric_limits<i64>::max();
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::vector<Part> labels = RecursiveBisection<CutGraph>(max_weight, options.bisection)(
        graph, parts, random.split(attempt + 1));
    lower_cut(graph, labels, parts, max_weight, options.rounds, random);
    const std::vector<i64> cut = cut_of_parts(graph, labels, parts);
    const auto total = std::accumulate(cut.begin(), cut.end(), i64{0});
    const i64 score = total + parts * *std::max_element(cut.begin(), cut.end());
    if (score < best_score) {
      best_score = score;
      best = std::move(labels);
    }
    if (static_cast<double>(total) > kHardlyCut * all) break;
  }
  return best;
}

// Where coarsening stops: so many vertices a part, which may be more than numbers of vertices hold.
inline Vertex vertices_of_parts(Vertex per_part, Part parts) {
  constexpr i64 kMost = std::numeric_limits<Vertex>::max();
  return static_cast<Vertex>(std::clamp<i64>(i64{per_part} * parts, 200, kMost));
}

// Coarsens, bisects the coarsest graph, and refines on the way back (METIS: Karypis & Kumar 1998).
inline std::vector<Part> cut_partition(const CutGraph& graph, Part parts, Bound max_weight,
                                       const std::vector<Part>& communities,
                                       const CutOptions& options, Random& random) {
  for (i64& bound : max_weight) {
    bound += static_cast<i64>(options.slack * static_cast<double>(bound));
  }
  const Vertex stop_at = vertices_of_parts(options.vertices_per_part, parts);
  CoarsenOptions coarsening;
  for (i64 total : graph.total_weight()) {
    coarsening.max_weight.push_back(std::max<i64>(1, total * 3 / 2 / stop_at));
  }
  const auto levels = coarsen(graph, coarsening, stop_at, random, communities);
  std::vector<Part> labels = partition_coarsest(coarsest(graph, levels), parts, max_weight, options,
                                                graph.num_vertices, random);
  return uncoarsen(graph, levels, std::move(labels),
                   [&](const CutGraph& finer, std::vector<Part>& finer_labels) {
                     lower_cut(finer, finer_labels, parts, max_weight, options.rounds, random);
                   });
}

struct Options {
  Part parts = 1;
  Bound max_weight;
  std::vector<Part> kinds;  // where nodes matter, parts of one kind may change numbers
  u64 seed = 0;
  Nodes nodes;
  bool receive = false;  // the maximum is that of rows sent or received, else of rows sent
  int threads = 1;       // the labels do not depend on it
  int starts = 3;        // first partitions, combined into one
  int cycles = 1;        // V-cycles from the result, the last for the maximum
  CutOptions cut;
  // The last of several starts bisects the nets, if more than this share of pins is away from the
  // root, and coarsening leaves at most this share of them.
  double net_start_above = 0.1, net_start_below = 0.4;
  Vertex net_vertices_per_part = 100;  // of the level it does that on
  BisectionOptions net_bisection{2, 4, 400};
  Vertex vertices_per_part = 20;  // of the coarsest level of a V-cycle
  // On coarse levels a part may exceed its bound by up to this share; see v_cycle.
  double slack = 0.1;
  i64 pair_budget = 1;
  i32 max_members = 4;
  int greedy_rounds = 3;
  int search_passes = 2, coarse_search_passes = 0;  // of the finest level and of coarser ones
  i32 patience = 30;
  i64 search_budget = 6;                         // units of work per pin and level
  double alpha_coarse = 0.15, alpha_fine = 0.4;  // of the potential, by stage
  double alpha_last = 0.9;                       // and for covers
  double load = 2, peak_load = 5;                // price of weight at the bounds; see price_weights
  int peak_rounds = 16;  // at most; in which only parts close to the maximum pay more
  // The maximum is not pressed below this many averages: it would cost much for little.
  double even = 1.05;
  // Called between steps with a stage and the share of it that is done; may throw to interrupt.
  std::function<void(const char*, double)> progress;
};

}  // namespace spgnn::gvb
