// gvb: multilevel partitioning that lowers total and maximum volume together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "coarsen.hpp"
#include "initial.hpp"
#include "rebalance.hpp"
#include "refine_fm.hpp"
#include "refine_greedy.hpp"
#include "relieve.hpp"
#include "volume_state.hpp"

namespace spgnn::gvb {

struct Options {
  Part parts = 1;
  std::vector<std::int64_t> max_weight;  // of a part, per constraint
  std::uint64_t seed = 0;
  bool receive = false;  // also balance received rows
  // Vertices per part of the level where recursive bisection starts, for the start that is then
  // refined in a V-cycle and for the one refined on the way back; 0: without this start.
  Vertex vertices_per_part = 4000;
  Vertex kway_vertices_per_part = 24;
  Vertex cycle_vertices_per_part = 40;  // of the coarsest level of a V-cycle
  std::int64_t pair_budget = 16;
  std::int32_t max_members = 2;
  int greedy_rounds = 6;
  int search_passes = 2;
  std::int32_t patience = 60;
  std::int64_t search_budget = 10;                                // units of work per pin and level
  int cycles = 0;                                                 // further V-cycles
  double alpha_coarse = 0.1, alpha_fine = 0.3, alpha_last = 2.0;  // of the potential, by stage
  BisectionOptions bisection;
  // Called between steps with a stage and the share of it that is done; may throw to interrupt.
  std::function<void(const char*, double)> progress;
};

// Weight above the bounds, summed over parts and constraints.
inline std::int64_t overload(const std::vector<std::int64_t>& vertex_weight,
                             const std::vector<Part>& labels, const Options& options) {
  const std::size_t m = options.max_weight.size();
  std::vector<std::int64_t> weight(m * options.parts, 0);
  for (std::size_t v = 0; v < labels.size(); ++v) {
    for (std::size_t c = 0; c < m; ++c) weight[labels[v] * m + c] += vertex_weight[v * m + c];
  }
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    sum += std::max<std::int64_t>(0, weight[i] - options.max_weight[i % m]);
  }
  return sum;
}

class Multilevel {
 public:
  Multilevel(const Hypergraph& h, const Options& options)
      : h_(h), options_(options), random_(options.seed) {}

  std::vector<Part> operator()() {
    std::vector<Part> labels;
    if (options_.vertices_per_part > 0) labels = start(options_.vertices_per_part, true);
    if (options_.kway_vertices_per_part > 0 && (labels.empty() || has_dense_core())) {
      std::vector<Part> other = start(options_.kway_vertices_per_part, false);
      if (labels.empty() || score(other) < score(labels)) labels = std::move(other);
    }
    for (int cycle = 0; cycle < options_.cycles; ++cycle) labels = improve(std::move(labels));
    return labels;
  }

  // A V-cycle: coarsens inside the parts and refines on the way back. Returns the labels it was
  // given where it found nothing better.
  std::vector<Part> improve(std::vector<Part> labels) {
    std::vector<Part> improved = v_cycle(labels);
    return score(improved) < score(labels) ? improved : labels;
  }

 private:
  void report(const char* stage, double fraction) const {
    if (options_.progress) options_.progress(stage, fraction);
  }

  // Only where many nets are many times larger than the mean does the second start pay: bisection
  // leaves the core, and with it the volume, in few parts.
  bool has_dense_core() const {
    double squares = 0;
    for (Net e = 0; e < h_.num_nets(); ++e) {
      squares += static_cast<double>(h_.size(e)) * static_cast<double>(h_.size(e));
    }
    const auto pins = static_cast<double>(h_.pins.size());
    return pins > 8.0 * h_.num_nets() && squares * h_.num_nets() > 2.0 * pins * pins;
  }

  // Recursive bisection of the level with so many vertices per part. Fine levels give it the least
  // total volume; from a coarse level, refinement on the way back can still balance volumes best.
  std::vector<Part> start(Vertex vertices_per_part, bool cycle) {
    report("coarsening", 0);
    const Vertex stop_at = coarsest(vertices_per_part);
    const auto levels = coarsen(h_, coarsening(stop_at, nullptr), stop_at, random_);
    report("initial partition", 0);
    std::vector<Part> labels = initial_partition(levels);
    return cycle ? v_cycle(project(levels, std::move(labels)))
                 : uncoarsen(levels, std::move(labels));
  }

  std::vector<Part> v_cycle(std::vector<Part> labels) {
    std::vector<Level> levels;
    const Vertex stop_at = coarsest(options_.cycle_vertices_per_part);
    const Hypergraph* finest = &h_;
    while (finest->num_vertices > stop_at) {
      report("coarsening", 0);
      auto level = coarsen_once(*finest, coarsening(stop_at, &labels), random_);
      if (!level) break;
      std::vector<Part> coarse(level->coarse.num_vertices);
      for (Vertex v = 0; v < finest->num_vertices; ++v) coarse[level->coarse_of[v]] = labels[v];
      labels = std::move(coarse);
      levels.push_back(std::move(*level));
      finest = &levels.back().coarse;
    }
    return uncoarsen(levels, std::move(labels));
  }

  // Overload first; then average and maximum count alike.
  std::pair<std::int64_t, std::int64_t> score(const std::vector<Part>& labels) const {
    const VolumeState state(h_, labels, options_.parts);
    const std::int64_t most = state.max_send() + (options_.receive ? state.max_receive() : 0);
    return {overload(h_.vertex_weight, labels, options_), state.total() + options_.parts * most};
  }

  Vertex coarsest(Vertex vertices_per_part) const {
    return std::max<Vertex>(200, vertices_per_part * options_.parts);
  }

  CoarsenOptions coarsening(Vertex stop_at, const std::vector<Part>* groups) const {
    CoarsenOptions result;
    result.pair_budget = options_.pair_budget;
    result.groups = groups;
    result.max_members = options_.max_members;
    for (std::int64_t total : h_.total_weight()) {
      result.max_weight.push_back(std::max<std::int64_t>(1, total / stop_at * 3 / 2));
    }
    return result;
  }

  std::vector<Part> initial_partition(const std::vector<Level>& levels) const {
    const Hypergraph& start = levels.empty() ? h_ : levels.back().coarse;
    return RecursiveBisection(options_.max_weight, options_.bisection)(start, options_.parts,
                                                                       random_.split(1));
  }

  std::vector<Part> uncoarsen(const std::vector<Level>& levels, std::vector<Part> labels) {
    for (std::size_t i = levels.size(); i-- > 0;) {
      const auto done = static_cast<double>(levels.size() - i);
      report("refinement", (done - 1) / static_cast<double>(levels.size() + 1));
      labels = refine(levels[i].coarse, std::move(labels), i + 1);
      labels = lift(levels[i], labels);
    }
    labels = refine(h_, std::move(labels), 0);
    report("refinement", 1);
    return labels;
  }

  static std::vector<Part> lift(const Level& level, const std::vector<Part>& coarse) {
    std::vector<Part> finer(level.coarse_of.size());
    for (std::size_t v = 0; v < finer.size(); ++v) finer[v] = coarse[level.coarse_of[v]];
    return finer;
  }

  // Back to the finest level without refinement.
  static std::vector<Part> project(const std::vector<Level>& levels, std::vector<Part> labels) {
    for (std::size_t i = levels.size(); i-- > 0;) labels = lift(levels[i], labels);
    return labels;
  }

  // The closer to the finest level, the more a part above average volume pays.
  std::vector<Part> refine(const Hypergraph& h, std::vector<Part> labels, std::size_t depth) {
    VolumeState state(h, std::move(labels), options_.parts);
    const double alpha = depth == 0 ? options_.alpha_fine : options_.alpha_coarse;
    set_potential(state, alpha);
    Rebalancer(state, options_.max_weight).run();
    GreedyRefiner(state, options_.max_weight, random_).run(options_.greedy_rounds);
    LocalSearch(state, options_.max_weight, options_.patience, random_)
        .run(options_.search_passes, budget(h));
    if (depth == 0) {
      set_potential(state, options_.alpha_last);
      Reliever(state, options_.max_weight).run(budget(h));
      GreedyRefiner(state, options_.max_weight, random_).run(options_.greedy_rounds);
      LocalSearch(state, options_.max_weight, options_.patience, random_).run(1, budget(h));
    }
    return std::move(state).take_labels();
  }

  std::int64_t budget(const Hypergraph& h) const {
    return options_.search_budget * static_cast<std::int64_t>(h.pins.size());
  }

  void set_potential(VolumeState& state, double alpha) const {
    Potential potential;
    potential.alpha = alpha;
    potential.reference = std::max(1.0, static_cast<double>(state.total()) / options_.parts);
    potential.receive_alpha = options_.receive ? alpha : 0.0;
    state.set_potential(potential);
  }

  const Hypergraph& h_;
  const Options& options_;
  Random random_;
};

}  // namespace spgnn::gvb
