// Clusters of vertices that share nets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "clusters.hpp"
#include "hypergraph.hpp"
#include "random.hpp"

namespace spgnn::gvb {

// Every vertex joins the neighbouring cluster with the highest rating Σ w(e) / (|e| − 1) over
// common nets (heavy edge, Çatalyürek & Aykanat 1999), stars of size two and more at once.
class NetClustering {
 public:
  NetClustering(const Hypergraph& h, const CoarsenOptions& options, Random& random)
      : h_(h),
        random_(random),
        clusters_(h, options),
        rating_(h.num_vertices, 0.0F),
        favourite_(h.num_vertices, -1) {
    choose_size_limit(options.pair_budget);
  }

  std::pair<std::vector<Vertex>, Vertex> operator()() {
    std::vector<Vertex> order(h_.num_vertices);
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(order);
    for (Vertex u : order) {
      if (clusters_.alone(u)) join_best(u);
    }
    clusters_.pair_by_favourite(
        order, [&](Vertex u) { return favourite_[u] < 0 ? -1 : clusters_.leader(favourite_[u]); });
    return std::move(clusters_).numbered();
  }

 private:
  // Rating all pairs of a net costs |e|²; larger nets only rate the pairs with their root.
  void choose_size_limit(std::int64_t pair_budget) {
    std::vector<std::int64_t> pins_of_size(kSizeClasses, 0);
    for (Net e = 0; e < h_.num_nets(); ++e) {
      pins_of_size[std::min<std::int64_t>(h_.size(e), kSizeClasses - 1)] += h_.size(e);
    }
    std::int64_t pairs = 0;
    const auto budget = pair_budget * std::ssize(h_.pins);
    size_limit_ = 2;
    for (std::int64_t size = 2; size < kSizeClasses; ++size) {
      pairs += pins_of_size[size] * size;
      if (pairs > budget) break;
      size_limit_ = size;
    }
  }

  void rate(Vertex v, float score) {
    const Vertex cluster = clusters_.leader(v);
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
    return 1.0F / std::sqrt(std::sqrt(static_cast<float>(clusters_.weight(cluster) + 1)));
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
      if (rating < best_rating || !clusters_.fits(u, cluster)) continue;
      const auto members = [&](Vertex c) { return clusters_.members(c); };
      const bool better = rating > best_rating || members(cluster) < members(best);
      const bool tie = !better && members(cluster) == members(best) && (random_.next() & 1);
      if (better || tie) {
        best = cluster;
        best_rating = rating;
      }
    }
    if (best >= 0) clusters_.join(u, best);
  }

  static constexpr std::int64_t kSizeClasses = 1024;
  static constexpr std::int64_t kLargestStar = 4096;

  const Hypergraph& h_;
  Random& random_;
  Clusters clusters_;
  std::vector<float> rating_;
  std::vector<Vertex> rated_, favourite_;
  std::int64_t size_limit_ = 2;
};

// The cluster of each vertex, numbered from 0; and how many there are.
inline std::pair<std::vector<Vertex>, Vertex> cluster(const Hypergraph& h,
                                                      const CoarsenOptions& options,
                                                      Random& random) {
  return NetClustering(h, options, random)();
}

}  // namespace spgnn::gvb
