// Partitions in memory of a few numbers a vertex: label propagation, clusters, packing, refinement.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <queue>
#include <vector>

#include "adjacency.hpp"
#include "big_array.hpp"
#include "parallel.hpp"

namespace spgnn {

// Size-constrained label propagation (Raghavan et al. 2007; Meyerhenke, Sanders, Schulz 2014):
// each vertex joins the label that most of its neighbours have, where there is room.

// Sums of weights by label, for one vertex at a time; open addressing, emptied by its own list.
class Votes {
 public:
  struct Entry {
    std::int32_t label;
    float weight;
  };

  void start(std::int64_t most) {
    std::size_t capacity = std::bit_ceil(static_cast<std::size_t>(2 * most + 2));
    if (capacity > slots_.size()) slots_.assign(capacity, kEmpty);
    mask_ = static_cast<std::uint32_t>(capacity - 1);
    entries_.clear();
    used_.clear();
  }
  void add(std::int32_t label, float weight) {
    std::uint32_t at = (static_cast<std::uint32_t>(label) * 0x9e3779b1u >> 7) & mask_;
    while (slots_[at] != kEmpty && entries_[slots_[at]].label != label) at = (at + 1) & mask_;
    if (slots_[at] == kEmpty) {
      slots_[at] = static_cast<std::int32_t>(entries_.size());
      used_.push_back(at);
      entries_.push_back({label, 0});
    }
    entries_[slots_[at]].weight += weight;
  }
  // In order of first appearance. Ends the vertex.
  const std::vector<Entry>& finish() {
    for (std::uint32_t at : used_) slots_[at] = kEmpty;
    return entries_;
  }

 private:
  static constexpr std::int32_t kEmpty = -1;
  std::vector<std::int32_t> slots_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> used_;
  std::uint32_t mask_ = 0;
};

// An adjacency whose edges weigh what their neighbour says: cutting an edge to a vertex that many
// parts need anyway costs nothing more, so the weight falls with the degree.
//
// Moving v to part b spares a row of u, a neighbour in b, unless b needs u for another neighbour
// too. If d - 1 others lie anywhere in `spread` parts, that chance is about spread / (spread + d).
class AdjacencyEdges {
 public:
  AdjacencyEdges(const Adjacency& adjacency, std::span<const std::int64_t> weights, double spread)
      : adjacency_(adjacency), weights_(weights), degree_class_(adjacency.vertices()) {
    for (int c = 0; c < 256; ++c) {
      weight_[c] = static_cast<float>(spread / (spread + std::exp2(c / 8.0) - 1));
    }
    for (std::int64_t v = 0; v < adjacency.vertices(); ++v) {
      double degree = static_cast<double>(adjacency.indptr[v + 1] - adjacency.indptr[v]);
      degree_class_[v] = static_cast<std::uint8_t>(8 * std::log2(degree + 1));
    }
  }

  std::int64_t vertices() const { return adjacency_.vertices(); }
  std::int64_t edges() const { return adjacency_.edges(); }
  std::int64_t weight_of(std::int64_t v) const { return weights_[v]; }
  std::int64_t begin(std::int64_t v) const { return adjacency_.indptr[v]; }
  std::int64_t end(std::int64_t v) const { return adjacency_.indptr[v + 1]; }
  std::int32_t neighbour(std::int64_t e) const { return adjacency_.indices[e]; }
  float weight(std::int64_t e) const { return weight_[degree_class_[adjacency_.indices[e]]]; }
  void prefetch(std::int64_t e) const {
    std::int32_t u = adjacency_.indices[e];
    if (static_cast<std::uint32_t>(u) < degree_class_.size()) __builtin_prefetch(&degree_class_[u]);
  }

 private:
  Adjacency adjacency_;
  std::span<const std::int64_t> weights_;
  BigArray<std::uint8_t> degree_class_;  // 8 log2(degree + 1)
  float weight_[256];
};

// A small weighted graph in memory: what is left when clusters become vertices.
struct WeightedGraph {
  std::vector<std::int64_t> indptr{0}, vertex_weight;
  std::vector<std::int32_t> indices;
  std::vector<float> edge_weight;

  std::int64_t vertices() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  std::int64_t edges() const { return static_cast<std::int64_t>(indices.size()); }
  std::int64_t weight_of(std::int64_t v) const { return vertex_weight[v]; }
  std::int64_t begin(std::int64_t v) const { return indptr[v]; }
  std::int64_t end(std::int64_t v) const { return indptr[v + 1]; }
  std::int32_t neighbour(std::int64_t e) const { return indices[e]; }
  float weight(std::int64_t e) const { return edge_weight[e]; }
  void prefetch(std::int64_t) const {}
};

inline std::uint32_t scramble(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15;
  return static_cast<std::uint32_t>((x ^ (x >> 29)) * 0xbf58476d1ce4e5b9 >> 32);
}

// Runs passes over all vertices in storage order; ticks as (vertices visited so far, vertices).
// Vertices of a batch decide in parallel on the state at its begin and move one after another, so
// the result does not depend on the threads.
template <class Edges>
class LabelPropagation {
 public:
  LabelPropagation(const Edges& graph, BigArray<std::int32_t>& labels, int threads, Tick tick)
      : graph_(graph), labels_(labels), threads_(threads), tick_(std::move(tick)), votes_(threads) {
    std::int64_t n = graph.vertices();
    batch_rows_ = std::clamp<std::int64_t>(n / 64, 256, 1 << 20);
    wanted_.resize(batch_rows_);
  }

  // One pass; decide(v, votes of v) names a label, move(v, label) may still refuse it.
  template <class Decide, class Move>
  void pass(const Decide& decide, const Move& move) {
    std::int64_t n = graph_.vertices();
    for (std::int64_t first = 0; first < n; first += batch_rows_) {
      std::int64_t last = std::min(first + batch_rows_, n);
      constexpr std::int64_t kRows = 2048;
      parallel_chunks((last - first + kRows - 1) / kRows, threads_,
                      [&](std::int64_t chunk, int thread) {
                        std::int64_t begin = first + chunk * kRows;
                        for (std::int64_t v = begin; v < std::min(begin + kRows, last); ++v) {
                          wanted_[v - first] = decide(v, vote(v, votes_[thread]));
                        }
                      });
      for (std::int64_t v = first; v < last; ++v) {
        if (wanted_[v - first] != labels_[v]) move(v, wanted_[v - first]);
      }
      if (tick_) tick_(passes_ * n + last, n);
    }
    ++passes_;
  }

 private:
  static constexpr std::int64_t kPrefetch = 24;
  static constexpr std::int64_t kMostVotes = 4096;  // a hub asks this many of its neighbours

  const std::vector<Votes::Entry>& vote(std::int64_t v, Votes& votes) {
    std::int64_t begin = graph_.begin(v), end = graph_.end(v);
    std::int64_t stride = (end - begin + kMostVotes - 1) / kMostVotes;
    votes.start(std::min(end - begin, kMostVotes));
    for (std::int64_t e = begin; e < end; e += std::max<std::int64_t>(stride, 1)) {
      if (e + kPrefetch < graph_.edges()) {
        graph_.prefetch(e + kPrefetch);
        auto ahead = static_cast<std::uint32_t>(graph_.neighbour(e + kPrefetch));
        if (ahead < labels_.size()) __builtin_prefetch(&labels_[ahead]);
      }
      std::int32_t u = graph_.neighbour(e);
      require_vertex(u, graph_.vertices(), v);
      if (u != v) votes.add(labels_[u], graph_.weight(e));
    }
    return votes.finish();
  }

  const Edges& graph_;
  BigArray<std::int32_t>& labels_;
  int threads_;
  Tick tick_;
  std::int64_t batch_rows_, passes_ = 0;
  std::vector<Votes> votes_;
  std::vector<std::int32_t> wanted_;
};

// Clusters of at most max_weight each; labels are ids of vertices.
template <class Edges>
void cluster(const Edges& graph, BigArray<std::int32_t>& labels, std::int64_t max_weight,
             int passes, std::uint64_t seed, int threads, const Tick& tick) {
  std::int64_t n = graph.vertices();
  BigArray<std::int64_t> weight(n);
  for (std::int64_t v = 0; v < n; ++v) {
    labels[v] = static_cast<std::int32_t>(v);
    weight[v] = graph.weight_of(v);
  }
  LabelPropagation<Edges> propagation(graph, labels, threads, tick);
  for (int pass = 0; pass < passes; ++pass) {
    std::int64_t moved = 0;
    auto decide = [&](std::int64_t v, const std::vector<Votes::Entry>& votes) {
      std::int32_t best = labels[v];
      float best_votes = 0;
      std::int64_t room = max_weight - graph.weight_of(v);
      for (auto [label, votes_for] : votes) {
        if (votes_for < best_votes) continue;
        if (label != labels[v] && weight[label] > room) continue;
        // Ties at random, or else the smallest id would grow without reason.
        if (votes_for == best_votes && scramble(label ^ seed ^ v) < scramble(best ^ seed ^ v)) {
          continue;
        }
        best = label;
        best_votes = votes_for;
      }
      return best;
    };
    auto move = [&](std::int64_t v, std::int32_t label) {
      if (weight[label] + graph.weight_of(v) > max_weight) return;
      weight[labels[v]] -= graph.weight_of(v);
      weight[label] += graph.weight_of(v);
      labels[v] = label;
      ++moved;
    };
    propagation.pass(decide, move);
    if (moved < n / 1000) break;
  }
}

// Clusters become the vertices of a small weighted graph.

// Builds the graph of clusters. Of a graph too large for it, only a sample of rows is looked at:
// at most about `most_pairs` pairs (cluster, neighbouring cluster) are kept, 16 bytes each.
template <class Edges>
class Contraction {
 public:
  Contraction(const Edges& graph, const BigArray<std::int32_t>& clusters, std::int64_t count,
              std::int64_t most_pairs, int threads, Tick tick)
      : graph_(graph),
        clusters_(clusters),
        count_(count),
        threads_(threads),
        tick_(std::move(tick)),
        votes_(threads),
        pairs_(threads) {
    stride_ = std::max<std::int64_t>(1, (expected_pairs() + most_pairs - 1) / most_pairs);
  }

  WeightedGraph operator()() {
    collect();
    WeightedGraph small;
    small.vertex_weight.resize(count_);
    for (std::int64_t v = 0; v < graph_.vertices(); ++v) {
      small.vertex_weight[clusters_[v]] += graph_.weight_of(v);
    }
    std::vector<std::vector<Pair>> merged(kBuckets);
    parallel_chunks(kBuckets, threads_,
                    [&](std::int64_t bucket, int) { merged[bucket] = merge(bucket); });
    link(small, merged);
    return small;
  }

 private:
  struct Pair {
    std::uint32_t low, high;
    std::uint64_t weight;  // in 1/1024, so that sums do not depend on their order
  };
  static constexpr std::int64_t kBuckets = 64;
  static constexpr float kUnit = 1024;

  // Neighbouring clusters other than its own, with their votes.
  const std::vector<Votes::Entry>& vote(std::int64_t v, Votes& votes) const {
    votes.start(graph_.end(v) - graph_.begin(v));
    for (std::int64_t e = graph_.begin(v); e < graph_.end(v); ++e) {
      std::int32_t other = clusters_[graph_.neighbour(e)];
      if (other != clusters_[v]) votes.add(other, graph_.weight(e));
    }
    return votes.finish();
  }

  std::int64_t expected_pairs() {
    constexpr std::int64_t kSample = 1 << 14;
    std::int64_t n = graph_.vertices(), seen = 0, pairs = 0;
    for (std::int64_t v = 0; v < n; v += std::max<std::int64_t>(1, n / kSample), ++seen) {
      pairs += static_cast<std::int64_t>(vote(v, votes_[0]).size());
    }
    return seen ? pairs * (n / seen) : 0;
  }

  void collect() {
    constexpr std::int64_t kRows = 1 << 14;
    std::int64_t n = graph_.vertices();
    parallel_chunks((n + kRows - 1) / kRows, threads_,
                    [&](std::int64_t chunk, int thread) {
                      for (std::int64_t v = chunk * kRows; v < std::min((chunk + 1) * kRows, n);
                           ++v) {
                        if (scramble(v) % stride_ == 0) add_row(v, thread);
                      }
                    },
                    tick_);
  }
  void add_row(std::int64_t v, int thread) {
    auto own = static_cast<std::uint32_t>(clusters_[v]);
    for (auto [label, weight] : vote(v, votes_[thread])) {
      auto other = static_cast<std::uint32_t>(label);
      Pair pair{std::min(own, other), std::max(own, other),
                std::max<std::uint64_t>(1, static_cast<std::uint64_t>(weight * kUnit))};
      pairs_[thread][pair.low % kBuckets].push_back(pair);
    }
  }

  std::vector<Pair> merge(std::int64_t bucket) {
    std::vector<Pair> all;
    for (auto& buckets : pairs_) {
      all.insert(all.end(), buckets[bucket].begin(), buckets[bucket].end());
      buckets[bucket] = {};
    }
    auto key = [](const Pair& p) { return std::uint64_t{p.low} << 32 | p.high; };
    std::sort(all.begin(), all.end(),
              [&](const Pair& a, const Pair& b) { return key(a) < key(b); });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (kept && key(all[kept - 1]) == key(all[i])) {
        all[kept - 1].weight += all[i].weight;
      } else {
        all[kept++] = all[i];
      }
    }
    all.resize(kept);
    all.shrink_to_fit();
    return all;
  }

  // Each pair becomes an edge in both directions.
  void link(WeightedGraph& small, const std::vector<std::vector<Pair>>& merged) const {
    auto for_each = [&](auto visit) {
      for (const auto& bucket : merged) {
        for (const Pair& pair : bucket) visit(pair);
      }
    };
    small.indptr.assign(count_ + 1, 0);
    for_each([&](const Pair& pair) {
      ++small.indptr[pair.low + 1];
      ++small.indptr[pair.high + 1];
    });
    std::partial_sum(small.indptr.begin(), small.indptr.end(), small.indptr.begin());
    small.indices.resize(small.indptr.back());
    small.edge_weight.resize(small.indptr.back());
    std::vector<std::int64_t> next(small.indptr.begin(), small.indptr.end() - 1);
    auto add = [&](std::uint32_t from, std::uint32_t to, std::uint64_t weight) {
      small.indices[next[from]] = static_cast<std::int32_t>(to);
      small.edge_weight[next[from]++] = static_cast<float>(weight) / kUnit;
    };
    for_each([&](const Pair& pair) {
      add(pair.low, pair.high, pair.weight);
      add(pair.high, pair.low, pair.weight);
    });
  }

  const Edges& graph_;
  const BigArray<std::int32_t>& clusters_;
  std::int64_t count_;
  int threads_;
  Tick tick_;
  std::int64_t stride_ = 1;
  std::vector<Votes> votes_;
  std::vector<std::array<std::vector<Pair>, kBuckets>> pairs_;
};

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
