// Semi-external partitioning: O(vertices) memory, the nonzeros are read in storage order only.
//
// After Akhremtsev, Sanders, Schulz, "(Semi-)External Algorithms for Graph Partitioning and
// Clustering" (2014): cluster by label propagation, partition the graph of clusters in memory,
// refine by label propagation. Weights of edges and prices of parts are ours: they make the
// passes follow the send volume, total and maximum, rather than the cut.
#pragma once

#include <queue>

#include "cluster_graph.hpp"

namespace spgnn {

struct StreamOptions {
  std::int64_t parts;
  double imbalance;
  std::uint64_t seed;
  int cluster_passes, refine_passes, attempts;
  int threads;
};

// k-way label propagation under a limit on the weight of each part.
template <class Edges>
class Refinement {
 public:
  Refinement(const Edges& graph, BigArray<std::int32_t>& labels, const StreamOptions& options,
             Tick tick)
      : graph_(graph),
        labels_(labels),
        load_(options.parts),
        send_(options.parts),
        price_(options.parts),
        spread_(graph.vertices()),
        propagation_(graph, labels, options.threads, std::move(tick)) {
    std::int64_t total = 0;
    for (std::int64_t v = 0; v < graph.vertices(); ++v) {
      load_[labels[v]] += graph.weight_of(v);
      total += graph.weight_of(v);
    }
    double average = static_cast<double>(total) / static_cast<double>(options.parts);
    limit_ = static_cast<std::int64_t>(average * (1 + options.imbalance));
  }

  void operator()(int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      moved_ = 0;
      propagation_.pass([&](auto v, const auto& votes) { return decide(v, votes); },
                        [&](auto v, auto label) { move(v, label); });
      set_prices();
      if (moved_ < graph_.vertices() / 2000) break;
    }
  }

 private:
  // How strongly a part that sends more than the average repels vertices.
  static constexpr double kPrice = 0.3;

  std::int32_t decide(std::int64_t v, const std::vector<Votes::Entry>& votes) {
    std::int32_t own = labels_[v];
    float votes_for_own = 0;
    std::size_t others = 0;
    for (auto [label, votes_for] : votes) {
      if (label == own) {
        votes_for_own = votes_for;
      } else {
        ++others;
      }
    }
    spread_[v] = static_cast<std::uint16_t>(std::min<std::size_t>(others, UINT16_MAX));
    bool must_leave = load_[own] > limit_;
    std::int64_t room = limit_ - graph_.weight_of(v);
    std::int32_t best = own;
    float best_gain = must_leave ? -std::numeric_limits<float>::infinity() : kLeastGain;
    for (auto [label, votes_for] : votes) {
      if (label == own || load_[label] > room) continue;
      float rows = static_cast<float>(others);
      float gain = votes_for - votes_for_own + rows * (price_[own] - price_[label]);
      if (gain > best_gain) {
        best_gain = gain;
        best = label;
      }
    }
    return must_leave && best == own ? lightest() : best;
  }

  void move(std::int64_t v, std::int32_t label) {
    std::int64_t weight = graph_.weight_of(v);
    std::int32_t own = labels_[v];
    if (load_[label] + weight > limit_ && load_[label] + weight >= load_[own]) return;
    load_[own] -= weight;
    load_[label] += weight;
    labels_[v] = label;
    ++moved_;
  }

  std::int32_t lightest() const {
    return static_cast<std::int32_t>(std::min_element(load_.begin(), load_.end()) - load_.begin());
  }

  void set_prices() {
    std::fill(send_.begin(), send_.end(), 0);
    for (std::int64_t v = 0; v < graph_.vertices(); ++v) send_[labels_[v]] += spread_[v];
    double total = std::accumulate(send_.begin(), send_.end(), 0.0);
    for (std::size_t p = 0; total > 0 && p < send_.size(); ++p) {
      double share = static_cast<double>(send_[p]) * static_cast<double>(send_.size()) / total;
      price_[p] = static_cast<float>(kPrice * std::clamp(share - 1, -0.5, 1.0));
    }
  }

  static constexpr float kLeastGain = 1e-6f;

  const Edges& graph_;
  BigArray<std::int32_t>& labels_;
  std::vector<std::int64_t> load_, send_;
  std::vector<float> price_;
  BigArray<std::uint16_t> spread_;  // parts that v's row goes to, as of its last visit
  LabelPropagation<Edges> propagation_;
  std::int64_t limit_ = 0, moved_ = 0;
};

// Fills one part after another from a random vertex, the best connected vertex first.
inline BigArray<std::int32_t> grow_parts(const WeightedGraph& graph, std::int64_t parts,
                                         std::uint64_t seed) {
  std::int64_t n = graph.vertices();
  BigArray<std::int32_t> labels(n);
  std::fill(labels.begin(), labels.end(), -1);
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return scramble(a ^ seed << 32) < scramble(b ^ seed << 32); });
  std::int64_t left =
      std::accumulate(graph.vertex_weight.begin(), graph.vertex_weight.end(), std::int64_t{0});
  std::vector<float> votes(n);
  std::size_t next_seed = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    std::int64_t target = left / (parts - part), load = 0;
    bool is_last = part + 1 == parts;
    std::priority_queue<std::pair<float, std::int32_t>> queue;
    std::vector<std::int32_t> touched;
    while (load < target || is_last) {
      if (queue.empty()) {
        while (next_seed < order.size() && labels[order[next_seed]] >= 0) ++next_seed;
        if (next_seed == order.size()) break;
        queue.emplace(0.f, order[next_seed]);
      }
      auto [votes_then, v] = queue.top();
      queue.pop();
      if (labels[v] >= 0 || votes_then < votes[v]) continue;  // taken, or queued anew since
      labels[v] = static_cast<std::int32_t>(part);
      load += graph.vertex_weight[v];
      for (std::int64_t e = graph.begin(v); e < graph.end(v); ++e) {
        std::int32_t u = graph.neighbour(e);
        if (labels[u] >= 0) continue;
        if (votes[u] == 0) touched.push_back(u);
        votes[u] += graph.weight(e);
        queue.emplace(votes[u], u);
      }
    }
    for (std::int32_t v : touched) votes[v] = 0;
    left -= load;
  }
  return labels;
}

inline double weighted_cut(const WeightedGraph& graph, const BigArray<std::int32_t>& labels) {
  double cut = 0;
  for (std::int64_t v = 0; v < graph.vertices(); ++v) {
    for (std::int64_t e = graph.begin(v); e < graph.end(v); ++e) {
      if (labels[v] != labels[graph.neighbour(e)]) cut += graph.weight(e);
    }
  }
  return cut;
}

class StreamPartitioner {
 public:
  StreamPartitioner(const Adjacency& adjacency, std::span<const std::int64_t> weights,
                    const StreamOptions& options, Tick tick)
      : adjacency_(adjacency),
        options_(options),
        tick_(std::move(tick)),
        graph_(adjacency, weights, kSpread * static_cast<double>(options.parts)) {
    // A cluster of a sixteenth of a part can still be placed with the balance in mind.
    std::int64_t total = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    max_cluster_ = std::max<std::int64_t>(1, total / (16 * options.parts));
  }

  BigArray<std::int32_t> partition() { return multilevel(graph_, true); }

  void refine(BigArray<std::int32_t>& labels) {
    Refinement<AdjacencyEdges>(graph_, labels, options_,
                               part_of_work(0, options_.refine_passes))(options_.refine_passes);
  }

 private:
  static constexpr double kSpread = 1.0;
  static constexpr std::int64_t kCoarsest = 64;  // vertices per part of the coarsest graph

  // Partition the graph of clusters, and so on; labels of the clusters become those of members.
  template <class Edges>
  BigArray<std::int32_t> multilevel(const Edges& graph, bool is_whole_graph) {
    // Only passes over the whole graph take long enough to be told of.
    int all = options_.cluster_passes + 1 + options_.refine_passes;
    auto tick = [&](int before) { return is_whole_graph ? part_of_work(before, all) : Tick{}; };
    std::int64_t n = graph.vertices();
    BigArray<std::int32_t> labels(n);
    cluster(graph, labels, max_cluster_, options_.cluster_passes, options_.seed, options_.threads,
            tick(0));
    std::int64_t count = number_in_order(labels);
    std::int64_t most_pairs = std::max<std::int64_t>(adjacency_.vertices(), 1 << 22);
    WeightedGraph small = Contraction<Edges>(graph, labels, count, most_pairs, options_.threads,
                                             tick(options_.cluster_passes))();
    bool is_coarsest = count <= kCoarsest * options_.parts || count > n * 9 / 10;
    BigArray<std::int32_t> coarse = is_coarsest ? initial(small) : multilevel(small, false);
    for (std::int32_t& label : labels) label = coarse[label];
    Refinement<Edges>(graph, labels, options_,
                      tick(options_.cluster_passes + 1))(options_.refine_passes);
    return labels;
  }

  // Shows a stage's (done, all) as a part of `passes` passes, after `before` of them.
  Tick part_of_work(int before, int passes) const {
    return [this, before, passes](std::int64_t done, std::int64_t all) {
      if (tick_) tick_(before * all + done, passes * all);
    };
  }

  BigArray<std::int32_t> initial(const WeightedGraph& graph) {
    BigArray<std::int32_t> best;
    double best_cut = 0;
    for (int attempt = 0; attempt < options_.attempts; ++attempt) {
      auto labels = grow_parts(graph, options_.parts, options_.seed + attempt);
      Refinement<WeightedGraph>(graph, labels, options_, {})(2 * options_.refine_passes);
      double cut = weighted_cut(graph, labels);
      if (attempt == 0 || cut < best_cut) {
        best = std::move(labels);
        best_cut = cut;
      }
    }
    return best;
  }

  Adjacency adjacency_;
  StreamOptions options_;
  Tick tick_;
  AdjacencyEdges graph_;
  std::int64_t max_cluster_;
};

}  // namespace spgnn
