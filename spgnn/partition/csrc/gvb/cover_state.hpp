// A partition, the sizes of its covers, and which vertices belong to them.
#pragma once

#include "multilevel.hpp"
#include "volume.hpp"

namespace spgnn::gvb {

// A set of parts per vertex, of at most as many as it has nonzeros.
class PartSets {
 public:
  PartSets(const Adjacency& adjacency, Part parts)
      : begin_(adjacency.indptr.size(), 0), size_(adjacency.vertices(), 0) {
    for (i64 v = 0; v < adjacency.vertices(); ++v) {
      begin_[v + 1] = begin_[v] + std::min<i64>(std::ssize(adjacency.row(v)), parts);
    }
    parts_.resize(begin_.back());
  }

  std::span<const Part> of(Vertex v) const {
    return {parts_.data() + begin_[v], static_cast<std::size_t>(size_[v])};
  }
  bool has(Vertex v, Part p) const { return std::ranges::find(of(v), p) != of(v).end(); }
  void add(Vertex v, Part p) {
    if (begin_[v] + size_[v] < begin_[v + 1]) parts_[begin_[v] + size_[v]++] = p;
  }
  void remove(Vertex v, Part p) {
    const auto all = of(v);
    const auto place = std::ranges::find(all, p);
    if (place != all.end()) parts_[begin_[v] + (place - all.begin())] = all[--size_[v]];
  }
  void clear(Vertex v) { size_[v] = 0; }
  void clear() { std::ranges::fill(size_, 0); }

 private:
  std::vector<i64> begin_;
  std::vector<i32> size_;
  std::vector<Part> parts_;
};

// Minimum covers of a block are a lattice (Dulmage & Mendelsohn 1958). A bit for each row and
// column says: a vertex with it takes one row off the block when it leaves, and one that comes
// costs none if all its neighbours on the other side have theirs. `refresh` sets bits and volumes
// exactly; a move changes those next to it by rules of thumb, which lets searches climb out of
// local minima.
//
// Side 0 are the rows of vertices, side 1 their columns, left out of a symmetric pattern.
class CoverState {
 public:
  // columns: the transpose, or where the pattern is symmetric the same arrays as `rows`.
  CoverState(const Adjacency& rows, const Adjacency& columns, const WeightedVertices& vertices,
             std::vector<Part> labels, const Options& options)
      : pattern_{rows, columns}, symmetric_(rows.indices.data() == columns.indices.data()),
        parts_(options.parts), nodes_(options.nodes), threads_(options.threads),
        vertices_(vertices), part_(std::move(labels)), weights_(vertices, part_, parts_),
        volume_(parts_, node_count()) {
    for (int direction : {0, 1}) {
      price_[direction].resize(parts_);
      node_price_[direction].resize(node_count());
    }
    for (int side = 0; side < sides(); ++side) covering_.emplace_back(pattern_[side], parts_);
    refresh();
    set_potential({});
  }

  Part parts() const { return parts_; }
  Part part(Vertex v) const { return part_[v]; }
  const std::vector<Part>& labels() const { return part_; }
  bool is_fixed(Vertex v) const { return vertices_.is_fixed(v); }
  const PricedWeights& weights() const { return weights_; }
  int sides() const { return symmetric_ ? 1 : 2; }
  std::span<const Vertex> neighbours(int side, Vertex v) const { return pattern_[side].row(v); }
  // The blocks of a side that v covers: in some minimum cover, it is.
  const PartSets& covering(int side) const { return covering_[side]; }
  int opposite(int side) const { return symmetric_ ? 0 : 1 - side; }

  const std::vector<i64>& send() const { return volume_.of_part[0]; }
  const std::vector<i64>& receive() const { return volume_.of_part[symmetric_ ? 0 : 1]; }
  i64 total() const {
    const auto sum = [](const auto& rows) {
      return std::accumulate(rows.begin(), rows.end(), i64{0});
    };
    const i64 apart = nodes_.matter() ? sum(node_send()) / nodes_.outside : 0;
    return sum(send()) - (nodes_.outside - 1) * apart;
  }
  i64 busiest(bool) const {
    return std::max(std::ranges::max(send()), std::ranges::max(receive()));
  }
  const std::vector<i64>& node_send() const { return volume_.of_node[0]; }
  const std::vector<i64>& node_receive() const { return volume_.of_node[symmetric_ ? 0 : 1]; }
  i64 busiest_node(bool) const {
    if (!nodes_.matter()) return 0;
    return std::max(std::ranges::max(node_send()), std::ranges::max(node_receive()));
  }
  const Nodes& nodes() const { return nodes_; }
  double cost() const { return cost_; }

  // Nodes have a potential of their own, as those of VolumeState.
  void set_potential(const Potential& potential, const Potential& of_nodes = {}) {
    potential_ = potential;
    node_potential_ = of_nodes;
    weights_.set_price({}, 0);
    reprice();
  }
  void price_weights(const Bound& bounds, double rows) {
    weights_.set_price(bounds, rows);
    reprice();
  }
  // What one more row of a block inside a node costs, for either part ...
  double own_price(int side, Part p) const { return price_[own(side)][p]; }
  double other_price(int side, Part p) const { return price_[other(side)][p]; }
  // ... and of one between nodes.
  double own_outside_price(int side, Part p) const { return outside_price(own(side), p); }
  double other_outside_price(int side, Part p) const { return outside_price(other(side), p); }
  Part node(Part p) const { return p / nodes_.size; }
  // The price of a row of the block of part `p` and another, `q`.
  double block_price(int side, Part p, Part q) const {
    return apart(p, q) ? own_outside_price(side, p) + other_outside_price(side, q)
                       : own_price(side, p) + other_price(side, q);
  }

  // Counts anew.
  void refresh() {
    const Members members(part_, parts_);
    for (int side = 0; side < sides(); ++side) {
      PartSets& covering = covering_[side];
      covering.clear();
      std::vector<BlockCovers> covers;
      const int threads = std::clamp<int>(threads_, 1, parts_);
      for (int t = 0; t < threads; ++t) {
        covers.emplace_back(pattern_[side], part_, parts_, members, false);
      }
      std::vector<Volumes> counts(threads, Volumes(parts_, node_count()));
      parallel_chunks(parts_, threads, [&](i64 p, int t) {
        covers[t].of_rows(p, [&](i64 q, i64 rows) {
          const auto to = static_cast<Part>(p), from = static_cast<Part>(q);
          counts[t].add(0, from, rows, apart(from, to), nodes_);
          counts[t].add(1, to, rows, apart(from, to), nodes_);
          covers[t].for_each_covered_row([&](Vertex v) { covering.add(v, from); });
        });
      });
      if (side == 1) continue;  // counted already
      for (int t = 1; t < threads; ++t) counts[0].add(counts[t]);
      volume_ = std::move(counts[0]);
    }
    reprice();
  }

  // Moves v; returns whether that lowered the cost as far as one can see, else nothing changes.
  bool try_move(Vertex v, Part to) {
    const Part from = part_[v];
    list_changes(v, to);
    const double before = cost_;
    cost_ -= weights_.cost(from) + weights_.cost(to);
    weights_.move(v, from, to);
    cost_ += weights_.cost(from) + weights_.cost(to);
    for (const Change& change : changes_) apply(change.side, change.own, change.other, change.by);
    if (cost_ >= before) {
      for (const Change& change : changes_) {
        apply(change.side, change.own, change.other, -change.by);
      }
      weights_.move(v, to, from);
      cost_ = before;
      return false;
    }
    part_[v] = to;
    for (int side = 0; side < sides(); ++side) covering_[side].clear(v);
    for (const Change& change : changes_) {
      if (change.by < 0) continue;
      covering_[change.side].add(v, change.other);
      // Instead of v, its only neighbour that is in no cover yet can be.
      if (change.only >= 0) covering_[opposite(change.side)].add(change.only, to);
    }
    for (int side = 0; side < sides(); ++side) leave(side, v, from);
    return true;
  }

 private:
  struct Change {
    int side;
    Part own, other;
    int by;
    Vertex only;  // of a block that grows: the one neighbour that was in no cover, −1: several
  };

  // Of parts, and of nodes what leaves them; sent and received.
  struct Volumes {
    Volumes(Part parts, Part nodes) {
      for (int direction : {0, 1}) {
        of_part[direction].resize(parts);
        of_node[direction].resize(nodes);
      }
    }

    void add(int direction, Part p, i64 rows, bool apart, const Nodes& nodes) {
      if (apart) of_node[direction][p / nodes.size] += rows * nodes.outside;
      of_part[direction][p] += apart ? rows * nodes.outside : rows;
    }
    void add(const Volumes& others) {
      for (int direction : {0, 1}) {
        add_to(of_part[direction], others.of_part[direction]);
        add_to(of_node[direction], others.of_node[direction]);
      }
    }

    std::array<std::vector<i64>, 2> of_part, of_node;
  };

  Part node_count() const { return nodes_.matter() ? parts_ / nodes_.size : 0; }
  bool apart(Part p, Part q) const { return nodes_.matter() && node(p) != node(q); }
  double outside_price(int direction, Part p) const {
    const int rows = direction == 0 ? 1 : 0;  // what is sent costs its rows as well
    return rows + nodes_.outside * (price_[direction][p] - rows + node_price_[direction][node(p)]);
  }

  int own(int side) const { return symmetric_ ? 0 : 1 - side; }
  int other(int side) const { return symmetric_ ? 0 : side; }

  // The blocks that shrink and grow when v moves.
  void list_changes(Vertex v, Part to) {
    constexpr Vertex kNone = -1, kSeveral = -2;
    changes_.clear();
    missing_.resize(parts_, kNone);
    for (int side = 0; side < sides(); ++side) {
      for (Part q : covering_[side].of(v)) changes_.push_back({side, part_[v], q, -1, kNone});
      near_.clear();
      for (Vertex u : neighbours(side, v)) {
        const Part q = part_[u];
        if (u == v || q == to || covering_[opposite(side)].has(u, to)) continue;
        if (missing_[q] == kNone) near_.push_back(q);
        missing_[q] = missing_[q] == kNone ? u : kSeveral;
      }
      for (Part q : near_) {
        const Vertex u = std::exchange(missing_[q], kNone);
        changes_.push_back({side, to, q, 1, u == kSeveral ? kNone : u});
      }
    }
  }

  void apply(int side, Part own_part, Part other_part, int by) {
    add(own(side), own_part, by, apart(own_part, other_part));
    add(other(side), other_part, by, apart(own_part, other_part));
  }
  void add(int direction, Part p, int by, bool apart) {
    cost_ -= cost_of(direction, p) + (apart ? node_cost(direction, node(p)) : 0);
    volume_.add(direction, p, by, apart, nodes_);
    cost_ += cost_of(direction, p) + (apart ? node_cost(direction, node(p)) : 0);
    set_price(direction, p);
    if (apart) set_node_price(direction, node(p));
    if (nodes_.matter() && direction == 0) cost_ += by;
  }

  // Neighbours of v that had no other in part `from` cover nothing there any more.
  void leave(int side, Vertex v, Part from) {
    constexpr std::size_t kFew = 256;
    PartSets& covering = covering_[opposite(side)];
    for (Vertex u : neighbours(side, v)) {
      covering.remove(u, part_[u]);
      if (part_[u] == from || !covering.has(u, from)) continue;
      const auto back = neighbours(opposite(side), u);
      if (back.size() > kFew) continue;
      if (std::ranges::none_of(back, [&](Vertex w) { return part_[w] == from; })) {
        covering.remove(u, from);
      }
    }
  }

  double cost_of(int direction, Part p) const {
    const i64 rows = volume_.of_part[direction][p];
    // With nodes, rows themselves are counted apart: all alike.
    const double send = nodes_.matter() ? potential_.peak_cost(rows) : potential_.send_cost(rows);
    const double receive = potential_.receive_cost(rows);
    return symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  double node_cost(int direction, Part node) const {
    const i64 rows = volume_.of_node[direction][node];
    const double send = node_potential_.peak_cost(rows);
    const double receive = node_potential_.receive_cost(rows);
    return symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  void set_price(int direction, Part p) {
    const i64 rows = volume_.of_part[direction][p];
    const double send = potential_.send_price(rows), receive = potential_.receive_price(rows);
    price_[direction][p] = symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  void set_node_price(int direction, Part node) {
    const i64 rows = volume_.of_node[direction][node];
    const double send = node_potential_.peak_price(rows);
    const double receive = node_potential_.receive_price(rows);
    node_price_[direction][node] = symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  void reprice() {
    cost_ = nodes_.matter() ? static_cast<double>(total()) : 0;
    for (Part p = 0; p < parts_; ++p) cost_ += weights_.cost(p);
    for (int direction = 0; direction < sides(); ++direction) {
      for (Part p = 0; p < parts_; ++p) {
        cost_ += cost_of(direction, p);
        set_price(direction, p);
      }
      for (Part node = 0; node < node_count(); ++node) {
        cost_ += node_cost(direction, node);
        set_node_price(direction, node);
      }
    }
  }

  std::array<Adjacency, 2> pattern_;
  bool symmetric_;
  Part parts_;
  Nodes nodes_;
  int threads_;
  const WeightedVertices& vertices_;
  std::vector<Part> part_;
  PricedWeights weights_;
  std::vector<PartSets> covering_;  // of each side
  Volumes volume_;
  std::array<std::vector<double>, 2> price_, node_price_;
  Potential potential_, node_potential_;
  double cost_ = 0;
  std::vector<Change> changes_;
  std::vector<Part> near_;
  std::vector<Vertex> missing_;  // of each part: a neighbour that no cover has
};

}  // namespace spgnn::gvb
