// gvb for minimum covers: a block (rows of part p, columns of part q) costs the size of one.
#pragma once

#include "cover_state.hpp"

namespace spgnn::gvb {

// A partition for covers begins as one of a hypergraph in which it is settled who pays.

// Per nonzero: 1 if its row pays (a partial sum moves), 0 if its column does (a row of H moves).
using Split = std::vector<u8>;

// Each nonzero lives with the owner of its row or of its column, whichever has fewer nonzeros and
// so can be kept together (medium grain, Pelt & Bisseling 2014, section 3); the other side pays.
inline Split medium_grain(const Adjacency& adjacency) {
  std::vector<i64> in_column(adjacency.vertices(), 0);
  for (Vertex v : adjacency.indices) ++in_column[v];
  Split split(adjacency.indices.size());
  for (i64 i = 0; i < adjacency.vertices(); ++i) {
    for (i64 e = adjacency.indptr[i]; e < adjacency.indptr[i + 1]; ++e) {
      split[e] = std::ssize(adjacency.row(i)) > in_column[adjacency.indices[e]];
    }
  }
  return split;
}

// Scattered nets for the columns and gathered nets for the rows of a split.
inline Hypergraph split_hypergraph(const Adjacency& adjacency, const Split& split) {
  Hypergraph h = nets_of_columns(adjacency, [&](i64 e) { return !split[e]; });
  h.pins.reserve(adjacency.edges() + 2 * adjacency.vertices());
  for (Vertex i = 0; i < h.num_vertices; ++i) {
    h.pins.push_back(i);
    for (i64 e = adjacency.indptr[i]; e < adjacency.indptr[i + 1]; ++e) {
      if (split[e] && adjacency.indices[e] != i) h.pins.push_back(adjacency.indices[e]);
    }
    h.close_net(1);
  }
  h.build_incidence();
  return h;
}

// Rewrites the split of nonzeros between parts as minimum covers have it.
inline void split_by_covers(const Adjacency& adjacency, const std::vector<Part>& labels, Part parts,
                            int threads, Split& split) {
  const Members members(labels, parts);
  std::vector<BlockCovers> covers;
  for (int thread = 0; thread < std::min(threads, parts); ++thread) {
    covers.emplace_back(adjacency, labels, parts, members, true);
  }
  parallel_chunks(parts, static_cast<int>(covers.size()), [&](i64 p, int thread) {
    covers[thread].of_rows(p, [&](i64, i64) {
      covers[thread].for_each_nonzero([&](i64 e, bool by_row, bool by_column) {
        // Where both sides are in the cover, either pays for free.
        if (by_row != by_column) split[e] = by_row;
      });
    });
  });
}

// The best moves of vertices, by what is known of the covers. One for each thread.
class alignas(64) CoverMoveFinder {
 public:
  CoverMoveFinder(const CoverState& state, const Bound& max_weight)
      : state_(state), max_weight_(max_weight), near_(state.parts(), 0), in_all_(state.parts(), 0),
        saved_(state.parts(), 0.0), listed_(state.parts(), 0),
        nodes_matter_(state.nodes().matter()) {
    for (auto& nodes : in_node_) nodes.resize(state.node_send().size());
  }

  // The move of v to a part with room that gains most; to −1 where its leaving saves nothing.
  Move best(Vertex v) {
    const Part from = state_.part(v);
    double saves = 0;
    for (int side = 0; side < state_.sides(); ++side) {
      for (Part q : state_.covering(side).of(v)) { saves += state_.block_price(side, from, q); }
    }
    if (saves <= 0 || state_.is_fixed(v)) return {};
    saves += state_.weights().price(v, from);
    candidates_.clear();
    for (auto& nodes : in_node_) std::ranges::fill(nodes, InNode{});
    double others = 0;
    std::array<i32, 2> blocks{};
    for (int side = 0; side < state_.sides(); ++side) {
      others += add_side(side, v);
      blocks[side] = static_cast<i32>(parts_.size());
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
    i32 blocks = 0;
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
      i32 looked = 0, left = 1;
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
    i32 count = 0;
    for (Vertex u : state_.neighbours(side, v)) {
      if (u == v) continue;
      if (near_[state_.part(u)]++ == 0) parts_.push_back(state_.part(u));
      ++count;
    }
    grouped_.resize(count);
    for (i32 begin = 0; Part q : parts_) begin += std::exchange(near_[q], begin);
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
  std::vector<i32> near_, in_all_;  // of each part, 0 in between
  std::vector<Part> parts_;
  std::vector<Vertex> grouped_;
  std::vector<double> saved_;
  std::vector<u8> listed_;
  std::vector<Part> candidates_;
  bool nodes_matter_;
  std::array<std::vector<InNode>, 2> in_node_;  // of each side
};

// Moves that lower the potential of cover volumes, as GreedyRefiner wants them.
class CoverMoves {
 public:
  static constexpr bool kQueuedAtFirst = false;

  CoverMoves(CoverState& state, const Bound& max_weight, int threads)
      : state_(state), finders_(std::max(1, threads), CoverMoveFinder(state, max_weight)),
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
    constexpr i64 kChunk = 16, kPays = 256;
    const i64 chunks = (std::ssize(vertices) + kChunk - 1) / kChunk;
    const int threads = std::ssize(vertices) < kPays ? 1 : static_cast<int>(finders_.size());
    parallel_chunks(chunks, threads, [&](i64 c, int thread) {
      const i64 end = std::min((c + 1) * kChunk, std::ssize(vertices));
      for (i64 i = c * kChunk; i < end; ++i) {
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

  template <class Visit> void for_affected(Vertex v, Part, const Visit& visit) const {
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
  std::vector<u8> pays_;
  double before_ = 0;
};

// Partitions for the volume under minimum covers: first for the medium-grain split, refined by
// moves that know the covers; then V-cycles for the split of the covers so far; then the maximum.
class CoverPartitioner {
 public:
  CoverPartitioner(const Adjacency& adjacency, const WeightedVertices& vertices,
                   const Options& options)
      : adjacency_(adjacency), columns_(adjacency), vertices_(vertices), options_(options),
        first_(options), random_(options.seed), split_(medium_grain(adjacency)) {
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
    parallel_chunks(std::ssize(labels), options_.threads, [&](i64 start, int thread) {
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
