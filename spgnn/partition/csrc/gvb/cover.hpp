// The cover objective: every nonzero is paid for by its column or by its row, whichever a minimum
// vertex cover of its block chooses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "block_covers.hpp"
#include "hypergraph.hpp"
#include "multilevel.hpp"

namespace spgnn::gvb {

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

// Minimum covers of all blocks (rows of p, columns of q) of a partition: returns the rows that each
// part sends, and rewrites the split of all nonzeros between parts; of those inside a part it
// stays.
inline std::vector<std::int64_t> cover_blocks(const Adjacency& adjacency,
                                              const std::vector<Part>& labels, Part parts,
                                              Split& split) {
  std::vector<std::int64_t> send(parts, 0);
  const Members members(labels, parts);
  BlockCovers covers(adjacency, labels, parts, members, true);
  for (Part p = 0; p < parts; ++p) {
    covers.of_rows(p, [&](std::int64_t q, std::int64_t rows) {
      send[q] += rows;
      covers.for_each_nonzero([&](std::int64_t e, bool by_row, bool by_column) {
        // Where both sides are in the cover, either pays for free.
        if (by_row != by_column) split[e] = by_row;
      });
    });
  }
  return send;
}

// Partitions for the volume under minimum covers. Refinement for a fixed split never raises it,
// nor does a new minimum cover of the result, so the two alternate; from two starts: the partition
// for whole columns, and the one for the medium-grain split. The better end wins.
class CoverPartitioner {
 public:
  CoverPartitioner(const Adjacency& adjacency, const WeightedVertices& vertices,
                   const Options& options)
      : adjacency_(adjacency), vertices_(vertices), options_(options) {}

  std::vector<Part> operator()() {
    std::vector<Part> labels = Multilevel(weighted(column_hypergraph(adjacency_)), options_)();
    improve(std::move(labels));
    Split split = medium_grain(adjacency_);
    labels = Multilevel(weighted(split_hypergraph(adjacency_, split)), options_)();
    alternate(std::move(labels), std::move(split));
    return std::move(best_);
  }

  std::vector<Part> improve(std::vector<Part> labels) {
    Split split = medium_grain(adjacency_);
    // No result may move more than this one by more than the slack.
    most_total_ = judge(labels, split).total * 51 / 50;
    alternate(std::move(labels), std::move(split));
    return best_;
  }

 private:
  static constexpr int kRounds = 4;

  using CoverScore = std::pair<std::int64_t, std::int64_t>;  // overload, then volume

  struct Judgement {
    std::int64_t total, max;
  };

  Hypergraph weighted(Hypergraph h) const {
    static_cast<WeightedVertices&>(h) = vertices_;
    return h;
  }

  // The cover volume of a partition; the split becomes its minimum cover.
  Judgement judge(const std::vector<Part>& labels, Split& split) const {
    const auto send = cover_blocks(adjacency_, labels, options_.parts, split);
    return {std::accumulate(send.begin(), send.end(), std::int64_t{0}),
            *std::max_element(send.begin(), send.end())};
  }

  void alternate(std::vector<Part> labels, Split split) {
    for (int round = 0; round <= kRounds; ++round) {
      const Judgement found = judge(labels, split);
      const PartWeights weights(vertices_, labels, options_.parts);
      const CoverScore score{weights.overload(options_.max_weight),
                             found.total + options_.parts * found.max};
      const bool allowed = found.total <= most_total_ || score.first < best_score_.first;
      if (best_.empty() || (allowed && score < best_score_)) {
        best_ = labels;
        best_score_ = score;
      }
      if (round == kRounds) return;
      const Hypergraph h = weighted(split_hypergraph(adjacency_, split));
      labels = Multilevel(h, options_).improve(std::move(labels));
    }
  }

  Adjacency adjacency_;
  const WeightedVertices& vertices_;
  const Options& options_;
  std::vector<Part> best_;
  CoverScore best_score_{0, 0};
  std::int64_t most_total_ = 0;
};

}  // namespace spgnn::gvb
