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
#include "cut_partition.hpp"
#include "options.hpp"
#include "parallel.hpp"
#include "refine.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

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
    return without_peaks(std::move(labels));
  }

  // Returns the labels it was given where it found nothing better.
  std::vector<Part> improve(std::vector<Part> labels) {
    std::vector<Part> improved = without_peaks(cycled(labels));
    return score_of(improved, kInTheEnd) < score_of(labels, kInTheEnd) ? improved : labels;
  }

 private:
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
      graph = CutGraph();  // refinement needs the memory
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
      std::vector<std::vector<Part>> winners(found.size() / 2);
      parallel_chunks(std::ssize(winners), threads, [&](std::int64_t i, int) {
        winners[i] = combine(std::move(found[2 * i]), std::move(found[2 * i + 1]),
                             random_.split(round * kRound + i));
      });
      if (found.size() % 2 == 1) winners.push_back(std::move(found.back()));
      found = std::move(winners);
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
    return refine_volumes(h_, std::move(labels), options_.max_weight, true, options_, random);
  }

  // Bisections of the nets themselves, refined on every level. Where pages of a site all link to
  // the same hubs, cutting those edges costs each page one row, however many they are; the cut of
  // a graph never sees that. Coarsening keeps to communities as long as it can (Heuer & Schlag
  // 2017), else it would join what only looks close.
  std::vector<Part> start_from_nets(const CutGraph& graph, std::uint64_t start) {
    Random random = random_.split(start);
    const Vertex stop_at = std::max<Vertex>(200, options_.net_vertices_per_part * options_.parts);
    std::vector<Level<Hypergraph>> levels;
    std::vector<Part> communities = Communities(random)(graph);
    coarsen_further(levels, stop_at, &communities, random);
    coarsen_further(levels, stop_at, nullptr, random);
    report("initial partition", 0);
    std::vector<Part> labels =
        RecursiveBisection<Hypergraph>(options_.max_weight, options_.net_bisection)(
            coarsest(h_, levels), options_.parts, random.split(1));
    return refine_upwards(levels, std::move(labels), 0.0, random);
  }

  // A V-cycle from the better of two partitions that keeps together only what both keep together:
  // regions in which they differ change sides as a whole (Andre, Schlag & Schulz 2018). How far the
  // maximum lies above 1.5 averages does not decide: refinement can lower that, hardly the total.
  std::vector<Part> combine(std::vector<Part> a, std::vector<Part> b, Random random) {
    if (score_of(b, kOnTheWay, 1.5) < score_of(a, kOnTheWay, 1.5)) std::swap(a, b);
    std::vector<Part> improved = v_cycle(a, common_parts(a, b), random);
    return score_of(improved) < score_of(a) ? improved : a;
  }

  // A V-cycle that keeps the parts together.
  std::vector<Part> cycled(std::vector<Part> labels) {
    std::vector<Part> found = v_cycle(labels, labels, random_);
    return score_of(found) < score_of(labels) ? found : labels;
  }

  // Coarsens inside the groups, which must not span parts, and refines on the way back. On the
  // coarser levels, where vertices are heavy, bounds are loose; weight that is too much later
  // leaves at a price that is low only if most nets are cut anyway, so slack goes by their share.
  std::vector<Part> v_cycle(std::vector<Part> labels, std::vector<Part> groups, Random& random) {
    const double slack = options_.slack * cut_share(labels);
    const Vertex stop_at = std::max<Vertex>(200, options_.vertices_per_part * options_.parts);
    std::vector<Level<Hypergraph>> levels;
    coarsen_further(levels, stop_at, &groups, random);
    for (const auto& level : levels) labels = on_coarse(level, labels);
    return refine_upwards(levels, std::move(labels), slack, random);
  }

  // Adds levels until at most `stop_at` vertices are left or nothing shrinks any more; clusters
  // keep inside the groups, which in the end are those of the coarsest level.
  void coarsen_further(std::vector<Level<Hypergraph>>& levels, Vertex stop_at,
                       std::vector<Part>* groups, Random& random) {
    while (true) {
      const Hypergraph& finest = coarsest(h_, levels);
      if (finest.num_vertices <= stop_at) return;
      report("coarsening", 0);
      auto level = coarsen_once(finest, coarsening(stop_at, groups), random);
      if (!level) return;
      if (groups != nullptr) *groups = on_coarse(*level, *groups);
      levels.push_back(std::move(*level));
    }
  }

  // Refines the labels of the coarsest level and of all that are finer. Bounds may be exceeded by
  // `slack` on the coarsest, on finer ones by ever less.
  std::vector<Part> refine_upwards(const std::vector<Level<Hypergraph>>& levels,
                                   std::vector<Part> labels, double slack, Random& random) {
    const auto depth = static_cast<double>(levels.size());
    double done = 0;
    const auto refine_level = [&](const Hypergraph& h, std::vector<Part>& found) {
      const bool finest = &h == &h_;
      report("refinement", done / (depth + 1));
      const Bound bounds = finest ? options_.max_weight : relaxed(slack * (depth - done) / depth);
      found = refine_volumes(h, std::move(found), bounds, finest, options_, random);
      ++done;
    };
    refine_level(coarsest(h_, levels), labels);
    labels = uncoarsen(h_, levels, std::move(labels), refine_level);
    report("refinement", 1);
    return labels;
  }

  std::vector<Part> without_peaks(std::vector<Part> labels) {
    return lower_peaks(h_, std::move(labels), options_, random_,
                       [this] { report("refinement", 1); });
  }

  Score score_of(const std::vector<Part>& labels, double weight = kOnTheWay,
                 double most = std::numeric_limits<double>::infinity()) const {
    return score(h_, labels, options_, weight, most);
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

  Bound relaxed(double slack) const {
    Bound bounds = options_.max_weight;
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

  // Streams of random numbers beside those of the starts.
  static constexpr std::uint64_t kRefined = 1ULL << 32, kRound = 1ULL << 33, kFinal = 1ULL << 63;

  const Hypergraph& h_;
  const Options& options_;
  Random random_;
  std::thread::id caller_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace spgnn::gvb
