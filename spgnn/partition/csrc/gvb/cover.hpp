// gvb for exchanges with minimum covers: a block (rows of part p, columns of part q) costs the size
// of a minimum vertex cover, rows of H and partial sums from q to p.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "multilevel.hpp"
#include "volume.hpp"

namespace spgnn::gvb {

// A partition for covers begins as one of a hypergraph in which it is settled who pays.

// Per nonzero: 1 if its row pays (a partial sum moves), 0 if its column does (a row of H moves).
using Split = std::vector<std::uint8_t>;

// Each nonzero lives with the owner of its row or of its column, whichever has fewer nonzeros and
// so can be kept together (medium grain, Pelt & Bisseling 2014, section 3); the other side pays.
inline Split medium_grain(const Adjacency& adjacency) {
  std::vector<std::int64_t> in_column(adjacency.vertices(), 0);
  for (Vertex v : adjacency.indices) ++in_column[v];
  Split split(adjacency.indices.size());
  for (std::int64_t i = 0; i < adjacency.vertices(); ++i) {
    for (std::int64_t e = adjacency.indptr[i]; e < adjacency.indptr[i + 1]; ++e) {
      split[e] = std::ssize(adjacency.row(i)) > in_column[adjacency.indices[e]];
    }
  }
  return split;
}

// Scattered nets for the columns and gathered nets for the rows of a split.
inline Hypergraph split_hypergraph(const Adjacency& adjacency, const Split& split) {
  Hypergraph h = nets_of_columns(adjacency, [&](std::int64_t e) { return !split[e]; });
  h.pins.reserve(adjacency.edges() + 2 * adjacency.vertices());
  for (Vertex i = 0; i < h.num_vertices; ++i) {
    h.pins.push_back(i);
    for (std::int64_t e = adjacency.indptr[i]; e < adjacency.indptr[i + 1]; ++e) {
      if (split[e] && adjacency.indices[e] != i) h.pins.push_back(adjacency.indices[e]);
    }
    h.close_net(1);
  }
  h.build_incidence();
  return h;
}

// Rewrites the split of all nonzeros between parts as minimum covers of the blocks have it; of
// those inside a part it stays.
inline void split_by_covers(const Adjacency& adjacency, const std::vector<Part>& labels, Part parts,
                            int threads, Split& split) {
  const Members members(labels, parts);
  std::vector<BlockCovers> covers;
  for (int thread = 0; thread < std::min(threads, parts); ++thread) {
    covers.emplace_back(adjacency, labels, parts, members, true);
  }
  parallel_chunks(parts, std::ssize(covers), [&](std::int64_t p, int thread) {
    covers[thread].of_rows(p, [&](std::int64_t, std::int64_t) {
      covers[thread].for_each_nonzero([&](std::int64_t e, bool by_row, bool by_column) {
        // Where both sides are in the cover, either pays for free.
        if (by_row != by_column) split[e] = by_row;
      });
    });
  });
}

// A set of parts per vertex, of at most as many as it has nonzeros.
class PartSets {
 public:
  PartSets(const Adjacency& adjacency, Part parts)
      : begin_(adjacency.indptr.size(), 0), size_(adjacency.vertices(), 0) {
    for (std::int64_t v = 0; v < adjacency.vertices(); ++v) {
      begin_[v + 1] = begin_[v] + std::min<std::int64_t>(std::ssize(adjacency.row(v)), parts);
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
  std::vector<std::int64_t> begin_;
  std::vector<std::int32_t> size_;
  std::vector<Part> parts_;
};

// A partition, the sizes of its covers, and which vertices belong to them.

// Minimum covers of a block are a lattice (Dulmage & Mendelsohn 1958): one of them has every row
// that any has, another every column. So a bit for each row and column of a block says two things:
// a vertex with the bit takes one row off the block when it leaves, and a vertex that comes costs
// none if all its neighbours on the other side have theirs. `refresh` sets bits and volumes
// exactly; a move changes those next to it by rules of thumb. What that misses lets searches climb
// out of local minima, where exact gains would end in the first: results are counted, and the best
// stays.
//
// Side 0 are the rows of vertices, side 1 their columns; of a symmetric pattern the second is the
// mirror image of the first and left out: what a part sends is what it receives.
class CoverState {
 public:
  // columns: the transpose, or where the pattern is symmetric the same arrays as `rows`.
  CoverState(const Adjacency& rows, const Adjacency& columns, const WeightedVertices& vertices,
             std::vector<Part> labels, const Options& options)
      : pattern_{rows, columns},
        symmetric_(rows.indices.data() == columns.indices.data()),
        parts_(options.parts),
        nodes_(options.nodes),
        threads_(options.threads),
        vertices_(vertices),
        part_(std::move(labels)),
        weights_(vertices, part_, parts_),
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

  const std::vector<std::int64_t>& send() const { return volume_.of_part[0]; }
  const std::vector<std::int64_t>& receive() const { return volume_.of_part[symmetric_ ? 0 : 1]; }
  std::int64_t total() const {
    const auto sum = [](const auto& rows) {
      return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    };
    const std::int64_t apart = nodes_.matter() ? sum(node_send()) / nodes_.outside : 0;
    return sum(send()) - (nodes_.outside - 1) * apart;
  }
  std::int64_t busiest(bool) const {
    return std::max(std::ranges::max(send()), std::ranges::max(receive()));
  }
  const std::vector<std::int64_t>& node_send() const { return volume_.of_node[0]; }
  const std::vector<std::int64_t>& node_receive() const {
    return volume_.of_node[symmetric_ ? 0 : 1];
  }
  std::int64_t busiest_node(bool) const {
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
  // What one more row of a block inside a node costs: for the part of the vertex whose row (column)
  // it is, and for that of its neighbours ...
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
      parallel_chunks(parts_, threads, [&](std::int64_t p, int t) {
        covers[t].of_rows(p, [&](std::int64_t q, std::int64_t rows) {
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

    void add(int direction, Part p, std::int64_t rows, bool apart, const Nodes& nodes) {
      if (apart) of_node[direction][p / nodes.size] += rows * nodes.outside;
      of_part[direction][p] += apart ? rows * nodes.outside : rows;
    }
    void add(const Volumes& others) {
      const auto sum = [](auto& to, const auto& from) {
        std::ranges::transform(to, from, to.begin(), std::plus<>());
      };
      for (int direction : {0, 1}) {
        sum(of_part[direction], others.of_part[direction]);
        sum(of_node[direction], others.of_node[direction]);
      }
    }

    std::array<std::vector<std::int64_t>, 2> of_part, of_node;
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

  // Neighbours of v that had no other in part `from` cover nothing there any more; where v now is,
  // they are inside.
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
    const std::int64_t rows = volume_.of_part[direction][p];
    // With nodes, rows themselves are counted apart: all alike.
    const double send = nodes_.matter() ? potential_.peak_cost(rows) : potential_.send_cost(rows);
    const double receive = potential_.receive_cost(rows);
    return symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  double node_cost(int direction, Part node) const {
    const std::int64_t rows = volume_.of_node[direction][node];
    const double send = node_potential_.peak_cost(rows);
    const double receive = node_potential_.receive_cost(rows);
    return symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  void set_price(int direction, Part p) {
    const std::int64_t rows = volume_.of_part[direction][p];
    const double send = potential_.send_price(rows), receive = potential_.receive_price(rows);
    price_[direction][p] = symmetric_ ? send + receive : direction == 0 ? send : receive;
  }
  void set_node_price(int direction, Part node) {
    const std::int64_t rows = volume_.of_node[direction][node];
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

// The best moves of vertices, by what is known of the covers. One for each thread.
class alignas(64) CoverMoveFinder {
 public:
  CoverMoveFinder(const CoverState& state, const Bound& max_weight)
      : state_(state),
        max_weight_(max_weight),
        near_(state.parts(), 0),
        in_all_(state.parts(), 0),
        saved_(state.parts(), 0.0),
        listed_(state.parts(), 0),
        nodes_matter_(state.nodes().matter()) {
    for (auto& nodes : in_node_) nodes.resize(state.node_send().size());
  }

  // The move of v to a part with room that gains most; to −1 where v is in no cover, so that its
  // leaving saves nothing.
  Move best(Vertex v) {
    const Part from = state_.part(v);
    double saves = 0;
    for (int side = 0; side < state_.sides(); ++side) {
      for (Part q : state_.covering(side).of(v)) {
        saves += state_.block_price(side, from, q);
      }
    }
    if (saves <= 0 || state_.is_fixed(v)) return {};
    saves += state_.weights().price(v, from);
    candidates_.clear();
    for (auto& nodes : in_node_) std::ranges::fill(nodes, InNode{});
    double others = 0;
    std::array<std::int32_t, 2> blocks{};
    for (int side = 0; side < state_.sides(); ++side) {
      others += add_side(side, v);
      blocks[side] = static_cast<std::int32_t>(parts_.size());
    }
    Move move;
    for (Part q : candidates_) {
      double gain = saves - others + saved_[q] - state_.weights().price(v, q);
      for (int side = 0; side < state_.sides(); ++side) {
        gain -= blocks[side] * outside_own_price(side, q);
        if (nodes_matter_) {
          const InNode& node = in_node_[side][state_.node(q)];
          const double own = state_.own_outside_price(side, q) - state_.own_price(side, q);
          gain += node.saved + node.blocks * own;
        }
      }
      saved_[q] = 0;
      listed_[q] = 0;
      if (q != from && gain > move.gain && state_.weights().fits(v, q, max_weight_)) {
        move = {gain, q};
      }
    }
    return move;
  }

 private:
  // Blocks of v with parts of one node, and what they cost less if v is there, its own share apart.
  struct InNode {
    double saved = 0;
    std::int32_t blocks = 0;
  };

  // One block for each part with neighbours of v, as far as others pay for them; what candidates
  // save: the block that is inside then, and those whose neighbours of v are all in a cover.
  double add_side(int side, Vertex v) {
    group_neighbours(side, v);
    const PartSets& covering = state_.covering(state_.opposite(side));
    double others = 0;
    std::size_t begin = 0;
    for (Part q : parts_) {
      const double price = state_.other_price(side, q);
      const auto end = static_cast<std::size_t>(std::exchange(near_[q], 0));
      if (nodes_matter_) {
        others += state_.other_outside_price(side, q);
        InNode& node = in_node_[side][state_.node(q)];
        node.saved += state_.other_outside_price(side, q) - price;
        ++node.blocks;
      } else {
        others += price;
      }
      save(q, state_.own_price(side, q) + price);
      const auto group = std::span(grouped_).subspan(begin, end - begin);
      // Parts for which all of the group are in a cover; mostly there is none.
      std::int32_t looked = 0, left = 1;
      while (left > 0 && looked < std::ssize(group)) {
        left = 0;
        for (Part p : covering.of(group[looked])) {
          const bool in_all = in_all_[p] == looked;
          in_all_[p] += in_all;
          left += in_all;
        }
        ++looked;
      }
      if (left > 0) {
        for (Part p : covering.of(group.back())) {
          if (in_all_[p] == looked) save(p, state_.block_price(side, p, q));
        }
      }
      for (Part p : covering.of(group[0])) in_all_[p] = 0;
      begin = end;
    }
    return others;
  }

  // Sorts the neighbours of v by part; near_[q] becomes the end of those in parts_' q.
  void group_neighbours(int side, Vertex v) {
    parts_.clear();
    std::int32_t count = 0;
    for (Vertex u : state_.neighbours(side, v)) {
      if (u == v) continue;
      if (near_[state_.part(u)]++ == 0) parts_.push_back(state_.part(u));
      ++count;
    }
    grouped_.resize(count);
    for (std::int32_t begin = 0; Part q : parts_) begin += std::exchange(near_[q], begin);
    for (Vertex u : state_.neighbours(side, v)) {
      if (u != v) grouped_[near_[state_.part(u)]++] = u;
    }
  }

  // The own price of a block between nodes, where there are any.
  double outside_own_price(int side, Part p) const {
    return nodes_matter_ ? state_.own_outside_price(side, p) : state_.own_price(side, p);
  }

  void save(Part p, double by) {
    if (!std::exchange(listed_[p], 1)) candidates_.push_back(p);
    saved_[p] += by;
  }

  const CoverState& state_;
  const Bound& max_weight_;
  std::vector<std::int32_t> near_, in_all_;  // of each part, 0 in between
  std::vector<Part> parts_;
  std::vector<Vertex> grouped_;
  std::vector<double> saved_;
  std::vector<std::uint8_t> listed_;
  std::vector<Part> candidates_;
  bool nodes_matter_;
  std::array<std::vector<InNode>, 2> in_node_;  // of each side
};

// Moves that lower the potential of cover volumes, as GreedyRefiner wants them.
class CoverMoves {
 public:
  static constexpr bool kQueuedAtFirst = false;

  CoverMoves(CoverState& state, const Bound& max_weight, int threads)
      : state_(state),
        finders_(std::max(1, threads), CoverMoveFinder(state, max_weight)),
        pays_(state.labels().size(), 0) {}

  // Vertices in covers; where `price` is given, only of blocks of which a part has that price.
  std::vector<Vertex> boundary(double price = 0) const {
    std::vector<Vertex> result;
    for (Vertex v = 0; v < std::ssize(state_.labels()); ++v) {
      const auto covers = [&](int side) {
        return std::ranges::any_of(state_.covering(side).of(v), [&](Part q) {
          return state_.own_price(side, state_.part(v)) >= price ||
                 state_.other_price(side, q) >= price;
        });
      };
      if (covers(0) || (state_.sides() > 1 && covers(1))) result.push_back(v);
    }
    return result;
  }

  void begin_round() { before_ = state_.cost(); }
  bool end_round() const {
    constexpr double kWorthARound = 1e-3;
    return state_.cost() <= before_ * (1 - kWorthARound);
  }

  void foresee(std::span<const Vertex> vertices) {
    constexpr std::int64_t kChunk = 16, kPays = 256;
    const std::int64_t chunks = (std::ssize(vertices) + kChunk - 1) / kChunk;
    const int threads = std::ssize(vertices) < kPays ? 1 : static_cast<int>(finders_.size());
    parallel_chunks(chunks, threads, [&](std::int64_t c, int thread) {
      const std::int64_t end = std::min((c + 1) * kChunk, std::ssize(vertices));
      for (std::int64_t i = c * kChunk; i < end; ++i) {
        pays_[vertices[i]] = finders_[thread].best(vertices[i]).gain > kNone;
      }
    });
  }

  Part try_move(Vertex v) {
    if (!pays_[v]) return -1;
    const Move move = finders_[0].best(v);
    const Part from = state_.part(v);
    return move.gain > kNone && state_.try_move(v, move.to) ? from : -1;
  }

  template <class Visit>
  void for_affected(Vertex v, Part, const Visit& visit) const {
    constexpr std::size_t kMost = 256;
    for (int side = 0; side < state_.sides(); ++side) {
      const auto neighbours = state_.neighbours(side, v);
      if (neighbours.size() <= kMost) std::ranges::for_each(neighbours, visit);
    }
  }

 private:
  static constexpr double kNone = 1e-9;

  CoverState& state_;
  std::vector<CoverMoveFinder> finders_;  // of each thread
  std::vector<std::uint8_t> pays_;
  double before_ = 0;
};

// Partitions for the volume under minimum covers: some for the medium-grain split of the nonzeros
// are refined by moves that know the covers; from the best V-cycles, each for the split of the
// covers so far, and such moves again; in the end those that lower the maximum.
class CoverPartitioner {
 public:
  CoverPartitioner(const Adjacency& adjacency, const WeightedVertices& vertices,
                   const Options& options)
      : adjacency_(adjacency),
        columns_(adjacency),
        vertices_(vertices),
        options_(options),
        first_(options),
        random_(options.seed),
        split_(medium_grain(adjacency)) {
    transposed_ = transpose(adjacency);
    if (std::ranges::equal(transposed_.indptr, adjacency.indptr) &&
        std::ranges::equal(transposed_.indices, adjacency.indices)) {
      transposed_ = {};
    } else {
      columns_ = {transposed_.indptr, transposed_.indices};
    }
    first_.starts = 1;
    first_.cycles = 0;
    first_.peak_rounds = 0;
  }

  std::vector<Part> operator()() {
    for (auto& labels : first_partitions()) refine(state_of(std::move(labels)), 1);
    return finished(options_.cycles);
  }

  // Never worse than the labels.
  std::vector<Part> improve(std::vector<Part> labels) {
    refine(state_of(std::move(labels)), 1);
    return finished(std::max(1, options_.cycles));  // cycles bring parts within their bounds
  }

 private:
  static constexpr double kWorthARound = 2e-3;
  static constexpr int kPasses = 2;  // of moves between exact counts

  // Each on a thread of its own. The calling thread alone tells of progress.
  std::vector<std::vector<Part>> first_partitions() const {
    const Hypergraph h = hypergraph();
    std::vector<std::vector<Part>> labels((options_.starts + 1) / 2);
    std::atomic<bool> interrupted = false;
    parallel_chunks(std::ssize(labels), options_.threads, [&](std::int64_t start, int thread) {
      Options options = first_;
      if (start > 0) options.seed = Random(options_.seed).split(start).next();
      if (labels.size() > 1) options.threads = 1;
      options.progress = [&](const char* stage, double fraction) {
        if (interrupted) throw std::runtime_error("interrupted");
        if (thread > 0 || !options_.progress) return;
        try {
          options_.progress(stage, fraction);
        } catch (...) {
          interrupted = true;
          throw;
        }
      };
      labels[start] = Multilevel(h, options)();
    });
    return labels;
  }

  std::vector<Part> finished(int cycles) {
    const int rounds = 2 * options_.greedy_rounds;
    refine(state_of(best_), cycles > 0 ? 1 : rounds);
    for (int cycle = 0; cycle < cycles; ++cycle) {
      split_by_covers(adjacency_, best_, options_.parts, options_.threads, split_);
      refine(state_of(Multilevel(hypergraph(), first_).improve(best_)), rounds);
    }
    lower_peaks();
    if (options_.progress) options_.progress("refinement", 1);
    return std::move(best_);
  }

  Hypergraph hypergraph() const {
    Hypergraph h = split_hypergraph(adjacency_, split_);
    static_cast<WeightedVertices&>(h) = vertices_;
    return h;
  }

  CoverState state_of(std::vector<Part> labels) const {
    return {adjacency_, columns_, vertices_, std::move(labels), options_};
  }

  void refine(CoverState state, int rounds) {
    keep(state);
    for (int round = 0; round < rounds; ++round) {
      price_volumes(state, options_.max_weight, options_, options_.alpha_last);
      CoverMoves moves(state, options_.max_weight, options_.threads);
      if (!improved(state, moves, moves.boundary(), kPasses)) return;
    }
  }

  void lower_peaks() {
    constexpr double kNoticed = 1.2;
    CoverState state = state_of(best_);
    for (int round = 0; round < options_.peak_rounds; ++round) {
      price_peaks(state, options_.max_weight, options_);
      CoverMoves moves(state, options_.max_weight, options_.threads);
      if (!improved(state, moves, moves.boundary(2 * kNoticed), 1)) return;
    }
  }

  // Moves vertices and counts; whether that was worth it.
  bool improved(CoverState& state, const CoverMoves& moves, std::vector<Vertex> vertices,
                int rounds) {
    if (options_.progress) options_.progress("refinement", 0.5);
    const Score before = score(state, options_, kInTheEnd);
    GreedyRefiner<CoverMoves>(moves, vertices_.num_vertices, random_)
        .run(rounds, std::move(vertices));
    state.refresh();
    const Score now = keep(state);
    return now.first < before.first || now.second < before.second * (1 - kWorthARound);
  }

  // Keeps the partition if it is the best so far.
  Score keep(const CoverState& state) {
    const Score now = score(state, options_, kInTheEnd);
    if (best_.empty() || now < best_score_) {
      best_ = state.labels();
      best_score_ = now;
    }
    return now;
  }

  Adjacency adjacency_, columns_;
  Graph transposed_;
  const WeightedVertices& vertices_;
  const Options& options_;
  Options first_;
  Random random_;
  Split split_;
  std::vector<Part> best_;
  Score best_score_{};
};

}  // namespace spgnn::gvb
