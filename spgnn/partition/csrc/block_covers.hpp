// Minimum vertex covers of the blocks of a partition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "adjacency.hpp"
#include "big_array.hpp"
#include "groups.hpp"
#include "minimum_cover.hpp"

namespace spgnn {

// Block (p, q) holds the nonzeros of p's rows in q's columns. Its rows and columns are the vertices
// of a bipartite graph; covering a row means that q sends a partial sum for it, covering a column
// that q sends that row of H. Both travel from q to p, so the size of the cover is what moves.
//
// Holds its work arrays, so that one object can cover the blocks of many parts.
class BlockCovers {
 public:
  // keep_places: whether for_each_nonzero will be called.
  BlockCovers(const Adjacency& adjacency, std::span<const std::int32_t> labels, std::int64_t parts,
              const Members& members, bool keep_places)
      : adjacency_(adjacency),
        labels_(labels),
        parts_(parts),
        members_(members),
        keep_places_(keep_places),
        slot_(adjacency.vertices()) {
    std::fill(slot_.begin(), slot_.end(), -1);
  }

  // Calls visit(q, size of the cover) for every block of part p's rows that is not empty.
  template <class Visit>
  void of_rows(std::int64_t p, const Visit& visit) {
    if (members_.of(p).empty()) return;
    gather(p);
    for (std::int64_t q = 0; q < parts_; ++q) {
      first_ = block_begin_[q];
      if (first_ < block_begin_[q + 1]) visit(q, cover_block(block_begin_[q + 1]));
    }
  }

  // Calls visit(nonzero, row is covered, column is covered) for each nonzero of the block at hand.
  template <class Visit>
  void for_each_nonzero(const Visit& visit) const {
    std::int64_t row = -1;
    for (std::int64_t i = 0; i < std::ssize(columns_); ++i) {
      if (i == row_begin_[row + 1]) ++row;
      visit(places_[first_ + i], row_cover_[row] != 0, column_cover_[columns_[i]] != 0);
    }
  }

 private:
  struct Nonzero {
    std::int32_t row, column;
  };

  // The nonzeros of the part's rows that lie in other parts' columns, grouped by that part.
  void gather(std::int64_t p) {
    block_begin_.assign(parts_ + 1, 0);
    for_each_cut(p, [&](std::int64_t q, Nonzero, std::int64_t) { ++block_begin_[q + 1]; });
    std::partial_sum(block_begin_.begin(), block_begin_.end(), block_begin_.begin());
    nonzeros_.resize(block_begin_.back());
    if (keep_places_) places_.resize(block_begin_.back());
    next_.assign(block_begin_.begin(), block_begin_.end() - 1);
    for_each_cut(p, [&](std::int64_t q, Nonzero nonzero, std::int64_t place) {
      if (keep_places_) places_[next_[q]] = place;
      nonzeros_[next_[q]++] = nonzero;
    });
  }

  template <class Visit>
  void for_each_cut(std::int64_t p, const Visit& visit) const {
    const auto& [indptr, indices] = adjacency_;
    for (std::int32_t row : members_.of(p)) {
      for (std::int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
        const std::int32_t label = labels_[indices[e]];
        if (label != p) visit(label, Nonzero{row, indices[e]}, e);
      }
    }
  }

  // The block of the nonzeros [first_, end).
  std::int64_t cover_block(std::int64_t end) {
    row_begin_.clear();
    columns_.clear();
    std::int32_t row = -1, distinct = 0;
    for (std::int64_t i = first_; i < end; ++i) {
      if (nonzeros_[i].row != row) row_begin_.push_back(i - first_);
      row = nonzeros_[i].row;
      std::int32_t& number = slot_[nonzeros_[i].column];
      if (number < 0) number = distinct++;
      columns_.push_back(number);
    }
    row_begin_.push_back(end - first_);
    for (std::int64_t i = first_; i < end; ++i) slot_[nonzeros_[i].column] = -1;
    return cover_({row_begin_, columns_, distinct}, row_cover_, column_cover_);
  }

  Adjacency adjacency_;
  std::span<const std::int32_t> labels_;
  std::int64_t parts_;
  const Members& members_;
  bool keep_places_;
  BigArray<std::int32_t> slot_;  // column -> its number inside the block, -1 outside
  std::vector<Nonzero> nonzeros_;
  std::vector<std::int64_t> places_;  // of the nonzeros in the matrix
  std::int64_t first_ = 0;            // nonzero of the block at hand
  std::vector<std::int64_t> block_begin_, next_, row_begin_;
  std::vector<std::int32_t> columns_;
  std::vector<std::uint8_t> row_cover_, column_cover_;
  MinimumVertexCover<std::int32_t> cover_;
};

}  // namespace spgnn
