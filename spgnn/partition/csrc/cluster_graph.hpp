// Clusters become the vertices of a small weighted graph.
#pragma once

#include <array>
#include <numeric>
#include <vector>

#include "groups.hpp"
#include "label_propagation.hpp"

namespace spgnn {

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

}  // namespace spgnn
