// gvb: multilevel partitioning that lowers total and maximum volume together.
#pragma once

#include "coarsen.hpp"
#include "cut_partition.hpp"
#include "parallel.hpp"
#include "places.hpp"
#include "refine.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

// Groups of vertices that share their part in both partitions, numbered from 0.
inline std::vector<Part> common_parts(const std::vector<Part>& a, const std::vector<Part>& b) {
  if (a.empty()) return {};
  const auto parts_of = [](const std::vector<Part>& labels) {
    return 1 + *std::max_element(labels.begin(), labels.end());
  };
  const Members members(a, parts_of(a));
  std::vector<Part> groups(a.size()), met_in(parts_of(b), -1), group_of(met_in.size());
  Part count = 0;
  for (Part p = 0; p < parts_of(a); ++p) {
    for (Vertex v : members.of(p)) {
      if (std::exchange(met_in[b[v]], p) != p) group_of[b[v]] = count++;
      groups[v] = group_of[b[v]];
    }
  }
  return groups;
}

class Multilevel {
 public:
  Multilevel(const Hypergraph& h, const Options& options)
      : h_(h), options_(options), random_(options.seed), caller_(std::this_thread::get_id()) {}

  std::vector<Part> operator()() {
    // Where V-cycles follow, they are early enough to look at nodes, and the total is lower.
    const Nodes nodes = options_.nodes;
    if (options_.cycles > 0) options_.nodes = {};
    std::vector<Part> labels = first_partition();
    options_.nodes = nodes;
    if (options_.cycles > 0) labels = placed(std::move(labels));
    for (int cycle = options_.cycles; cycle > 0; --cycle) {
      labels = cycled(std::move(labels), cycle == 1 ? last_aim() : Aim::kVolume);
    }
    return without_peaks(std::move(labels));
  }

  // Returns the labels it was given where it found nothing better.
  std::vector<Part> improve(std::vector<Part> labels) {
    std::vector<Part> improved = without_peaks(cycled(labels, last_aim()));
    return score_of(improved, kInTheEnd) < score_of(labels, kInTheEnd) ? improved : labels;
  }

 private:
  Aim last_aim() const { return options_.peak_rounds > 0 ? Aim::kMaximum : Aim::kVolume; }

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

  // Cuts, and bisected nets beside them, combined by threes until one is left.
  std::vector<Part> first_partition() {
    CutGraph graph = star_graph(h_, options_.parts);
    const int last = std::max(0, options_.starts - 1);
    std::vector<std::vector<Part>> starts(std::max(1, last));
    parallel_chunks(std::ssize(starts), options_.threads,
                    [&](i64 i, int) { starts[i] = cut(graph, i); });
    graph = CutGraph();  // refinement needs the memory
    if (last == 0) return refined(std::move(starts[0]), 0, options_);
    // Where much is cut, cuts are only balanced before they are combined: refined they come out the
    // same. The start that takes longest goes first.
    const bool nets = share_away(starts[0]) > options_.net_start_above;
    Options of_cuts = options_;
    if (nets) of_cuts.greedy_rounds = of_cuts.search_passes = 0;
    starts.emplace_back();
    parallel_chunks(std::ssize(starts), options_.threads, [&](i64 i, int) {
      const i64 start = last - i;
      if (start < last) {
        starts[start] = refined(std::move(starts[start]), start, of_cuts);
      } else if (nets) {
        starts[start] = start_from_nets(start);
      }
    });
    std::erase_if(starts, [](const std::vector<Part>& labels) { return labels.empty(); });
    for (u64 round = 1; round == 1 || starts.size() > 1; ++round) {
      constexpr i64 kTogether = 3;
      std::vector<std::vector<Part>> winners((starts.size() + kTogether - 1) / kTogether);
      parallel_chunks(std::ssize(winners), options_.threads, [&](i64 i, int) {
        const auto first = starts.begin() + i * kTogether;
        const auto end = starts.begin() + std::min(std::ssize(starts), (i + 1) * kTogether);
        winners[i] = combine({std::make_move_iterator(first), std::make_move_iterator(end)},
                             random_.split(round * kRound + i));
      });
      starts = std::move(winners);
    }
    return std::move(starts[0]);
  }

  // A cut of the vertices themselves. Of every two starts the first coarsens inside communities, as
  // start_from_nets does: pairs along heavy edges soon mix small communities, whose edges all weigh
  // the same. The second does not: where there are no communities, theirs are borders like any.
  std::vector<Part> cut(const CutGraph& graph, u64 start) {
    report("initial partition", 0);
    Random random = random_.split(start);
    std::vector<Part> communities;
    if (start % 2 == 0) communities = Communities(random)(graph);
    if (start == 0 && options_.starts > 1) communities_ = communities;
    CutOptions options = options_.cut;
    if (options_.starts == 1) options.bisection.threads = options_.threads;  // else starts use them
    return cut_partition(graph, options_.parts, options_.max_weight, communities, options, random);
  }

  std::vector<Part> refined(std::vector<Part> labels, u64 start, const Options& options) {
    report("initial partition", 0.5);
    Random random = random_.split(kRefined + start);
    labels = placed(std::move(labels));
    return refine_volumes(h_, std::move(labels), options.max_weight, true, Aim::kVolume, options,
                          random);
  }

  // Bisections of the nets themselves. Where pages of a site all link to the same hubs, cutting
  // those edges costs each page one row, which the cut of a graph never sees. Coarsening keeps to
  // communities (Heuer & Schlag 2017). No labels where that hardly lowers the number of pins.
  std::vector<Part> start_from_nets(u64 start) {
    Random random = random_.split(start);
    const Vertex stop_at = vertices_of_parts(options_.net_vertices_per_part, options_.parts);
    std::vector<Level<Hypergraph>> levels;
    coarsen_further(levels, stop_at, &communities_, random);
    coarsen_further(levels, stop_at, nullptr, random);
    const auto pins = static_cast<double>(h_.pins.size());
    const auto left = static_cast<double>(coarsest(h_, levels).pins.size());
    if (left > options_.net_start_below * pins) return {};
    report("initial partition", 0);
    BisectionOptions bisection = options_.net_bisection;
    bisection.threads = options_.threads;  // the other starts have usually ended by now
    std::vector<Part> labels = RecursiveBisection<Hypergraph>(options_.max_weight, bisection)(
        coarsest(h_, levels), options_.parts, random.split(1));
    return refine_upwards(levels, std::move(labels), 0.0, Aim::kVolume, random);
  }

  // The same parts, numbered by place where nodes matter.
  std::vector<Part> placed(std::vector<Part> labels) const {
    if (!options_.nodes.matter()) return labels;
    const PartGraph graph = part_graph(h_, labels, options_.parts);
    const auto place = Places(graph, options_.nodes.size, options_.kinds)();
    for (Part& label : labels) label = place[label];
    return labels;
  }

  // A V-cycle from the best of several partitions that keeps together only what all of them keep
  // together: regions in which they differ change sides as a whole (Andre, Schlag & Schulz 2018).
  std::vector<Part> combine(std::vector<std::vector<Part>> several, Random random) {
    const std::size_t best = best_of(several);
    std::vector<Part> groups = several[0];
    for (std::size_t i = 1; i < several.size(); ++i) groups = common_parts(groups, several[i]);
    return better_of(std::move(several[best]), std::move(groups), Aim::kVolume, random);
  }

  // A V-cycle that keeps the parts together.
  std::vector<Part> cycled(std::vector<Part> labels, Aim aim) {
    std::vector<Part> groups = labels;
    return better_of(std::move(labels), std::move(groups), aim, random_);
  }

  std::vector<Part> better_of(std::vector<Part> labels, std::vector<Part> groups, Aim aim,
                              Random& random) {
    std::vector<Part> refined = v_cycle(labels, std::move(groups), aim, random);
    std::vector<std::vector<Part>> both{std::move(labels), std::move(refined)};
    return std::move(both[best_of(both, aim == Aim::kMaximum ? kInTheEnd : kOnTheWay)]);
  }

  // Of partitions that are equally good, the first.
  std::size_t best_of(const std::vector<std::vector<Part>>& several, double weight = kOnTheWay) {
    std::vector<Score> scores(several.size());
    parallel_chunks(std::ssize(several), options_.threads,
                    [&](i64 i, int) { scores[i] = score_of(several[i], weight); });
    return std::min_element(scores.begin(), scores.end()) - scores.begin();
  }

  // Coarsens inside the groups, which must not span parts, and refines on the way back. On the
  // coarser levels, where vertices are heavy, bounds are loose; weight that is too much later
  // leaves at a price that is low only if most nets are cut anyway, so slack goes by their share.
  std::vector<Part> v_cycle(std::vector<Part> labels, std::vector<Part> groups, Aim aim,
                            Random& random) {
    const double slack = options_.slack * cut_share(labels);
    const Vertex stop_at = vertices_of_parts(options_.vertices_per_part, options_.parts);
    std::vector<Level<Hypergraph>> levels;
    coarsen_further(levels, stop_at, &groups, random);
    for (const auto& level : levels) labels = on_coarse(level, labels);
    return refine_upwards(levels, std::move(labels), slack, aim, random);
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
      // A level that hardly shrinks takes long to refine, and gains little.
      constexpr double kShrinks = 0.8;
      if (!level || level->coarse.num_vertices > kShrinks * finest.num_vertices) return;
      if (groups != nullptr) *groups = on_coarse(*level, *groups);
      add_level(levels, std::move(*level), h_);
    }
  }

  // Refines the labels of the coarsest level and of all that are finer. Bounds may be exceeded by
  // `slack` on the coarsest, on finer ones by ever less.
  std::vector<Part> refine_upwards(const std::vector<Level<Hypergraph>>& levels,
                                   std::vector<Part> labels, double slack, Aim aim,
                                   Random& random) {
    const auto depth = static_cast<double>(levels.size());
    double done = 0;
    const auto refine_level = [&](const Hypergraph& h, std::vector<Part>& finer_labels) {
      const bool finest = &h == &h_;
      report("refinement", done / (depth + 1));
      const Bound bounds = finest ? options_.max_weight : relaxed(slack * (depth - done) / depth);
      finer_labels =
          refine_volumes(h, std::move(finer_labels), bounds, finest, aim, options_, random);
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

  Score score_of(const std::vector<Part>& labels, double weight = kOnTheWay) const {
    return score(VolumeState(h_, labels, options_.parts, options_.nodes), options_, weight);
  }

  // Share of pins in another part than the root of their net.
  double share_away(const std::vector<Part>& labels) const {
    i64 away = 0;
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
    for (auto& bound : bounds) { bound += static_cast<i64>(slack * static_cast<double>(bound)); }
    return bounds;
  }

  CoarsenOptions coarsening(Vertex stop_at, const std::vector<Part>* groups) const {
    CoarsenOptions result;
    result.pair_budget = options_.pair_budget;
    result.groups = groups;
    result.max_members = options_.max_members;
    result.threads = options_.threads;
    for (i64 total : h_.total_weight()) {
      result.max_weight.push_back(std::max<i64>(1, total / stop_at * 3 / 2));
    }
    return result;
  }

  // Streams of random numbers beside those of the starts.
  static constexpr u64 kRefined = 1ULL << 32, kRound = 1ULL << 33;

  const Hypergraph& h_;
  Options options_;
  Random random_;
  std::thread::id caller_;
  std::atomic<bool> interrupted_ = false;
  std::vector<Part> communities_;  // of the first start
};

}  // namespace spgnn::gvb
