// Coarsening: which vertices become one, and the coarser hypergraph.
#pragma once

#include "graphs.hpp"
#include "parallel.hpp"

namespace spgnn::gvb {

// Contraction: clusters of vertices become the vertices of a coarser graph or hypergraph.

// A cluster weighs what its vertices do.
inline WeightedVertices contract_weights(const WeightedVertices& fine,
                                         const std::vector<Vertex>& coarse_of, Vertex count) {
  const i64 m = fine.constraints;
  WeightedVertices coarse{count, fine.constraints, std::vector<i64>(count * m, 0)};
  for (Vertex v = 0; v < fine.num_vertices; ++v) {
    const auto weight = fine.weight_of(v);
    for (i64 c = 0; c < m; ++c) coarse.vertex_weight[coarse_of[v] * m + c] += weight[c];
  }
  if (!fine.fixed.empty()) {
    coarse.fixed.assign(count, -1);
    for (Vertex v = 0; v < fine.num_vertices; ++v) {
      if (fine.is_fixed(v)) coarse.fixed[coarse_of[v]] = fine.fixed[v];
    }
  }
  return coarse;
}

// Edges between the same clusters become one, those inside a cluster vanish.
inline CutGraph contract(const CutGraph& fine, const std::vector<Vertex>& coarse_of, Vertex count) {
  CutGraph coarse{contract_weights(fine, coarse_of, count)};
  const Members members(coarse_of, count);
  coarse.edges.reserve(fine.edges.size() / 2);
  EdgeCollector collector(coarse);
  for (Vertex c = 0; c < count; ++c) {
    for (Vertex v : members.of(c)) {
      for (const auto [to, w] : fine.edges_of(v)) {
        if (coarse_of[to] != c) collector.add(coarse_of[to], w);
      }
    }
    collector.close_vertex();
  }
  return coarse;
}

// Nets of one pin vanish, equal nets (same pins, same root if roots matter) become one.
class NetContraction {
 public:
  NetContraction(const Hypergraph& fine, const std::vector<Vertex>& coarse_of, Vertex count,
                 bool rooted)
      : fine_(fine), coarse_of_(coarse_of), rooted_(rooted),
        coarse_{contract_weights(fine, coarse_of, count)}, last_net_(count, -1) {}

  Hypergraph operator()() {
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
  void add_net(Net e) {
    const auto first = coarse_.pins.size();
    for (Vertex v : fine_.pins_of(e)) {
      const Vertex pin = coarse_of_[v];
      if (last_net_[pin] == e) continue;
      last_net_[pin] = e;
      coarse_.pins.push_back(pin);
    }
    if (coarse_.pins.size() - first < 2 || merged(first, fine_.net_weight[e])) {
      coarse_.pins.resize(first);
    } else {
      coarse_.close_net(fine_.net_weight[e]);
    }
  }

  // Whether there is such a net already, which then takes the weight. Keys are of 64 bits: a false
  // match would only blur a coarse level.
  bool merged(std::size_t first, i32 weight) {
    const std::size_t size = coarse_.pins.size() - first;
    u64 key = rooted_ ? mixed(static_cast<u64>(coarse_.pins[first]) << 32) : size;
    for (auto i = first; i < coarse_.pins.size(); ++i) key += mixed(coarse_.pins[i]);
    std::size_t slot = mixed(key) & (slot_.size() - 1);
    for (; slot_[slot] >= 0; slot = (slot + 1) & (slot_.size() - 1)) {
      if (key_[slot_[slot]] != key) continue;
      coarse_.net_weight[slot_[slot]] += weight;
      return true;
    }
    slot_[slot] = coarse_.num_nets();
    key_.push_back(key);
    return false;
  }

  const Hypergraph& fine_;
  const std::vector<Vertex>& coarse_of_;
  const bool rooted_;
  Hypergraph coarse_;
  std::vector<Net> last_net_, slot_;
  std::vector<u64> key_;
};

inline Hypergraph contract(const Hypergraph& fine, const std::vector<Vertex>& coarse_of,
                           Vertex count, bool rooted) {
  return NetContraction(fine, coarse_of, count, rooted)();
}

// Clusters in the making: every vertex begins as one of its own, and singletons join others.

struct CoarsenOptions {
  std::vector<i64> max_weight;  // of a cluster, per constraint
  i32 max_members = 2;          // vertices that become one in one step
  // Clusters may not span two of these groups (labels of a partition to be kept).
  const std::vector<Part>* groups = nullptr;
  bool join_fixed = false;  // whether free vertices may join fixed ones, which fixes them too
  // Of hypergraphs only:
  i64 pair_budget = 16;  // rated pairs per pin: bounds which nets are rated in full
  bool rooted = true;    // false: roots do not matter (only λ counts)
  int threads = 1;       // the clusters do not depend on it
};

class Clusters {
 public:
  Clusters(const WeightedVertices& vertices, const CoarsenOptions& options)
      : num_vertices_(vertices.num_vertices), constraints_(vertices.constraints), options_(options),
        fixed_(vertices.fixed), leader_(vertices.num_vertices), members_(vertices.num_vertices, 1),
        weight_(vertices.vertex_weight) {
    std::iota(leader_.begin(), leader_.end(), 0);
  }

  // Only singletons join, so a leader never changes its own.
  Vertex leader(Vertex v) const { return leader_[v]; }
  i32 members(Vertex cluster) const { return members_[cluster]; }
  i64 weight(Vertex cluster) const { return weight_[cluster * constraints_]; }
  bool alone(Vertex u) const { return members_[u] == 1; }

  bool fits(Vertex u, Vertex cluster) const {
    if (members_[cluster] >= options_.max_members) return false;
    for (i64 c = 0; c < constraints_; ++c) {
      if (weight_[u * constraints_ + c] + weight_[cluster * constraints_ + c] >
          options_.max_weight[c]) {
        return false;
      }
    }
    if (!fixed_.empty() && fixed_[u] != fixed_[cluster]) {
      if (!options_.join_fixed || (fixed_[u] >= 0 && fixed_[cluster] >= 0)) return false;
    }
    return options_.groups == nullptr || (*options_.groups)[u] == (*options_.groups)[cluster];
  }

  void join(Vertex u, Vertex cluster) {
    leader_[u] = cluster;
    if (!fixed_.empty()) fixed_[cluster] = std::max(fixed_[cluster], fixed_[u]);
    ++members_[cluster];
    members_[u] = 0;
    for (i64 c = 0; c < constraints_; ++c) {
      weight_[cluster * constraints_ + c] += weight_[u * constraints_ + c];
    }
  }

  // Leaves of a full hub, and vertices without neighbours, would stall coarsening: those with the
  // same favourite(u), -1: none, are joined to each other (two-hop matching, as in KaMinPar).
  template <class Favourite>
  void pair_by_favourite(const std::vector<Vertex>& order, const Favourite& favourite) {
    std::vector<Vertex> waiting(static_cast<std::size_t>(num_vertices_) + 1, -1);
    for (Vertex u : order) {
      if (!alone(u)) continue;
      const Vertex liked = favourite(u);
      Vertex& partner = waiting[liked < 0 ? num_vertices_ : liked];
      if (partner >= 0 && fits(u, partner)) {
        join(u, partner);
        if (liked >= 0) partner = -1;
      } else {
        partner = u;
      }
    }
  }

  // The cluster of each vertex, numbered in order of first appearance; and how many there are.
  std::pair<std::vector<Vertex>, Vertex> numbered() && {
    const auto count = static_cast<Vertex>(number_in_order(leader_));
    return {std::move(leader_), count};
  }

 private:
  Vertex num_vertices_;
  i64 constraints_;
  const CoarsenOptions& options_;
  std::vector<Part> fixed_;  // of a leader's cluster
  std::vector<Vertex> leader_;
  std::vector<i32> members_;  // of a leader's cluster; 0 for those who joined one
  std::vector<i64> weight_;   // [vertices × constraints], of a leader's cluster
};

// Pairs of vertices along heavy edges.

// Every vertex is matched with the free neighbour at its heaviest edge (Karypis & Kumar 1998).
class EdgeMatching {
 public:
  EdgeMatching(const CutGraph& graph, const CoarsenOptions& options, Random& random)
      : graph_(graph), random_(random), pairs_(graph, options), favourite_(graph.num_vertices, -1) {
  }

  std::pair<std::vector<Vertex>, Vertex> operator()() {
    const std::vector<Vertex> order = light_degrees_first();
    for (Vertex u : order) {
      if (pairs_.alone(u)) match(u);
    }
    pairs_.pair_by_favourite(order, [&](Vertex u) { return favourite_[u]; });
    return std::move(pairs_).numbered();
  }

 private:
  // In random order hubs would take the neighbours that leaves have no alternative to.
  std::vector<Vertex> light_degrees_first() {
    constexpr i64 kClasses = 64;
    std::vector<Vertex> shuffled(graph_.num_vertices), order(graph_.num_vertices);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    random_.shuffle(shuffled);
    std::vector<i64> next(kClasses + 1, 0);
    const auto degree_class = [&](Vertex v) {
      return std::min(kClasses - 1, std::ssize(graph_.edges_of(v)));
    };
    for (Vertex v : shuffled) ++next[degree_class(v) + 1];
    for (i64 d = 0; d < kClasses; ++d) next[d + 1] += next[d];
    for (Vertex v : shuffled) order[next[degree_class(v)]++] = v;
    return order;
  }

  void match(Vertex u) {
    Vertex best = -1;
    i32 best_weight = 0, heaviest = 0;
    for (const auto [v, weight] : graph_.edges_of(u)) {
      if (weight > heaviest) {
        heaviest = weight;
        favourite_[u] = v;
      }
      if (weight > best_weight && pairs_.alone(v) && pairs_.fits(u, v)) {
        best = v;
        best_weight = weight;
      }
    }
    if (best >= 0) pairs_.join(u, best);
  }

  const CutGraph& graph_;
  Random& random_;
  Clusters pairs_;
  std::vector<Vertex> favourite_;
};

// The pair, or single vertex, that each vertex is in, numbered from 0; and how many there are.
inline std::pair<std::vector<Vertex>, Vertex> cluster(const CutGraph& graph,
                                                      const CoarsenOptions& options,
                                                      Random& random) {
  return EdgeMatching(graph, options, random)();
}

// Clusters of vertices that share nets.

// Every vertex joins the neighbouring cluster with the highest rating Σ w(e) / (|e| − 1) over
// common nets (heavy edge, Çatalyürek & Aykanat 1999). Those of a batch all choose before the first
// joins, so threads can share it; whose choice is taken by then chooses again.
class NetClustering {
 public:
  NetClustering(const Hypergraph& h, const CoarsenOptions& options, Random& random)
      : h_(h), random_(random), clusters_(h, options), ratings_(std::max(1, options.threads)),
        favourite_(h.num_vertices, -1), preference_(h.num_vertices), salt_(random.next()) {
    list_stars(size_limit(options.pair_budget));
    for (Vertex v = 0; v < h.num_vertices; ++v) preference_[v] = preference(v);
  }

  std::pair<std::vector<Vertex>, Vertex> operator()() {
    std::vector<Vertex> order(h_.num_vertices);
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(order);
    const std::size_t batch = order.size() / kBatches + 1;
    std::vector<Vertex> chosen(batch);
    for (std::size_t begin = 0; begin < order.size(); begin += batch) {
      const std::span<const Vertex> now(order.begin() + begin,
                                        std::min(batch, order.size() - begin));
      const i64 chunks = (std::ssize(now) + kChunk - 1) / kChunk;
      const int threads = worth_starting(static_cast<int>(ratings_.size()), h_, now);
      parallel_chunks(chunks, threads, [&](i64 c, int thread) {
        const i64 end = std::min((c + 1) * kChunk, std::ssize(now));
        for (i64 i = c * kChunk; i < end; ++i) {
          chosen[i] = clusters_.alone(now[i]) ? choose(now[i], ratings_[thread]) : -1;
        }
      });
      for (std::size_t i = 0; i < now.size(); ++i) {
        const Vertex u = now[i];
        if (!clusters_.alone(u) || chosen[i] < 0) continue;
        Vertex best = clusters_.leader(chosen[i]);
        if (best == u || !clusters_.fits(u, best)) best = choose(u, ratings_[0]);
        if (best < 0) continue;
        clusters_.join(u, best);
        preference_[best] = preference(best);
      }
    }
    clusters_.pair_by_favourite(
        order, [&](Vertex u) { return favourite_[u] < 0 ? -1 : clusters_.leader(favourite_[u]); });
    return std::move(clusters_).numbered();
  }

 private:
  // Of the clusters around one vertex, all 0 in between; each in cache lines of its own.
  struct alignas(64) Ratings {
    std::vector<float> of{};
    std::vector<Vertex> rated{};

    void add(Vertex cluster, float score) {
      if (of[cluster] == 0.0F) rated.push_back(cluster);
      of[cluster] += score;
    }
  };

  // What a vertex looks up about each of its nets, in one place.
  struct Star {
    Vertex root;
    float score;  // of a pair
    bool all_pairs;
  };

  void list_stars(i64 size_limit) {
    stars_.reserve(h_.num_nets());
    for (Net e = 0; e < h_.num_nets(); ++e) {
      const auto pairs = static_cast<float>(h_.size(e) - 1);
      stars_.push_back(
          {h_.root(e), static_cast<float>(h_.net_weight[e]) / pairs, h_.size(e) <= size_limit});
    }
  }

  // Rating all pairs of a net costs |e|²; nets above this size only rate the pairs with their root.
  i64 size_limit(i64 pair_budget) const {
    std::vector<i64> pins_of_size(kSizeClasses, 0);
    for (Net e = 0; e < h_.num_nets(); ++e) {
      pins_of_size[std::min<i64>(h_.size(e), kSizeClasses - 1)] += h_.size(e);
    }
    i64 pairs = 0;
    const auto budget = pair_budget * std::ssize(h_.pins);
    i64 size = 2;
    for (; size < kSizeClasses; ++size) {
      pairs += pins_of_size[size] * size;
      if (pairs > budget) break;
    }
    return std::max<i64>(2, size - 1);
  }

  void rate_neighbours(Vertex u, Ratings& ratings) const {
    ratings.of.resize(h_.num_vertices);
    ratings.rated.clear();
    for (Net e : h_.nets_of(u)) {
      const auto [root, score, all_pairs] = stars_[e];
      if (all_pairs || (root == u && h_.size(e) <= kLargestStar)) {
        for (Vertex v : h_.pins_of(e)) ratings.add(clusters_.leader(v), score);
      } else if (root != u) {
        ratings.add(clusters_.leader(root), score);
      }
    }
  }

  // Light clusters first, so that those of hubs do not take up all there is around them.
  float preference(Vertex cluster) const {
    return 1.0F / std::sqrt(std::sqrt(static_cast<float>(clusters_.weight(cluster) + 1)));
  }

  // The cluster that u should join, -1 where none is left for it; notes the one it would like best.
  Vertex choose(Vertex u, Ratings& ratings) {
    rate_neighbours(u, ratings);
    Vertex best = -1;
    float best_rating = 0.0F, top_rating = 0.0F;
    for (Vertex cluster : ratings.rated) {
      const float rating = std::exchange(ratings.of[cluster], 0.0F) * preference_[cluster];
      if (cluster == u) continue;
      if (rating > top_rating) {
        top_rating = rating;
        favourite_[u] = cluster;
      }
      if (rating < best_rating || !clusters_.fits(u, cluster)) continue;
      const auto members = [&](Vertex c) { return clusters_.members(c); };
      const bool better = rating > best_rating || members(cluster) < members(best);
      const bool tie = !better && members(cluster) == members(best) && coin(u, cluster);
      if (better || tie) {
        best = cluster;
        best_rating = rating;
      }
    }
    return best;
  }

  bool coin(Vertex u, Vertex cluster) const {
    return mixed(salt_ ^ (static_cast<u64>(u) << 32 | cluster)) & 1;
  }

  static constexpr i64 kSizeClasses = 1024;
  static constexpr i64 kLargestStar = 4096;
  static constexpr std::size_t kBatches = 64;
  static constexpr i64 kChunk = 16;  // vertices that a thread takes at once

  const Hypergraph& h_;
  Random& random_;
  Clusters clusters_;
  std::vector<Ratings> ratings_;  // of each thread
  std::vector<Vertex> favourite_;
  std::vector<Star> stars_;        // of the nets
  std::vector<float> preference_;  // of clusters
  u64 salt_;
};

// The cluster of each vertex, numbered from 0; and how many there are.
inline std::pair<std::vector<Vertex>, Vertex> cluster(const Hypergraph& h,
                                                      const CoarsenOptions& options,
                                                      Random& random) {
  return NetClustering(h, options, random)();
}

template <class Graph> struct Level {
  Graph coarse;
  std::vector<Vertex> coarse_of;  // vertex of the next finer level -> vertex of `coarse`
};

// One step of coarsening; nothing where it would not shrink the graph any more.
template <class Graph>
std::optional<Level<Graph>> coarsen_once(const Graph& graph, const CoarsenOptions& options,
                                         Random& random) {
  constexpr double kStalled = 0.95;
  auto [coarse_of, count] = cluster(graph, options, random);
  if (count > kStalled * graph.num_vertices) return std::nullopt;
  if constexpr (std::is_same_v<Graph, Hypergraph>) {
    Graph coarse = contract(graph, coarse_of, count, options.rooted);
    return Level<Graph>{std::move(coarse), std::move(coarse_of)};
  } else {
    Graph coarse = contract(graph, coarse_of, count);
    return Level<Graph>{std::move(coarse), std::move(coarse_of)};
  }
}

// A graph with nearly as many edges (or pins) as the finer one need not be kept.
inline bool worth_keeping(const CutGraph& graph, const CutGraph& finer) {
  return graph.edges.size() * 4 <= finer.edges.size() * 3;
}
inline bool worth_keeping(const Hypergraph& h, const Hypergraph& finer) {
  return h.pins.size() * 4 <= finer.pins.size() * 3;
}

// Adds a level to those of `graph`, instead of the last one where that is not worth keeping.
template <class Graph>
void add_level(std::vector<Level<Graph>>& levels, Level<Graph> level, const Graph& graph) {
  const Graph& finer = levels.size() < 2 ? graph : levels[levels.size() - 2].coarse;
  if (levels.empty() || worth_keeping(levels.back().coarse, finer)) {
    levels.push_back(std::move(level));
  } else {
    for (Vertex& v : levels.back().coarse_of) v = level.coarse_of[v];
    levels.back().coarse = std::move(level.coarse);
  }
}

// Coarser and coarser graphs until at most `stop_at` vertices are left or nothing shrinks. With
// `communities` of the vertices, clusters keep inside them as long as that shrinks the graph.
template <class Graph>
std::vector<Level<Graph>> coarsen(const Graph& graph, CoarsenOptions options, Vertex stop_at,
                                  Random& random, std::vector<Part> communities = {}) {
  options.groups = communities.empty() ? nullptr : &communities;
  std::vector<Level<Graph>> levels;
  const Graph* finest = &graph;
  while (finest->num_vertices > stop_at) {
    auto level = coarsen_once(*finest, options, random);
    if (!level && options.groups != nullptr) {
      options.groups = nullptr;
      continue;
    }
    if (!level) break;
    if (options.groups != nullptr) communities = on_coarse(*level, communities);
    add_level(levels, std::move(*level), graph);
    finest = &levels.back().coarse;
  }
  return levels;
}

// Values of the vertices of a level, for the finer vertices that each is made of.
template <class Graph, class T>
std::vector<T> on_fine(const Level<Graph>& level, const std::vector<T>& coarse) {
  std::vector<T> fine(level.coarse_of.size());
  for (std::size_t v = 0; v < fine.size(); ++v) fine[v] = coarse[level.coarse_of[v]];
  return fine;
}

// The other way; all vertices of a cluster must have the same value.
template <class Graph, class T>
std::vector<T> on_coarse(const Level<Graph>& level, const std::vector<T>& fine) {
  std::vector<T> coarse(level.coarse.num_vertices);
  for (std::size_t v = 0; v < fine.size(); ++v) coarse[level.coarse_of[v]] = fine[v];
  return coarse;
}

// Takes labels of the coarsest of the levels to `graph`, by refine(finer graph, labels) on each.
template <class Graph, class T, class Refine>
std::vector<T> uncoarsen(const Graph& graph, const std::vector<Level<Graph>>& levels,
                         std::vector<T> labels, const Refine& refine) {
  for (std::size_t i = levels.size(); i-- > 0;) {
    labels = on_fine(levels[i], labels);
    refine(i == 0 ? graph : levels[i - 1].coarse, labels);
  }
  return labels;
}

template <class Graph>
const Graph& coarsest(const Graph& graph, const std::vector<Level<Graph>>& levels) {
  return levels.empty() ? graph : levels.back().coarse;
}

// Communities of a graph: groups with more edge weight inside than chance would put there.

// Greedy modularity (Blondel et al. 2008, "Louvain"): each vertex joins the neighbouring community
// that gains most; communities become the vertices of a coarser graph, until hardly any join.
class Communities {
 public:
  explicit Communities(Random& random) : random_(random) {}

  // The community of each vertex, numbered from 0.
  std::vector<Vertex> operator()(const CutGraph& graph) {
    volume_.assign(graph.num_vertices, 0.0);
    for (Vertex v = 0; v < graph.num_vertices; ++v) {
      for (const auto [u, w] : graph.edges_of(v)) volume_[v] += w;
    }
    total_ = std::accumulate(volume_.begin(), volume_.end(), 0.0);
    std::vector<Vertex> community(graph.num_vertices);
    std::iota(community.begin(), community.end(), 0);
    CutGraph coarse;
    const CutGraph* finest = &graph;
    while (true) {
      join(*finest);
      const Vertex count = number_communities();
      for (Vertex& c : community) c = community_[c];
      if (count > kStalled * finest->num_vertices) return community;
      coarse = contract(*finest, community_, count);
      finest = &coarse;
    }
  }

 private:
  static constexpr int kRounds = 6;
  static constexpr double kWorthARound = 0.01;  // share of vertices that moved
  static constexpr double kStalled = 0.95;

  // Lets the vertices of one level choose, starting from a community for each.
  void join(const CutGraph& graph) {
    const Vertex n = graph.num_vertices;
    community_.resize(n);
    std::iota(community_.begin(), community_.end(), 0);
    std::vector<double> sum = volume_;
    weight_to_.assign(n, 0.0);
    std::vector<Vertex> order = community_;
    random_.shuffle_runs(order);
    std::vector<u8> waiting(n, 1);  // a neighbour has moved since the vertex chose
    for (int round = 0; round < kRounds; ++round) {
      Vertex moved = 0;
      for (Vertex v : order) {
        if (!waiting[v]) continue;
        waiting[v] = 0;
        const Vertex own = community_[v];
        sum[own] -= volume_[v];
        const Vertex best = best_for(graph, v, sum);
        sum[best] += volume_[v];
        if (best == own) continue;
        community_[v] = best;
        for (const auto [u, w] : graph.edges_of(v)) waiting[u] |= community_[u] != best;
        ++moved;
      }
      if (moved < kWorthARound * n) return;
    }
  }

  // sum: the volumes of the communities without v.
  Vertex best_for(const CutGraph& graph, Vertex v, const std::vector<double>& sum) {
    near_.clear();
    for (const auto [u, w] : graph.edges_of(v)) {
      const Vertex c = community_[u];
      if (weight_to_[c] == 0) near_.push_back(c);
      weight_to_[c] += w;
    }
    const auto gain = [&](Vertex c) { return weight_to_[c] - volume_[v] * sum[c] / total_; };
    Vertex best = community_[v];
    double best_gain = gain(best);
    for (Vertex c : near_) {
      if (gain(c) <= best_gain) continue;
      best_gain = gain(c);
      best = c;
    }
    for (Vertex c : near_) weight_to_[c] = 0;
    return best;
  }

  Vertex number_communities() {
    const auto count = static_cast<Vertex>(number_in_order(community_));
    std::vector<double> volume(count, 0.0);
    for (std::size_t v = 0; v < community_.size(); ++v) volume[community_[v]] += volume_[v];
    volume_ = std::move(volume);
    return count;
  }

  Random& random_;
  // Of the vertices of a level: weight of their edges, inner ones twice.
  std::vector<double> volume_;
  double total_ = 0;
  std::vector<Vertex> community_;  // on this level
  std::vector<double> weight_to_;  // from a vertex to each community
  std::vector<Vertex> near_;
};

}  // namespace spgnn::gvb
