// Partitions in memory of a few numbers a vertex: label propagation, clusters, gvb's cut of their
// graph, and refinement by send volume.
#pragma once

#include "adjacency.hpp"
#include "big_array.hpp"
#include "gvb/cut_partition.hpp"
#include "parallel.hpp"

namespace spgnn {

struct StreamOptions {
  i64 parts;
  gvb::Bound max_weight;
  std::span<const i32> fixed;  // the part of each vertex, -1: any; or empty
  u64 seed;
  int cluster_passes, refine_passes, threads;
  bool receive;  // whether parts that receive much cost more as well

  bool is_fixed(i64 v) const { return !fixed.empty() && fixed[v] >= 0; }
};

// Size-constrained label propagation (Raghavan et al. 2007; Meyerhenke, Sanders, Schulz 2014).

// Sums of weights by label, for one vertex at a time; open addressing, emptied by its own list.
class Votes {
 public:
  struct Entry {
    i32 label;
    float weight;
  };

  void start(i64 most) {
    std::size_t capacity = std::bit_ceil(static_cast<std::size_t>(2 * most + 2));
    if (capacity > slots_.size()) slots_.assign(capacity, kEmpty);
    mask_ = static_cast<u32>(capacity - 1);
    entries_.clear();
    used_.clear();
  }
  void add(i32 label, float weight) {
    u32 at = (static_cast<u32>(label) * 0x9e3779b1u >> 7) & mask_;
    while (slots_[at] != kEmpty && entries_[slots_[at]].label != label) at = (at + 1) & mask_;
    if (slots_[at] == kEmpty) {
      slots_[at] = static_cast<i32>(entries_.size());
      used_.push_back(at);
      entries_.push_back({label, 0});
    }
    entries_[slots_[at]].weight += weight;
  }
  std::size_t labels() const { return entries_.size(); }
  // In order of first appearance. Ends the vertex.
  const std::vector<Entry>& finish() {
    for (u32 at : used_) slots_[at] = kEmpty;
    return entries_;
  }

 private:
  static constexpr i32 kEmpty = -1;
  std::vector<i32> slots_;
  std::vector<Entry> entries_;
  std::vector<u32> used_;
  u32 mask_ = 0;
};

// The rows that each vertex needs (`rows`), and those that need its row (`columns`). What is needed
// weighs less the more need it: moving v to part b spares a row of u unless b needs it for another.
// If d - 1 others lie anywhere in `spread` parts, that chance is about spread / (spread + d).
class AdjacencyEdges {
 public:
  AdjacencyEdges(const Adjacency& rows, const Adjacency& columns, std::span<const i64> weights,
                 double spread)
      : rows_(rows), columns_(columns), symmetric_(rows.indices.data() == columns.indices.data()),
        weights_(weights), degree_class_(rows.vertices()) {
    for (int c = 0; c < 256; ++c) {
      weight_[c] = static_cast<float>(spread / (spread + std::exp2(c / 8.0) - 1));
    }
    for (i64 v = 0; v < vertices(); ++v) {
      double degree = static_cast<double>(columns.indptr[v + 1] - columns.indptr[v]);
      degree_class_[v] = static_cast<u8>(8 * std::log2(degree + 1));
    }
  }

  i64 vertices() const { return rows_.vertices(); }
  bool symmetric() const { return symmetric_; }
  const Adjacency& rows() const { return rows_; }
  const Adjacency& columns() const { return columns_; }
  i64 weight_of(i64 v) const { return weights_[v]; }
  // No vertex has more neighbours.
  i64 most_neighbours(i64 v) const {
    const i64 needs = rows_.indptr[v + 1] - rows_.indptr[v];
    return symmetric_ ? needs : needs + columns_.indptr[v + 1] - columns_.indptr[v];
  }
  // Of one need of the row of u.
  float weight(i64 u) const { return weight_[degree_class_[u]]; }
  void prefetch(i64 u) const { __builtin_prefetch(&degree_class_[u]); }

 private:
  Adjacency rows_, columns_;
  bool symmetric_;
  std::span<const i64> weights_;
  BigArray<u8> degree_class_;  // 8 log2(vertices that need it + 1)
  float weight_[256];
};

inline u32 scramble(u64 x) {
  x *= 0x9e3779b97f4a7c15;
  return static_cast<u32>((x ^ (x >> 29)) * 0xbf58476d1ce4e5b9 >> 32);
}

// Calls visit(u) for the neighbours u of v; asks ahead for what `ahead` is read at.
template <class Ahead, class Visit>
void for_neighbours(const Adjacency& adjacency, i64 v, const Ahead& ahead, const Visit& visit) {
  constexpr i64 kPrefetch = 24;
  constexpr i64 kMost = 4096;  // a hub asks this many of its neighbours
  i64 begin = adjacency.indptr[v], end = adjacency.indptr[v + 1];
  i64 stride = std::max<i64>((end - begin + kMost - 1) / kMost, 1);
  for (i64 e = begin; e < end; e += stride) {
    if (e + kPrefetch < adjacency.edges()) {
      auto next = static_cast<u32>(adjacency.indices[e + kPrefetch]);
      if (next < adjacency.vertices()) ahead(next);
    }
    i32 u = adjacency.indices[e];
    require_vertex(u, adjacency.vertices(), v);
    if (u != v) visit(u);
  }
}

// Passes over all vertices in storage order; ticks as (vertices visited, vertices). Those of a
// batch decide in parallel and move one after another, so threads do not matter.
class Passes {
 public:
  Passes(i64 vertices, int threads, Tick tick)
      : n_(vertices), threads_(threads), tick_(std::move(tick)),
        batch_rows_(std::clamp<i64>(vertices / 64, 256, 1 << 20)) {}

  i64 batch_rows() const { return batch_rows_; }

  // decide(v, place in the batch, thread) in parallel, then move(v, place) one after another.
  template <class Decide, class Move> void operator()(const Decide& decide, const Move& move) {
    for (i64 first = 0; first < n_; first += batch_rows_) {
      i64 last = std::min(first + batch_rows_, n_);
      constexpr i64 kRows = 2048;
      parallel_chunks((last - first + kRows - 1) / kRows, threads_, [&](i64 chunk, int thread) {
        i64 begin = first + chunk * kRows;
        for (i64 v = begin; v < std::min(begin + kRows, last); ++v) {
          decide(v, v - first, thread);
        }
      });
      for (i64 v = first; v < last; ++v) move(v, v - first);
      if (tick_) tick_(passes_ * n_ + last, n_);
    }
    ++passes_;
  }

 private:
  i64 n_;
  int threads_;
  Tick tick_;
  i64 batch_rows_, passes_ = 0;
};

// Clusters of at most max_weight each; labels are ids of vertices. All vertices of a cluster are
// fixed to the same part, or none is.
inline void cluster(const AdjacencyEdges& graph, BigArray<i32>& labels, i64 max_weight,
                    const StreamOptions& options, const Tick& tick) {
  i64 n = graph.vertices();
  BigArray<i64> weight(n);
  for (i64 v = 0; v < n; ++v) {
    labels[v] = static_cast<i32>(v);
    weight[v] = graph.weight_of(v);
  }
  Passes run(n, options.threads, tick);
  std::vector<Votes> votes_of(options.threads);
  const auto order = [&](i64 label, i64 v) { return scramble(label ^ options.seed ^ v); };
  std::vector<i32> wanted(run.batch_rows());
  for (int pass = 0; pass < options.cluster_passes; ++pass) {
    i64 moved = 0;
    auto decide = [&](i64 v, i64 place, int thread) {
      Votes& votes = votes_of[thread];
      votes.start(graph.most_neighbours(v));
      const auto ahead = [&](auto u) { graph.prefetch(u), __builtin_prefetch(&labels[u]); };
      for_neighbours(graph.rows(), v, ahead,
                     [&](auto u) { votes.add(labels[u], graph.weight(u)); });
      if (!graph.symmetric()) {
        for_neighbours(graph.columns(), v, ahead,
                       [&](auto u) { votes.add(labels[u], graph.weight(v)); });
      }
      i32 best = labels[v];
      float best_votes = 0;
      i64 room = max_weight - graph.weight_of(v);
      for (auto [label, votes_for] : votes.finish()) {
        if (votes_for < best_votes) continue;
        if (label != labels[v] && weight[label] > room) continue;
        if (!options.fixed.empty() && options.fixed[label] != options.fixed[v]) continue;
        // Ties at random, or else the smallest id would grow without reason.
        if (votes_for == best_votes && order(label, v) < order(best, v)) continue;
        best = label;
        best_votes = votes_for;
      }
      wanted[place] = best;
    };
    auto move = [&](i64 v, i64 place) {
      const i32 label = wanted[place];
      if (label == labels[v] || weight[label] + graph.weight_of(v) > max_weight) return;
      weight[labels[v]] -= graph.weight_of(v);
      weight[label] += graph.weight_of(v);
      labels[v] = label;
      ++moved;
    };
    run(decide, move);
    if (moved < n / 1000) break;
  }
}

// Clusters become the vertices of a small weighted graph.

// Of too large a graph, a sample of rows: about `most_pairs` pairs of clusters are kept.
class Contraction {
 public:
  Contraction(const AdjacencyEdges& graph, const BigArray<i32>& clusters, i64 count, i64 most_pairs,
              int threads, Tick tick)
      : graph_(graph), clusters_(clusters), count_(count), threads_(threads),
        tick_(std::move(tick)), votes_(threads), pairs_(threads) {
    stride_ = std::max<i64>(1, (expected_pairs() + most_pairs - 1) / most_pairs);
  }

  gvb::CutGraph operator()() {
    collect();
    gvb::CutGraph small;
    small.num_vertices = static_cast<gvb::Vertex>(count_);
    small.vertex_weight.resize(count_);
    for (i64 v = 0; v < graph_.vertices(); ++v) {
      small.vertex_weight[clusters_[v]] += graph_.weight_of(v);
    }
    std::vector<std::vector<Pair>> all(kBuckets);
    parallel_chunks(kBuckets, threads_, [&](i64 bucket, int) { all[bucket] = merged(bucket); });
    link(small, all);
    return small;
  }

 private:
  struct Pair {
    u32 low, high;
    u64 weight;  // in 1/1024, so that sums do not depend on their order
  };
  static constexpr i64 kBuckets = 64;
  static constexpr float kUnit = 1024;

  // Neighbouring clusters other than its own, with their votes.
  const std::vector<Votes::Entry>& vote(i64 v, Votes& votes) const {
    const auto row = graph_.rows().row(v);
    votes.start(std::ssize(row));
    for (i32 u : row) {
      i32 other = clusters_[u];
      if (other != clusters_[v]) votes.add(other, graph_.weight(u));
    }
    return votes.finish();
  }

  i64 expected_pairs() {
    constexpr i64 kSample = 1 << 14;
    i64 n = graph_.vertices(), seen = 0, pairs = 0;
    for (i64 v = 0; v < n; v += std::max<i64>(1, n / kSample), ++seen) {
      pairs += static_cast<i64>(vote(v, votes_[0]).size());
    }
    return seen ? pairs * (n / seen) : 0;
  }

  void collect() {
    constexpr i64 kRows = 1 << 14;
    i64 n = graph_.vertices();
    parallel_chunks((n + kRows - 1) / kRows, threads_,
                    [&](i64 chunk, int thread) {
                      for (i64 v = chunk * kRows; v < std::min((chunk + 1) * kRows, n); ++v) {
                        if (scramble(v) % stride_ == 0) add_row(v, thread);
                      }
                    },
                    tick_);
  }
  void add_row(i64 v, int thread) {
    auto own = static_cast<u32>(clusters_[v]);
    for (auto [label, weight] : vote(v, votes_[thread])) {
      auto other = static_cast<u32>(label);
      Pair pair{std::min(own, other), std::max(own, other),
                std::max<u64>(1, static_cast<u64>(weight * kUnit))};
      std::vector<Pair>& bucket = pairs_[thread][pair.low % kBuckets];
      if (bucket.size() == bucket.capacity()) {
        merge(bucket);
        // Where little is equal, merging again soon would take long.
        bucket.reserve(bucket.size() * 3 / 2 + 64);
      }
      bucket.push_back(pair);
    }
  }

  std::vector<Pair> merged(i64 bucket) {
    std::vector<Pair> all;
    for (auto& buckets : pairs_) {
      all.insert(all.end(), buckets[bucket].begin(), buckets[bucket].end());
      buckets[bucket] = std::vector<Pair>();
    }
    merge(all);
    all.shrink_to_fit();
    return all;
  }

  // Equal pairs become one.
  static void merge(std::vector<Pair>& all) {
    auto key = [](const Pair& p) { return u64{p.low} << 32 | p.high; };
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
  }

  // Each pair becomes an edge in both directions.
  void link(gvb::CutGraph& small, const std::vector<std::vector<Pair>>& merged) const {
    auto for_each = [&](auto visit) {
      for (const auto& bucket : merged) {
        for (const Pair& pair : bucket) visit(pair);
      }
    };
    small.begin.assign(count_ + 1, 0);
    for_each([&](const Pair& pair) {
      ++small.begin[pair.low + 1];
      ++small.begin[pair.high + 1];
    });
    std::partial_sum(small.begin.begin(), small.begin.end(), small.begin.begin());
    small.edges.resize(small.begin.back());
    std::vector<i64> next(small.begin.begin(), small.begin.end() - 1);
    auto add = [&](u32 from, u32 to, u64 weight) {
      small.edges[next[from]++] = {static_cast<i32>(to),
                                   static_cast<i32>(std::min<u64>(weight, 1 << 30))};
    };
    for_each([&](const Pair& pair) {
      add(pair.low, pair.high, pair.weight);
      add(pair.high, pair.low, pair.weight);
    });
  }

  const AdjacencyEdges& graph_;
  const BigArray<i32>& clusters_;
  i64 count_;
  int threads_;
  Tick tick_;
  i64 stride_ = 1;
  std::vector<Votes> votes_;
  std::vector<std::array<std::vector<Pair>, kBuckets>> pairs_;
};

// For each bit of the words it is given, how many had it set: counters whose digits are words.
class BitCounters {
 public:
  void add(u64 word) {
    for (std::size_t digit = 0; word != 0; ++digit) {
      if (digit == digits_) digit_[digits_++] = 0;
      u64 carry = digit_[digit] & word;
      digit_[digit] ^= word;
      word = carry;
    }
  }
  int count(int bit) const {
    int sum = 0;
    for (std::size_t digit = 0; digit < digits_; ++digit) {
      sum += static_cast<int>(digit_[digit] >> bit & 1) << digit;
    }
    return sum;
  }

 private:
  std::array<u64, 16> digit_;
  std::size_t digits_ = 0;
};

// Greedy k-way refinement by volume under a limit on weights. Row v of H is needed by v and its
// neighbours; a sketch says which parts that touches, and which more than once (beyond 64, parts
// share bits). Moving v to b saves a row of u if v was alone in its part, and costs one if b had
// none.
class Refinement {
 public:
  Refinement(const AdjacencyEdges& graph, BigArray<i32>& labels, const StreamOptions& options,
             Tick tick)
      : graph_(graph), options_(options), labels_(labels), load_(options.parts),
        send_(options.parts), receive_(options.parts),
        counted_(options.threads, std::vector<i64>(options.parts)), rows_(graph.vertices()),
        sketch_(graph.vertices()), votes_(options.threads),
        passes_(graph.vertices(), options.threads, std::move(tick)), choice_(passes_.batch_rows()) {
    for (i64 v = 0; v < graph.vertices(); ++v) load_[labels[v]] += graph.weight_of(v);
  }

  void operator()(int passes) {
    for (int pass = 0; pass <= passes; ++pass) {  // the first only takes stock
      moved_ = 0;
      passes_(
          [&](auto v, auto place, int thread) { choice_[place] = decide(v, thread, pass > 0); },
          [&](auto v, auto place) { move(v, choice_[place], v - place + passes_.batch_rows()); });
      std::fill(receive_.begin(), receive_.end(), 0);
      for (auto& counted : counted_) {
        for (std::size_t p = 0; p < receive_.size(); ++p) {
          receive_[p] += std::exchange(counted[p], 0);
        }
      }
      double total = std::accumulate(send_.begin(), send_.end(), 0.0);
      level_ = static_cast<float>(static_cast<double>(send_.size()) / std::max(1.0, total));
      if (pass > 0 && moved_ < graph_.vertices() / 2000) break;
    }
    keep_limits();
  }

 private:
  // How strongly parts above the average repel. Received rows at full price would raise the total.
  static constexpr float kSendPrice = 1, kReceivePrice = 0.5f;
  // Rows that joining all neighbours is worth: it gathers what later moves save.
  static constexpr float kVote = 0.25f;

  struct Sketch {
    u64 any = 0, many = 0;
    void add(i32 label) {
      u64 bit = u64{1} << (label % 64);
      many |= any & bit;
      any |= bit;
    }
  };
  struct Choice {
    i32 label;
    i32 rows;                     // that v sends
    bool forced;                  // v leaves at a loss, as its part is too heavy
    bool own_needs, label_needs;  // whether others there need the row of v
    Sketch sketch;
  };

  Choice decide(i64 v, int thread, bool may_move) {
    Votes& votes = votes_[thread];
    i32 own = labels_[v];
    votes.start(graph_.most_neighbours(v));
    Sketch sketch;
    sketch.add(own);
    const auto ahead = [&](auto u) {
      graph_.prefetch(u);
      __builtin_prefetch(&labels_[u]);
      __builtin_prefetch(&sketch_[u]);
    };
    if (!graph_.symmetric()) {
      for_neighbours(graph_.columns(), v, ahead, [&](auto u) {
        votes.add(labels_[u], graph_.weight(v));
        sketch.add(labels_[u]);
      });
    }
    const std::size_t only_columns = votes.labels();
    BitCounters touching;
    int asked = 0, alone = 0;  // rows that v needs; those that no other of its part needs
    for_neighbours(graph_.rows(), v, ahead, [&](auto u) {
      votes.add(labels_[u], graph_.weight(u));
      if (graph_.symmetric()) sketch.add(labels_[u]);
      touching.add(sketch_[u].any);
      alone += static_cast<int>(~sketch_[u].many >> (own % 64) & 1);
      ++asked;
    });
    const auto& entries = votes.finish();
    // Entries before this one are parts of vertices that need v's row.
    const std::size_t needing = graph_.symmetric() ? entries.size() : only_columns;
    float votes_for_own = 0;
    i32 others = static_cast<i32>(needing);
    bool own_needs = false;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].label == own) {
        votes_for_own = entries[i].weight;
        own_needs = i < needing;
      } else if (i < needing) {
        ++counted_[thread][entries[i].label];
      }
    }
    others -= own_needs;
    Choice choice{own, others, false, own_needs, false, sketch};
    const bool must_leave = load_[own] > limit(own);
    const bool at_border = entries.size() > static_cast<std::size_t>(votes_for_own > 0);
    if (!may_move || (!at_border && !must_leave) || options_.is_fixed(v)) return choice;
    const float rows = static_cast<float>(others), price_own = send_price(own);
    const float receive_price_own = receive_price(own);
    float best_gain = must_leave ? -std::numeric_limits<float>::infinity() : kLeastGain;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto [label, votes_for] = entries[i];
      if (label == own || load_[label] + graph_.weight_of(v) > limit(label)) continue;
      // Rows that the old part no longer needs, those that the new one does; and v's own row.
      const int spared = alone - static_cast<int>(own_needs);
      const int added = asked - touching.count(label % 64) - static_cast<int>(i < needing);
      const float gain = static_cast<float>(spared - added) + kVote * (votes_for - votes_for_own) +
                         rows * (price_own - send_price(label)) +
                         static_cast<float>(spared) * receive_price_own -
                         static_cast<float>(added) * receive_price(label);
      if (gain > best_gain) {
        best_gain = gain;
        choice.label = label;
        choice.label_needs = i < needing;
      }
    }
    if (must_leave && choice.label == own) choice.label = lightest();
    choice.forced = must_leave && best_gain < kLeastGain;
    return choice;
  }

  // Vertices before `decided` have decided in this pass.
  void move(i64 v, const Choice& choice, i64 decided) {
    const i64 weight = graph_.weight_of(v);
    const i32 own = labels_[v], label = choice.label;
    const auto rows = static_cast<u16>(std::min(choice.rows, i32{UINT16_MAX}));
    sketch_[v] = choice.sketch;
    send_[own] += rows - rows_[v];
    rows_[v] = rows;
    if (label == own || (choice.forced && load_[own] <= limit(own))) return;
    const i64 above = load_[label] + weight - limit(label);
    if (above > 0 && above >= load_[own] - limit(own)) return;
    load_[own] -= weight;
    load_[label] += weight;
    send_[own] -= rows;
    send_[label] += rows;
    labels_[v] = label;
    ++moved_;
    // Where v was one of many, some may be left: the next visit will tell.
    const auto update = [&](Sketch& sketch) {
      sketch.any &= ~(u64{1} << (own % 64)) | sketch.many;
      sketch.add(label);
    };
    update(sketch_[v]);
    std::vector<i64>& counted = counted_[0];
    const auto receive = [&](i64 own_rows, i64 label_rows, bool was_counted) {
      receive_[own] += own_rows;
      receive_[label] += label_rows;
      counted[own] += was_counted ? own_rows : 0;
      counted[label] += was_counted ? label_rows : 0;
    };
    receive(choice.own_needs, -static_cast<i64>(choice.label_needs), true);
    for_neighbours(
        graph_.rows(), v, [&](auto u) { __builtin_prefetch(&sketch_[u]); },
        [&](auto u) {
          Sketch& sketch = sketch_[u];
          const i64 spared = ~sketch.many >> (own % 64) & 1;
          const i64 added = ~sketch.any >> (label % 64) & 1;
          receive(-spared, added, u < decided);
          update(sketch);
        });
  }

  i64 limit(i32 part) const { return options_.max_weight[part]; }

  // Vertices of a batch all choose the part with most room, so that passes may leave heavy parts.
  void keep_limits() {
    for (i64 v = 0; v < graph_.vertices(); ++v) {
      const i32 own = labels_[v];
      const i64 weight = graph_.weight_of(v);
      if (load_[own] <= limit(own) || weight == 0 || options_.is_fixed(v)) continue;
      const i32 label = lightest();
      if (load_[label] + weight > limit(label)) continue;
      load_[own] -= weight;
      load_[label] += weight;
      labels_[v] = label;
    }
  }

  // The part with most room.
  i32 lightest() const {
    i32 best = 0;
    for (i32 p = 1; p < std::ssize(load_); ++p) {
      if (limit(p) - load_[p] > limit(best) - load_[best]) best = p;
    }
    return best;
  }

  // How far what a part sends, or receives, is above the average.
  float excess(i64 volume) const {
    return std::clamp(static_cast<float>(volume) * level_ - 1, -0.5f, 4.0f);
  }
  // What one more row sent, or received, costs beyond itself.
  float send_price(i32 part) const { return kSendPrice * excess(send_[part]); }
  float receive_price(i32 part) const {
    return options_.receive ? kReceivePrice * excess(receive_[part]) : 0;
  }

  static constexpr float kLeastGain = 1e-6f;

  const AdjacencyEdges& graph_;
  const StreamOptions& options_;
  BigArray<i32>& labels_;
  std::vector<i64> load_, send_, receive_;
  std::vector<std::vector<i64>> counted_;  // rows received, by each thread in this pass
  float level_ = 0;                        // 1 / the average of send_
  BigArray<u16> rows_;                     // that v sends, as of its last visit or move
  BigArray<Sketch> sketch_;
  std::vector<Votes> votes_;
  Passes passes_;
  std::vector<Choice> choice_;
  i64 moved_ = 0;
};

class StreamPartitioner {
 public:
  // Columns are those of `rows` transposed. A vertex among its own neighbours is passed over.
  StreamPartitioner(const Adjacency& rows, const Adjacency& columns, std::span<const i64> weights,
                    const StreamOptions& options, Tick tick)
      : options_(options), tick_(std::move(tick)),
        graph_(rows, columns, weights, static_cast<double>(options.parts)) {
    // A cluster of a sixteenth of a part can still be placed with the balance in mind.
    i64 total = std::accumulate(weights.begin(), weights.end(), i64{0});
    max_cluster_ = std::max<i64>(1, total / (16 * options.parts));
  }

  BigArray<i32> partition() {
    const int before = options_.cluster_passes + 2, all = before + 1 + options_.refine_passes;
    const i64 n = graph_.vertices();
    BigArray<i32> labels(n);
    cluster(graph_, labels, max_cluster_, options_, part_of_work(0, all));
    const std::vector<gvb::Part> coarse = partition_clusters(labels, before - 2, all);
    for (i32& label : labels) label = coarse[label];
    Refinement(graph_, labels, options_, part_of_work(before, all))(options_.refine_passes);
    return labels;
  }

  void refine(BigArray<i32>& labels) {
    Refinement(graph_, labels, options_,
               part_of_work(0, options_.refine_passes + 1))(options_.refine_passes);
  }

 private:
  // Numbers the clusters; returns the part of each.
  std::vector<gvb::Part> partition_clusters(BigArray<i32>& clusters, int before, int all) const {
    const i64 count = number_in_order(clusters);
    const i64 most_pairs = std::max<i64>(graph_.vertices(), 1 << 22);
    gvb::CutGraph graph = Contraction(graph_, clusters, count, most_pairs, options_.threads,
                                      part_of_work(before, all))();
    const Tick tick = part_of_work(before + 1, all);
    if (!options_.fixed.empty()) {
      graph.fixed.resize(count);
      for (i64 v = 0; v < graph_.vertices(); ++v) { graph.fixed[clusters[v]] = options_.fixed[v]; }
    }
    gvb::CutOptions cut;
    cut.slack = 0;  // single vertices would repair the balance at the price of whole clusters
    gvb::Random random(options_.seed);
    tick(0, 2);
    const std::vector<gvb::Part> communities = gvb::Communities(random)(graph);
    tick(1, 2);
    return gvb::cut_partition(graph, static_cast<gvb::Part>(options_.parts), options_.max_weight,
                              communities, cut, random);
  }

  // Shows a stage's (done, all) as a part of `passes` passes, after `before` of them.
  Tick part_of_work(int before, int passes) const {
    return [this, before, passes](i64 done, i64 all) {
      if (tick_) tick_(before * all + done, passes * all);
    };
  }

  StreamOptions options_;
  Tick tick_;
  AdjacencyEdges graph_;
  i64 max_cluster_;
};

}  // namespace spgnn
