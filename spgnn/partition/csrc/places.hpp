// Part numbers are places: parts that exchange many rows become neighbours in number, and those of
// one node keep the rows that leave it few, above all for the busiest part and the busiest node.
#pragma once

#include "adjacency.hpp"
#include "gvb/two_way.hpp"

namespace spgnn::gvb {

// Rows sent and received.
struct Rows {
  i64 sent = 0, received = 0;

  Rows& operator+=(const Rows& other) {
    sent += other.sent;
    received += other.received;
    return *this;
  }
  Rows mirrored() const { return {received, sent}; }
  Rows operator-() const { return {-sent, -received}; }
  i64 larger() const { return std::max(sent, received); }
};

// The graph whose vertices are parts: what each sends to and receives from each of its peers.
class PartGraph {
 public:
  using Peer = std::pair<Part, Rows>;

  explicit PartGraph(Part parts) : peers_(parts) {}

  Part parts() const { return static_cast<Part>(peers_.size()); }
  const std::vector<Peer>& peers(Part p) const { return peers_[p]; }

  // Every pair of parts once, or once in each direction.
  void add(Part from, Part to, i64 rows) {
    peers_[from].push_back({to, {rows, 0}});
    peers_[to].push_back({from, {0, rows}});
  }

  // Both directions of a pair become one peer.
  void join_pairs() {
    for (auto& list : peers_) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Peer& a, const Peer& b) { return a.first < b.first; });
      std::size_t size = 0;
      for (const Peer& peer : list) {
        if (size > 0 && list[size - 1].first == peer.first) {
          list[size - 1].second += peer.second;
        } else {
          list[size++] = peer;
        }
      }
      list.resize(size);
    }
  }

 private:
  std::vector<std::vector<Peer>> peers_;
};

// What parts exchange where columns pay.
inline PartGraph part_graph(const Adjacency& adjacency, std::span<const Part> labels, Part parts) {
  const Members members(labels, parts);
  std::vector<Part> last(adjacency.vertices(), -1);  // that counted the row of each vertex
  std::vector<i64> rows(parts, 0);
  std::vector<Part> senders;
  PartGraph graph(parts);
  for (Part p = 0; p < parts; ++p) {
    for (Vertex v : members.of(p)) {
      for (Vertex u : adjacency.row(v)) {
        require_vertex(u, adjacency.vertices(), v);
        if (labels[u] == p || std::exchange(last[u], p) == p) continue;
        if (rows[labels[u]]++ == 0) senders.push_back(labels[u]);
      }
    }
    for (Part q : senders) graph.add(q, p, std::exchange(rows[q], 0));
    senders.clear();
  }
  graph.join_pairs();
  return graph;
}

// What parts exchange by the nets of a hypergraph.
inline PartGraph part_graph(const Hypergraph& h, std::span<const Part> labels, Part parts) {
  std::vector<Part> root_part(h.num_nets());
  for (Net e = 0; e < h.num_nets(); ++e) root_part[e] = labels[h.root(e)];
  const Members nets(root_part, parts);
  std::vector<Net> last(parts, -1);  // net that was counted for each part
  std::vector<Rows> rows(parts);
  std::vector<u8> listed(parts, 0);
  std::vector<Part> peers;
  PartGraph graph(parts);
  for (Part root = 0; root < parts; ++root) {
    for (Net e : nets.of(root)) {
      for (Vertex v : h.pins_of(e)) {
        const Part p = labels[v];
        if (p == root || std::exchange(last[p], e) == e) continue;
        (e < h.num_scatter ? rows[p].sent : rows[p].received) += h.net_weight[e];
        if (!std::exchange(listed[p], 1)) peers.push_back(p);
      }
    }
    for (Part p : peers) {
      if (rows[p].sent > 0) graph.add(root, p, rows[p].sent);
      if (rows[p].received > 0) graph.add(p, root, rows[p].received);
      rows[p] = {};
      listed[p] = 0;
    }
    peers.clear();
  }
  graph.join_pairs();
  return graph;
}

// Recursive bisection gives an order; swaps between nodes lower what leaves them. Only parts of one
// kind (share of the work, what is fixed there) change places.
class Places {
 public:
  Places(const PartGraph& graph, Part node_size, std::span<const Part> kind)
      : graph_(graph), node_size_(node_size), kind_(kind), place_(graph.parts()),
        part_at_(graph.parts()), outside_(graph.parts()), node_outside_(graph.parts() / node_size),
        change_(graph.parts()), is_changed_(graph.parts(), 0) {
    std::iota(part_at_.begin(), part_at_.end(), 0);
  }

  // The place of each part; place p is on node p / node_size.
  std::vector<Part> operator()() {
    if (std::ranges::all_of(kind_, [&](Part kind) { return kind == kind_[0]; })) {
      CutGraph graph{{graph_.parts(), 1, std::vector<i64>(graph_.parts(), 1)}};
      graph.edges.reserve(graph_.parts());
      EdgeCollector collector(graph);
      for (Part p = 0; p < graph_.parts(); ++p) {
        for (const auto& [q, rows] : graph_.peers(p)) collector.add(q, rows.sent + rows.received);
        collector.close_vertex();
      }
      order(graph, part_at_, 0);
    }
    for (Part i = 0; i < graph_.parts(); ++i) place_[part_at_[i]] = i;
    if (node_size_ > 1 && node_size_ < graph_.parts()) {
      count_outside();
      best_ = place_;
      best_score_ = score();
      for (int squarings : {3, 5}) lower(squarings);
      return std::move(best_);
    }
    return std::move(place_);
  }

 private:
  static constexpr int kSweeps = 12;
  static constexpr Part kTryAll = 128;      // parts, all pairs of which are tried
  static constexpr std::size_t kNodes = 4;  // else as many nodes close by, and idle ones
  static constexpr i64 kWork = 1 << 26;     // peers looked at

  // Orders parts so that halves, of whole nodes if several, are neighbours, from place `first` on.
  void order(const CutGraph& graph, const std::vector<Part>& parts, Part first) {
    const Part count = graph.num_vertices, unit = count > node_size_ ? node_size_ : 1;
    if (count == 1) {
      part_at_[first] = parts[0];
      return;
    }
    const i64 left = i64{count} / unit / 2 * unit;
    Random random(static_cast<u64>(first) << 32 | static_cast<u32>(count));
    // Where both sides are full, nothing moves: one part more is allowed at first.
    const Bound loose{left + 1, count - left + 1};
    const Bound exact{left, count - left};
    const BisectionOptions options{count > 1024 ? 4 : 20, 6, 100};
    Sides side = bisect(graph, loose, {left}, options, random);
    TwoWayRefiner<EdgeCut>(graph, exact, side, random).run(2, 100);
    std::array<std::vector<Part>, 2> halves;
    for (Part i = 0; i < count; ++i) halves[side[i]].push_back(parts[i]);
    order(induced(graph, side, 0), halves[0], first);
    order(induced(graph, side, 1), halves[1], first + static_cast<Part>(left));
  }

  Part node(Part p) const { return place_[p] / node_size_; }

  void count_outside() {
    for (Part p = 0; p < graph_.parts(); ++p) {
      for (const auto& [q, rows] : graph_.peers(p)) {
        if (node(q) != node(p)) outside_[p] += rows;
      }
      node_outside_[node(p)] += outside_[p];
    }
  }

  // A volume costs itself and, from about `level` on, ever more.
  struct Cost {
    double level = 1, linear = 0;
    int squarings = 3;

    double operator()(const Rows& rows) const { return of(rows.sent) + of(rows.received); }
    double of(i64 volume) const {
      double power = static_cast<double>(volume) / level;
      for (int i = 0; i < squarings; ++i) power *= power;
      return linear * static_cast<double>(volume) + level * power;
    }
  };

  static double level_of(const std::vector<Rows>& volumes) {
    constexpr double kReach = 1.25;
    i64 most = 1, sum = 0;
    for (const Rows& rows : volumes) {
      most = std::max(most, rows.larger());
      sum += rows.sent;
    }
    return std::max(static_cast<double>(sum) / static_cast<double>(volumes.size()),
                    static_cast<double>(most) / kReach);
  }

  void lower(int squarings) {
    std::vector<Part> order(graph_.parts());
    std::iota(order.begin(), order.end(), 0);
    for (int sweep = 0; sweep < kSweeps && work_ < kWork; ++sweep) {
      part_cost_ = {level_of(outside_), 1, squarings};
      node_cost_ = {level_of(node_outside_), 0, squarings};
      std::stable_sort(order.begin(), order.end(),
                       [&](Part a, Part b) { return outside_[a].larger() > outside_[b].larger(); });
      bool swapped = false;
      for (Part p : order) {
        if (work_ < kWork) swapped |= swap_best(p);
      }
      if (!swapped) return;
      if (score() < best_score_) {
        best_score_ = score();
        best_ = place_;
      }
    }
  }

  // Total, busiest part and busiest node, each by what it would be if all were as busy.
  i64 score() const {
    const auto larger = [](const Rows& a, const Rows& b) { return a.larger() < b.larger(); };
    i64 sum = 0;
    for (const Rows& rows : outside_) sum += rows.sent;
    for (const auto* volumes : {&outside_, &node_outside_}) {
      sum += std::ssize(*volumes) * std::ranges::max_element(*volumes, larger)->larger();
    }
    return sum;
  }

  bool swap_best(Part p) {
    double best = -1e-9 * (1 + part_cost_(outside_[p]));
    Part partner = -1;
    for (Part n : nodes_for(p)) {
      for (Part i = n * node_size_; i < (n + 1) * node_size_; ++i) {
        const Part q = part_at_[i];
        if (n == node(p) || kind_[q] != kind_[p]) continue;
        const double by = change_by_swap(p, q);
        forget_changes();
        if (by < best) {
          best = by;
          partner = q;
        }
      }
    }
    if (partner < 0) return false;
    swap(p, partner);
    return true;
  }

  // Nodes that p might go to: all, or those that it exchanges most with, and those with least.
  std::vector<Part> nodes_for(Part p) {
    std::vector<Part> nodes(node_outside_.size());
    std::iota(nodes.begin(), nodes.end(), 0);
    if (graph_.parts() <= kTryAll || nodes.size() <= 2 * kNodes) return nodes;
    const auto keep = [&](auto first, auto less) {
      const auto end = first + std::min<i64>(kNodes, nodes.end() - first);
      std::partial_sort(first, end, nodes.end(), less);
      return end;
    };
    std::vector<i64> rows(nodes.size(), 0);
    for (const auto& [q, exchanged] : graph_.peers(p)) {
      rows[node(q)] += exchanged.sent + exchanged.received;
    }
    const auto rest = keep(nodes.begin(), [&](Part a, Part b) {
      return std::pair(-rows[a], a) < std::pair(-rows[b], b);
    });
    const auto end = keep(rest, [&](Part a, Part b) {
      return std::pair(node_outside_[a].larger(), a) < std::pair(node_outside_[b].larger(), b);
    });
    nodes.erase(end, nodes.end());
    return nodes;
  }

  void change(Part p, const Rows& by) {
    if (!std::exchange(is_changed_[p], 1)) changed_.push_back(p);
    change_[p] += by;
  }

  void forget_changes() {
    for (Part p : changed_) {
      change_[p] = {};
      is_changed_[p] = 0;
    }
    changed_.clear();
  }

  // What leaves the node for each part once p and q have changed places, and what that costs.
  double change_by_swap(Part p, Part q) {
    const std::array<Part, 2> nodes{node(p), node(q)};
    for (const auto& [moved, other, from, to] :
         {std::tuple(p, q, nodes[0], nodes[1]), std::tuple(q, p, nodes[1], nodes[0])}) {
      for (const auto& [peer, rows] : graph_.peers(moved)) {
        if (peer == other || (node(peer) != from && node(peer) != to)) continue;
        const Rows by = node(peer) == from ? rows : -rows;
        change(moved, by);
        change(peer, by.mirrored());
      }
      work_ += std::ssize(graph_.peers(moved));
    }
    node_change_ = {};
    node_change_[0] += -outside_[p];
    node_change_[0] += outside_[q];
    node_change_[1] = -node_change_[0];
    double cost = 0;
    for (Part r : changed_) {
      Rows now = outside_[r];
      now += change_[r];
      cost += part_cost_(now) - part_cost_(outside_[r]);
      const bool second = r == p || (r != q && node(r) == nodes[1]);
      node_change_[second] += change_[r];
    }
    for (int i : {0, 1}) {
      Rows now = node_outside_[nodes[i]];
      now += node_change_[i];
      cost += node_cost_(now) - node_cost_(node_outside_[nodes[i]]);
    }
    return cost;
  }

  void swap(Part p, Part q) {
    change_by_swap(p, q);
    for (Part r : changed_) outside_[r] += change_[r];
    node_outside_[node(p)] += node_change_[0];
    node_outside_[node(q)] += node_change_[1];
    forget_changes();
    std::swap(part_at_[place_[p]], part_at_[place_[q]]);
    std::swap(place_[p], place_[q]);
  }

  const PartGraph& graph_;
  Part node_size_;
  std::span<const Part> kind_;
  std::vector<Part> place_, part_at_;
  std::vector<Rows> outside_, node_outside_;  // of each part and node: rows to and from other nodes
  Cost part_cost_, node_cost_;
  std::vector<Rows> change_;
  std::array<Rows, 2> node_change_;  // of the two nodes at hand
  std::vector<u8> is_changed_;
  std::vector<Part> changed_;
  i64 work_ = 0;
  std::vector<Part> best_;  // places
  i64 best_score_ = 0;
};

}  // namespace spgnn::gvb
