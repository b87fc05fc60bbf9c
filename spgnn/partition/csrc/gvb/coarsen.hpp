// Coarsening: cluster vertices that share nets, then contract the clusters.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "hypergraph.hpp"
#include "random.hpp"

namespace spgnn::gvb {

struct CoarsenOptions {
  std::vector<std::int64_t> max_weight;  // of a cluster, per constraint
  std::int64_t pair_budget = 16;         // rated pairs per pin: bounds which nets are rated in full
  std::int32_t max_members = 2;          // vertices that become one in one step
  bool rooted = true;                    // false: roots do not matter (only λ counts)
  // Clusters may not span two of these groups (labels of a partition to be kept).
  const std::vector<Part>* groups = nullptr;
};

// Every vertex joins the neighbouring cluster with the highest rating Σ w(e) / (|e| − 1) over
// common nets (heavy edge, Çatalyürek & Aykanat 1999), stars of size two and more at once.
class Clusterer {
 public:
  Clusterer(const Hypergraph& h, const CoarsenOptions& options, Random& random)
      : h_(h),
        options_(options),
        random_(random),
        leader_(h.num_vertices),
        weight_(h.vertex_weight),
        rating_(h.num_vertices, 0.0F),
        favourite_(h.num_vertices, -1),
        members_(h.num_vertices, 1) {
    std::iota(leader_.begin(), leader_.end(), 0);
    choose_size_limit();
  }

  // Coarse vertex of each vertex, numbered in order of first appearance; and how many there are.
  std::pair<std::vector<Vertex>, Vertex> operator()() {
    std::vector<Vertex> order(h_.num_vertices);
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(order);
    for (Vertex u : order) {
      if (alone(u)) join_best(u);
    }
    pair_by_favourite(order);
    return number_clusters();
  }

 private:
  // Rating all pairs of a net costs |e|²; larger nets only rate the pairs with their root.
  void choose_size_limit() {
    std::vector<std::int64_t> pins_of_size(kSizeClasses, 0);
    for (Net e = 0; e < h_.num_nets(); ++e) {
      pins_of_size[std::min<std::int64_t>(h_.size(e), kSizeClasses - 1)] += h_.size(e);
    }
    std::int64_t pairs = 0;
    const auto budget = options_.pair_budget * static_cast<std::int64_t>(h_.pins.size());
    size_limit_ = 2;
    for (std::int64_t size = 2; size < kSizeClasses; ++size) {
      pairs += pins_of_size[size] * size;
      if (pairs > budget) break;
      size_limit_ = size;
    }
  }

  bool alone(Vertex u) const { return members_[u] == 1; }

  bool fits(Vertex u, Vertex cluster) const {
    if (members_[cluster] >= options_.max_members) return false;
    for (int c = 0; c < h_.constraints; ++c) {
      const std::int64_t i = c;
      if (weight_[u * std::int64_t{h_.constraints} + i] +
              weight_[cluster * std::int64_t{h_.constraints} + i] >
          options_.max_weight[c]) {
        return false;
      }
    }
    return options_.groups == nullptr || (*options_.groups)[u] == (*options_.groups)[cluster];
  }

  void rate(Vertex v, float score) {
    const Vertex cluster = leader_[v];
    if (rating_[cluster] == 0.0F) rated_.push_back(cluster);
    rating_[cluster] += score;
  }

  void rate_neighbours(Vertex u) {
    rated_.clear();
    for (Net e : h_.nets_of(u)) {
      const std::int64_t size = h_.size(e);
      const float score = static_cast<float>(h_.net_weight[e]) / static_cast<float>(size - 1);
      if (size <= size_limit_) {
        for (Vertex v : h_.pins_of(e)) rate(v, score);
      } else if (h_.root(e) != u) {
        rate(h_.root(e), score);
      } else if (size <= kLargestStar) {
        for (Vertex v : h_.pins_of(e)) rate(v, score);
      }
    }
  }

  // Light clusters first, so that those of hubs do not take up all there is around them.
  float preference(Vertex cluster) const {
    const auto weight = weight_[cluster * std::int64_t{h_.constraints}];
    return 1.0F / std::sqrt(std::sqrt(static_cast<float>(weight + 1)));
  }

  void join_best(Vertex u) {
    rate_neighbours(u);
    Vertex best = -1;
    float best_rating = 0.0F, top_rating = 0.0F;
    for (Vertex cluster : rated_) {
      const float rating = rating_[cluster] * preference(cluster);
      rating_[cluster] = 0.0F;
      if (cluster == u) continue;
      if (rating > top_rating) {
        top_rating = rating;
        favourite_[u] = cluster;
      }
      if (rating < best_rating || !fits(u, cluster)) continue;
      const bool better = rating > best_rating || (members_[cluster] < members_[best]);
      const bool tie = !better && members_[cluster] == members_[best] && (random_.next() & 1);
      if (better || tie) {
        best = cluster;
        best_rating = rating;
      }
    }
    if (best >= 0) join(u, best);
  }

  void join(Vertex u, Vertex cluster) {
    leader_[u] = cluster;
    ++members_[cluster];
    members_[u] = 0;
    for (int c = 0; c < h_.constraints; ++c) {
      weight_[cluster * std::int64_t{h_.constraints} + c] +=
          weight_[u * std::int64_t{h_.constraints} + c];
    }
  }

  // Leaves of a hub that is full, and vertices without nets, would stall coarsening: those with
  // the same favourite are joined to each other (two-hop matching, as in KaMinPar).
  void pair_by_favourite(const std::vector<Vertex>& order) {
    std::vector<Vertex> waiting(static_cast<std::size_t>(h_.num_vertices) + 1, -1);
    for (Vertex u : order) {
      if (!alone(u)) continue;
      const Vertex favourite = favourite_[u] < 0 ? h_.num_vertices : leader_[favourite_[u]];
      Vertex& partner = waiting[favourite];
      if (partner >= 0 && partner != u && fits(u, partner)) {
        join(u, partner);
        if (favourite != h_.num_vertices) partner = -1;
      } else {
        partner = u;
      }
    }
  }

  std::pair<std::vector<Vertex>, Vertex> number_clusters() {
    std::vector<Vertex> id(h_.num_vertices, -1);
    Vertex count = 0;
    std::vector<Vertex> coarse(h_.num_vertices);
    for (Vertex u = 0; u < h_.num_vertices; ++u) {
      Vertex& cluster = id[leader_[u]];
      if (cluster < 0) cluster = count++;
      coarse[u] = cluster;
    }
    return {std::move(coarse), count};
  }

  static constexpr std::int64_t kSizeClasses = 1024;
  static constexpr std::int64_t kLargestStar = 4096;

  const Hypergraph& h_;
  const CoarsenOptions& options_;
  Random& random_;
  std::vector<Vertex> leader_;  // only singletons join, so a leader never changes its own
  std::vector<std::int64_t> weight_;
  std::vector<float> rating_;
  std::vector<Vertex> rated_, favourite_;
  std::vector<std::int32_t> members_;  // of a leader's cluster; 0 for those who joined one
  std::int64_t size_limit_ = 2;
};

// Contracts clusters; nets of one pin vanish, equal nets (same pins, same root if roots matter)
// become one.
class Contraction {
 public:
  Contraction(const Hypergraph& fine, const std::vector<Vertex>& coarse_of, Vertex count,
              bool rooted)
      : fine_(fine), coarse_of_(coarse_of), rooted_(rooted), last_net_(count, -1) {
    coarse_.num_vertices = count;
    coarse_.constraints = fine.constraints;
  }

  Hypergraph operator()() {
    sum_weights();
    std::size_t slots = 16;
    while (slots < static_cast<std::size_t>(fine_.num_nets()) * 2) slots *= 2;
    slot_.assign(slots, -1);
    for (Net e = 0; e < fine_.num_nets(); ++e) {
      // A scattered and a gathered net are never equal.
      if (e == fine_.num_scatter) {
        coarse_.num_scatter = coarse_.num_nets();
        std::fill(slot_.begin(), slot_.end(), -1);
      }
      add_net(e);
    }
    if (fine_.num_scatter == fine_.num_nets()) coarse_.num_scatter = coarse_.num_nets();
    coarse_.pins.shrink_to_fit();
    slot_ = {};
    coarse_.build_incidence();
    return std::move(coarse_);
  }

 private:
  void sum_weights() {
    const std::int64_t m = fine_.constraints;
    coarse_.vertex_weight.assign(coarse_.num_vertices * m, 0);
    for (Vertex v = 0; v < fine_.num_vertices; ++v) {
      for (std::int64_t c = 0; c < m; ++c) {
        coarse_.vertex_weight[coarse_of_[v] * m + c] += fine_.vertex_weight[v * m + c];
      }
    }
  }

  void add_net(Net e) {
    const auto first = coarse_.pins.size();
    for (Vertex v : fine_.pins_of(e)) {
      const Vertex pin = coarse_of_[v];
      if (last_net_[pin] == e) continue;
      last_net_[pin] = e;
      coarse_.pins.push_back(pin);
    }
    const auto size = coarse_.pins.size() - first;
    if (size < 2) {
      coarse_.pins.resize(first);
      return;
    }
    std::uint64_t key = rooted_ ? mix(static_cast<std::uint64_t>(coarse_.pins[first]) << 32) : size;
    for (auto i = first; i < coarse_.pins.size(); ++i) key += mix(coarse_.pins[i]);
    insert(key, first, fine_.net_weight[e]);
  }

  // Nets with the same 64-bit key are taken to be equal; a false match would only blur a coarse
  // level, never the result, which is measured on the finest.
  void insert(std::uint64_t key, std::size_t first, std::int32_t weight) {
    std::size_t slot = mix(key) & (slot_.size() - 1);
    while (slot_[slot] >= 0) {
      const Net other = slot_[slot];
      if (key_[other] == key) {
        coarse_.net_weight[other] += weight;
        coarse_.pins.resize(first);
        return;
      }
      slot = (slot + 1) & (slot_.size() - 1);
    }
    slot_[slot] = coarse_.num_nets();
    key_.push_back(key);
    coarse_.close_net(weight);
  }

  const Hypergraph& fine_;
  const std::vector<Vertex>& coarse_of_;
  const bool rooted_;
  Hypergraph coarse_;
  std::vector<Net> last_net_, slot_;
  std::vector<std::uint64_t> key_;
};

struct Level {
  Hypergraph coarse;
  std::vector<Vertex> coarse_of;  // vertex of the next finer level -> vertex of `coarse`
};

// One step of coarsening; nothing where it would not shrink the hypergraph any more.
inline std::optional<Level> coarsen_once(const Hypergraph& h, const CoarsenOptions& options,
                                         Random& random) {
  auto [coarse_of, count] = Clusterer(h, options, random)();
  if (count > 0.95 * h.num_vertices) return std::nullopt;
  Hypergraph coarse = Contraction(h, coarse_of, count, options.rooted)();
  return Level{std::move(coarse), std::move(coarse_of)};
}

inline std::vector<Level> coarsen(const Hypergraph& h, const CoarsenOptions& options,
                                  Vertex stop_at, Random& random) {
  std::vector<Level> levels;
  const Hypergraph* finest = &h;
  while (finest->num_vertices > stop_at) {
    auto level = coarsen_once(*finest, options, random);
    if (!level) break;
    levels.push_back(std::move(*level));
    finest = &levels.back().coarse;
  }
  return levels;
}

}  // namespace spgnn::gvb
