// gvb: multilevel partitioning that lowers total and maximum volume together.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "coarsen.hpp"
#include "communities.hpp"
#include "cut_partition.hpp"
#include "options.hpp"
#include "parallel.hpp"
#include "rebalance.hpp"
#include "recursive_bisection.hpp"
#include "refine_fm.hpp"
#include "refine_greedy.hpp"
#include "relieve.hpp"
#include "volume_state.hpp"

namespace spgnn::gvb {

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

// Groups of vertices that share their part in both partitions, numbered from 0.
inline std::vector<Part> common_parts(const std::vector<Part>& a, const std::vector<Part>& b) {
  std::vector<std::pair<Part, Part>> pairs(a.size());
  for (std::size_t v = 0; v < a.size(); ++v) pairs[v] = {a[v], b[v]};
  std::vector<std::pair<Part, Part>> seen = pairs;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::vector<Part> groups(a.size());
  for (std::size_t v = 0; v < a.size(); ++v) {
    const auto found = std::lower_bound(seen.begin(), seen.end(), pairs[v]);
    groups[v] = static_cast<Part>(found - seen.begin());
  }
  return groups;
}

class Multilevel {
 public:
  Multilevel(const Hypergraph& h, const Options& options)
      : h_(h), options_(options), random_(options.seed), caller_(std::this_thread::get_id()) {}

  std::vector<Part> operator()() {
    std::vector<Part> labels = first_partition();
    for (int cycle = 0; cycle < options_.cycles; ++cycle) labels = cycled(std::move(labels));
    return lower_peaks(std::move(labels));
  }

  // Returns the labels it was given where it found nothing better.
  std::vector<Part> improve(std::vector<Part> labels) {
    std::vector<Part> improved = lower_peaks(cycled(labels));
    return score(improved, kInTheEnd) < score(labels, kInTheEnd) ? improved : labels;
  }

 private:
  // How much the maximum counts beside the average: little before the last stage, which lowers it,
  // while the total hardly falls any more.
  static constexpr double kOnTheWay = 0.2, kInTheEnd = 1.0;

  // Progress is told by the calling thread alone; the others end once it was interrupted.
  void report(const char* stage, double fraction) {
    if (std::this_thread::get_id() != caller_) {
      if (interrupted_) throw std::runtime_error("interrupted");
      return;
    }
    if (!options_.progress) return;
    try {
      options_.progress(stage, fraction);
    } catch (...) {
      interrupted_ = true;
      throw;
    }
  }

  // The cuts play a tournament of pairs, while the last start takes about as long beside them.
  std::vector<Part> first_partition() {
    CutGraph graph = star_graph(h_, options_.parts);
    const int last = std::max(0, options_.starts - 1);
    std::vector<std::vector<Part>> cuts(std::max(1, last));
    parallel_chunks(static_cast<std::int64_t>(cuts.size()), options_.threads,
                    [&](std::int64_t i, int) { cuts[i] = cut(graph, i); });
    if (last == 0) {
      graph = {};  // refinement needs the memory
      return refined(std::move(cuts[0]), 0);
    }
    const bool nets = share_away(cuts[0]) > options_.net_start_above;
    // One more cut is ready long before the others, the bisected nets are not.
    if (!nets) refine_all(cuts, options_.threads);
    std::vector<Part> one, other;
    parallel_chunks(2, options_.threads, [&](std::int64_t i, int) {
      if (i == 0) {
        if (nets) refine_all(cuts, options_.threads - 1);
        one = best_of(std::move(cuts));
      } else {
        other = nets ? start_from_nets(graph, last) : refined(cut(graph, last), last);
      }
    });
    return combine(std::move(one), std::move(other), random_.split(kFinal));
  }

  void refine_all(std::vector<std::vector<Part>>& cuts, int threads) {
    parallel_chunks(static_cast<std::int64_t>(cuts.size()), std::max(1, threads),
                    [&](std::int64_t i, int) { cuts[i] = refined(std::move(cuts[i]), i); });
  }

  std::vector<Part> best_of(std::vector<std::vector<Part>> found) {
    const int threads = std::max(1, options_.threads - 1);
    for (std::uint64_t round = 1; found.size() > 1; ++round) {
      const std::size_t pairs = found.size() / 2;
      parallel_chunks(static_cast<std::int64_t>(pairs), threads, [&](std::int64_t i, int) {
        found[i] = combine(std::move(found[2 * i]), std::move(found[2 * i + 1]),
                           random_.split(round * kRound + i));
      });
      if (found.size() % 2 == 1) found[pairs] = std::move(found.back());
      found.resize(pairs + found.size() % 2);
    }
    return std::move(found[0]);
  }

  // A cut of the vertices themselves.
  std::vector<Part> cut(const CutGraph& graph, std::uint64_t start) {
    report("initial partition", 0);
    Random random = random_.split(start);
    return cut_partition(graph, options_.parts, options_.max_weight, options_.cut, random);
  }

  std::vector<Part> refined(std::vector<Part> labels, std::uint64_t start) {
    report("initial partition", 0.5);
    Random random = random_.split(kRefined + start);
    return refine(h_, std::move(labels), options_.max_weight, random);
  }

  // Bisections of the nets themselves, refined on every level. Where pages of a site all link to
  // the same hubs, cutting those edges costs each page one row, however many they are; the cut of
  // a graph never sees that. Coarsening keeps to communities as long as it can (Heuer & Schlag
  // 2017), else it would join what only looks close.
  std::vector<Part> start_from_nets(const CutGraph& graph, std::uint64_t start) {
    Random random = random_.split(start);
    const Vertex stop_at = std::max<Vertex>(200, options_.net_vertices_per_part * options_.parts);
    std::vector<Level> levels;
    std::vector<Part> communities = Communities(random)(graph);
    coarsen_further(levels, stop_at, &communities, random);
    coarsen_further(levels, stop_at, nullptr, random);
    report("initial partition", 0);
    std::vector<Part> labels =
        RecursiveBisection<Hypergraph>(options_.max_weight, options_.net_bisection)(
            levels.empty() ? h_ : levels.back().coarse, options_.parts, random.split(1));
    return uncoarsen(levels, std::move(labels), 0.0, random);
  }

  // A V-cycle from the better of two partitions that keeps together only what both keep together:
  // regions in which they differ change sides as a whole (Andre, Schlag & Schulz 2018). How far the
  // maximum lies above 1.5 averages does not decide: refinement can lower that, hardly the total.
  std::vector<Part> combine(std::vector<Part> a, std::vector<Part> b, Random random) {
    if (score(b, kOnTheWay, 1.5) < score(a, kOnTheWay, 1.5)) std::swap(a, b);
    std::vector<Part> improved = v_cycle(a, common_parts(a, b), random);
    return score(improved) < score(a) ? improved : a;
  }

  // A V-cycle that keeps the parts together.
  std::vector<Part> cycled(std::vector<Part> labels) {
    std::vector<Part> found = v_cycle(labels, labels, random_);
    return score(found) < score(labels) ? found : labels;
  }

  // Coarsens inside the groups, which must not span parts, and refines on the way back. On the
  // coarser levels, where vertices are heavy, bounds are loose; weight that is too much later
  // leaves at a price that is low only if most nets are cut anyway, so slack goes by their share.
  std::vector<Part> v_cycle(std::vector<Part> labels, std::vector<Part> groups, Random& random) {
    const double slack = options_.slack * cut_share(labels);
    const Vertex stop_at = std::max<Vertex>(200, options_.vertices_per_part * options_.parts);
    std::vector<Level> levels;
    coarsen_further(levels, stop_at, &groups, random);
    for (const Level& level : levels) labels = on_coarse(level, labels);
    return uncoarsen(levels, std::move(labels), slack, random);
  }

  // Adds levels until at most `stop_at` vertices are left or nothing shrinks any more; clusters
  // keep inside the groups, which in the end are those of the coarsest level.
  void coarsen_further(std::vector<Level>& levels, Vertex stop_at, std::vector<Part>* groups,
                       Random& random) {
    while (true) {
      const Hypergraph& finest = levels.empty() ? h_ : levels.back().coarse;
      if (finest.num_vertices <= stop_at) return;
      report("coarsening", 0);
      auto level = coarsen_once(finest, coarsening(stop_at, groups), random);
      if (!level) return;
      if (groups != nullptr) *groups = on_coarse(*level, *groups);
      levels.push_back(std::move(*level));
    }
  }

  std::vector<Part> uncoarsen(const std::vector<Level>& levels, std::vector<Part> labels,
                              double slack, Random& random) {
    const auto depth = static_cast<double>(levels.size());
    for (std::size_t i = levels.size(); i-- > 0;) {
      const auto left = static_cast<double>(i + 1);
      report("refinement", (depth - left) / (depth + 1));
      labels = refine(levels[i].coarse, std::move(labels), relaxed(slack * left / depth), random);
      std::vector<Part> finer(levels[i].coarse_of.size());
      for (std::size_t v = 0; v < finer.size(); ++v) finer[v] = labels[levels[i].coarse_of[v]];
      labels = std::move(finer);
    }
    report("refinement", depth / (depth + 1));
    labels = refine(h_, std::move(labels), options_.max_weight, random);
    report("refinement", 1);
    return labels;
  }

  static std::vector<Part> on_coarse(const Level& level, const std::vector<Part>& fine) {
    std::vector<Part> coarse(level.coarse.num_vertices);
    for (std::size_t v = 0; v < fine.size(); ++v) coarse[level.coarse_of[v]] = fine[v];
    return coarse;
  }

  // Overload first, then volume: total + weight · k · maximum, this counted up to `most` averages.
  std::pair<std::int64_t, double> score(
      const std::vector<Part>& labels, double weight = kOnTheWay,
      double most = std::numeric_limits<double>::infinity()) const {
    const VolumeState state(h_, labels, options_.parts);
    const auto total = static_cast<double>(state.total());
    const auto highest =
        static_cast<double>(state.max_send() + (options_.receive ? state.max_receive() : 0));
    return {overload(h_.vertex_weight, labels, options_),
            total + weight * std::min(highest * options_.parts, most * total)};
  }

  // Share of pins in another part than the root of their net.
  double share_away(const std::vector<Part>& labels) const {
    std::int64_t away = 0;
    for (Net e = 0; e < h_.num_nets(); ++e) {
      const Part root = labels[h_.root(e)];
      for (Vertex v : h_.pins_of(e)) away += labels[v] != root;
    }
    return static_cast<double>(away) /
           static_cast<double>(std::max<std::size_t>(1, h_.pins.size()));
  }

  double cut_share(const std::vector<Part>& labels) const {
    Net cut = 0;
    for (Net e = 0; e < h_.num_nets(); ++e) {
      const auto pins = h_.pins_of(e);
      cut += std::any_of(pins.begin(), pins.end(),
                         [&](Vertex v) { return labels[v] != labels[pins[0]]; });
    }
    return static_cast<double>(cut) / std::max<Net>(1, h_.num_nets());
  }

  std::vector<std::int64_t> relaxed(double slack) const {
    std::vector<std::int64_t> bounds = options_.max_weight;
    for (auto& bound : bounds) {
      bound += static_cast<std::int64_t>(slack * static_cast<double>(bound));
    }
    return bounds;
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

  // The closer to the finest level, the more a part above average volume pays.
  std::vector<Part> refine(const Hypergraph& h, std::vector<Part> labels,
                           const std::vector<std::int64_t>& bounds, Random& random) {
    const bool last = &h == &h_;
    VolumeState state(h, std::move(labels), options_.parts);
    set_potential(state, last ? options_.alpha_fine : options_.alpha_coarse);
    Rebalancer(state, bounds).run();
    GreedyRefiner(state, bounds, random).run(options_.greedy_rounds);
    LocalSearch(state, bounds, options_.patience, random).run(options_.search_passes, budget(h));
    if (last) {
      set_potential(state, options_.alpha_last);
      Reliever(state, bounds).run(budget(h));
      GreedyRefiner(state, bounds, random).run(options_.greedy_rounds);
      LocalSearch(state, bounds, options_.patience, random)
          .run(std::min(1, options_.search_passes), budget(h));
    }
    return std::move(state).take_labels();
  }

  // The price of the score itself: a row of the fullest part costs k more, one of a part well below
  // it next to nothing. Only moves that take rows off a part with a price are looked for.
  std::vector<Part> lower_peaks(std::vector<Part> labels) {
    constexpr double kNoticed = 1.2;  // a price; without a peak 1
    const std::int64_t work = 3 * budget(h_);
    VolumeState state(h_, labels, options_.parts);
    for (int round = 0; round < options_.peak_rounds && !is_even(state); ++round) {
      report("refinement", 1);
      Potential potential;
      potential.squarings = 6;
      potential.alpha = options_.parts;
      potential.reference = std::max<double>(1, static_cast<double>(state.max_send()));
      potential.receive_alpha = options_.receive ? potential.alpha : 0.0;
      potential.receive_reference = std::max<double>(1, static_cast<double>(state.max_receive()));
      state.set_potential(potential);
      Reliever(state, options_.max_weight).run(work);
      GreedyRefiner(state, options_.max_weight, random_)
          .run(1, near_expensive_parts(state, kNoticed));
      LocalSearch(state, options_.max_weight, options_.patience, random_)
          .run_from(near_expensive_parts(state, kNoticed), work);
    }
    std::vector<Part> found = std::move(state).take_labels();
    return score(found, kInTheEnd) < score(labels, kInTheEnd) ? found : labels;
  }

  bool is_even(const VolumeState& state) const {
    const double most = options_.even * static_cast<double>(state.total()) / options_.parts;
    return static_cast<double>(state.max_send()) <= most &&
           (!options_.receive || static_cast<double>(state.max_receive()) <= most);
  }

  std::int64_t budget(const Hypergraph& h) const {
    return options_.search_budget * static_cast<std::int64_t>(h.pins.size());
  }

  // Parts pay more than their rows from about the average on; where the maximum is far above that,
  // only from its neighbourhood on, since then few parts can be kept from paying.
  void set_potential(VolumeState& state, double alpha) const {
    constexpr double kReach = 1.25;
    const double average = std::max(1.0, static_cast<double>(state.total()) / options_.parts);
    const auto level = [&](std::int64_t highest) {
      return std::max(average, static_cast<double>(highest) / kReach);
    };
    Potential potential;
    potential.alpha = alpha;
    potential.reference = level(state.max_send());
    potential.receive_alpha = options_.receive ? alpha : 0.0;
    potential.receive_reference = level(state.max_receive());
    potential.limit_price(options_.parts);
    state.set_potential(potential);
  }

  // Streams of random numbers beside those of the starts.
  static constexpr std::uint64_t kRefined = 1ULL << 32, kRound = 1ULL << 33, kFinal = 1ULL << 63;

  const Hypergraph& h_;
  const Options& options_;
  Random random_;
  std::thread::id caller_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace spgnn::gvb
