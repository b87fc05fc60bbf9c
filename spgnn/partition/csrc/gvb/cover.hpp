// The cover objective: every nonzero is paid for by its column or by its row, whichever a minimum
// vertex cover of its block chooses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "hypergraph.hpp"
#include "minimum_cover.hpp"
#include "multilevel.hpp"

namespace spgnn::gvb {

// Per nonzero: 1 if its row pays (a partial sum moves), 0 if its column does (a row of H moves).
using Split = std::vector<std::uint8_t>;

// Each nonzero lives with the owner of its row or of its column, whichever has fewer nonzeros and
// so can be kept together (medium grain, Pelt & Bisseling 2014, section 3); the other side pays.
template <class Index>
Split medium_grain(const Pattern<Index>& pattern) {
  std::vector<std::int64_t> in_column(pattern.size(), 0);
  for (Index v : pattern.columns) ++in_column[v];
  Split split(pattern.columns.size());
  for (Vertex i = 0; i < pattern.size(); ++i) {
    const std::int64_t in_row = pattern.begin[i + 1] - pattern.begin[i];
    for (std::int64_t e = pattern.begin[i]; e < pattern.begin[i + 1]; ++e) {
      split[e] = in_row > in_column[pattern.columns[e]];
    }
  }
  return split;
}

// Scattered nets for the columns and gathered nets for the rows of a split.
template <class Index>
Hypergraph split_nets(const Pattern<Index>& pattern, const Split& split) {
  Hypergraph h;
  const Vertex n = h.num_vertices = pattern.size();
  std::vector<std::int64_t> begin(static_cast<std::size_t>(n) + 1, 0);
  for (std::size_t e = 0; e < split.size(); ++e) begin[pattern.columns[e] + 1] += !split[e];
  for (Vertex v = 0; v < n; ++v) begin[v + 1] += begin[v];
  std::vector<Vertex> rows(begin[n]);
  std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
  for (Vertex i = 0; i < n; ++i) {
    for (std::int64_t e = pattern.begin[i]; e < pattern.begin[i + 1]; ++e) {
      if (!split[e]) rows[next[pattern.columns[e]]++] = i;
    }
  }
  const auto close = [&h](std::size_t first) {
    h.pins.size() - first < 2 ? h.pins.resize(first) : h.close_net(1);
  };
  for (Vertex v = 0; v < n; ++v) {
    const auto first = h.pins.size();
    h.pins.push_back(v);
    std::copy_if(rows.begin() + begin[v], rows.begin() + begin[v + 1], std::back_inserter(h.pins),
                 [v](Vertex i) { return i != v; });
    close(first);
  }
  h.num_scatter = h.num_nets();
  for (Vertex i = 0; i < n; ++i) {
    const auto first = h.pins.size();
    h.pins.push_back(i);
    for (std::int64_t e = pattern.begin[i]; e < pattern.begin[i + 1]; ++e) {
      const auto v = static_cast<Vertex>(pattern.columns[e]);
      if (split[e] && v != i) h.pins.push_back(v);
    }
    close(first);
  }
  h.build_incidence();
  return h;
}

// Minimum vertex covers of all blocks (rows of p, columns of q) of a partition.
template <class Index>
class BlockCovers {
 public:
  BlockCovers(const Pattern<Index>& pattern, const std::vector<Part>& labels, Part parts)
      : pattern_(pattern),
        labels_(labels),
        parts_(parts),
        send_(parts, 0),
        column_id_(pattern.size(), -1) {}

  // Rewrites the split of all nonzeros between parts; of those inside a part it is kept.
  void assign(Split& split) {
    std::vector<std::vector<Vertex>> members(parts_);
    for (Vertex i = 0; i < pattern_.size(); ++i) members[labels_[i]].push_back(i);
    for (Part p = 0; p < parts_; ++p) {
      collect(p, members[p]);
      for (Part q = 0; q < parts_; ++q) {
        if (first_[q] < first_[q + 1]) cover_block(q, split);
      }
    }
  }

  // Rows each part sends; their sum is the cover volume.
  const std::vector<std::int64_t>& send() const { return send_; }

 private:
  struct Entry {
    Vertex row;
    std::int64_t nonzero;
  };

  // The entries of block row p, grouped by the part of their column, rows in order.
  void collect(Part p, const std::vector<Vertex>& rows) {
    first_.assign(static_cast<std::size_t>(parts_) + 2, 0);
    const auto visit = [&](auto&& f) {
      for (Vertex i : rows) {
        for (std::int64_t e = pattern_.begin[i]; e < pattern_.begin[i + 1]; ++e) {
          const Part q = labels_[pattern_.columns[e]];
          if (q != p) f(q, Entry{i, e});
        }
      }
    };
    visit([&](Part q, Entry) { ++first_[q + 2]; });
    for (Part q = 0; q < parts_; ++q) first_[q + 2] += first_[q + 1];
    entries_.resize(first_.back());
    visit([&](Part q, Entry entry) { entries_[first_[q + 1]++] = entry; });
  }

  void cover_block(Part q, Split& split) {
    begin_.clear();
    columns_.clear();
    block_columns_.clear();
    Vertex row = -1;
    for (std::int64_t x = first_[q]; x < first_[q + 1]; ++x) {
      if (entries_[x].row != row) begin_.push_back(x - first_[q]);
      row = entries_[x].row;
      const auto v = static_cast<Vertex>(pattern_.columns[entries_[x].nonzero]);
      if (column_id_[v] < 0) {
        column_id_[v] = static_cast<Vertex>(block_columns_.size());
        block_columns_.push_back(v);
      }
      columns_.push_back(column_id_[v]);
    }
    begin_.push_back(first_[q + 1] - first_[q]);
    const auto num_columns = static_cast<std::int64_t>(block_columns_.size());
    send_[q] += cover_({begin_, columns_, num_columns}, row_cover_, column_cover_);
    write(q, split);
    for (Vertex v : block_columns_) column_id_[v] = -1;
  }

  void write(Part q, Split& split) const {
    std::int64_t row = -1;
    for (std::int64_t x = first_[q]; x < first_[q + 1]; ++x) {
      if (x - first_[q] == begin_[row + 1]) ++row;
      // Where both sides are in the cover, either pays for free.
      const bool by_row = row_cover_[row], by_column = column_cover_[columns_[x - first_[q]]];
      if (by_row != by_column) split[entries_[x].nonzero] = by_row;
    }
  }

  const Pattern<Index>& pattern_;
  const std::vector<Part>& labels_;
  Part parts_;
  std::vector<std::int64_t> send_, first_, begin_;
  std::vector<Entry> entries_;
  std::vector<Vertex> column_id_, columns_, block_columns_;
  std::vector<std::uint8_t> row_cover_, column_cover_;
  MinimumVertexCover<Vertex> cover_;
};

// Partitions for the volume under minimum covers. Refinement for a fixed split never raises it,
// nor does a new minimum cover of the result, so the two alternate; from two starts: the partition
// for whole columns, and the one for the medium-grain split. The better end wins.
template <class Index>
class CoverPartitioner {
 public:
  CoverPartitioner(const Pattern<Index>& pattern, const std::vector<std::int64_t>& weights,
                   const Options& options)
      : pattern_(pattern), weights_(weights), options_(options) {}

  std::vector<Part> operator()() {
    std::vector<Part> labels = Multilevel(weighted(column_nets(pattern_)), options_)();
    // No result may move more than this one by more than the slack.
    Split split = medium_grain(pattern_);
    most_total_ = judge(labels, split).total * 51 / 50;
    alternate(std::move(labels), std::move(split));
    split = medium_grain(pattern_);
    labels = Multilevel(weighted(split_nets(pattern_, split)), options_)();
    alternate(std::move(labels), std::move(split));
    return std::move(best_);
  }

  std::vector<Part> improve(std::vector<Part> labels) {
    Split split = medium_grain(pattern_);
    most_total_ = judge(labels, split).total * 51 / 50;
    alternate(std::move(labels), std::move(split));
    return std::move(best_);
  }

 private:
  static constexpr int kRounds = 4;

  using Score = std::pair<std::int64_t, std::int64_t>;  // overload, then volume

  struct Judgement {
    std::int64_t total, max;
  };

  Hypergraph weighted(Hypergraph h) const {
    h.constraints = static_cast<int>(options_.max_weight.size());
    h.vertex_weight = weights_;
    return h;
  }

  // The cover volume of a partition; the split becomes its minimum cover.
  Judgement judge(const std::vector<Part>& labels, Split& split) const {
    BlockCovers<Index> covers(pattern_, labels, options_.parts);
    covers.assign(split);
    Judgement result{0, 0};
    for (std::int64_t s : covers.send()) {
      result.total += s;
      result.max = std::max(result.max, s);
    }
    return result;
  }

  void alternate(std::vector<Part> labels, Split split) {
    for (int round = 0; round <= kRounds; ++round) {
      const Judgement found = judge(labels, split);
      const Score score{overload(weights_, labels, options_),
                        found.total + options_.parts * found.max};
      const bool allowed = found.total <= most_total_ || score.first < best_score_.first;
      if (best_.empty() || (allowed && score < best_score_)) {
        best_ = labels;
        best_score_ = score;
      }
      if (round == kRounds) return;
      const Hypergraph h = weighted(split_nets(pattern_, split));
      labels = Multilevel(h, options_).improve(std::move(labels));
    }
  }

  const Pattern<Index>& pattern_;
  const std::vector<std::int64_t>& weights_;
  const Options& options_;
  std::vector<Part> best_;
  Score best_score_{0, 0};
  std::int64_t most_total_ = 0;
};

}  // namespace spgnn::gvb
