// Size-constrained label propagation (Raghavan et al. 2007; Meyerhenke, Sanders, Schulz 2014):
// each vertex joins the label that most of its neighbours have, where there is room.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "adjacency.hpp"
#include "big_array.hpp"
#include "parallel.hpp"

namespace spgnn {

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

}  // namespace spgnn
