// Counts the rows that a partition moves when every block takes a minimum vertex cover.
#pragma once

#include <numeric>

#include "minimum_cover.hpp"
#include "volume.hpp"

namespace spgnn {

// Row v of block (p, q), or column u, is a vertex of the block's bipartite graph; covering v means
// that q sends a partial sum for v, covering u that q sends row u of H. Both travel from q to p,
// so the size of the cover is all that counts.
class CoverVolumeCounter {
 public:
  CoverVolumeCounter(const Pattern& pattern, Labels labels, std::int64_t parts, int threads,
                     Tick tick)
      : pattern_(pattern),
        labels_(labels),
        parts_(parts),
        threads_(threads),
        tick_(std::move(tick)) {
    sort_by_part();
  }

  Volume operator()() {
    std::vector<Worker> workers;
    for (int thread = 0; thread < threads_; ++thread) workers.emplace_back(*this);
    parallel_chunks(
        parts_, threads_, [&](std::int64_t part, int thread) { workers[thread].count(part); },
        tick_);
    Volume total = std::move(workers[0].volume);
    for (int thread = 1; thread < threads_; ++thread) total.add(workers[thread].volume);
    return total;
  }

 private:
  void sort_by_part() {
    part_begin_.assign(parts_ + 1, 0);
    for (std::int32_t label : labels_) ++part_begin_[label + 1];
    std::partial_sum(part_begin_.begin(), part_begin_.end(), part_begin_.begin());
    members_.resize(labels_.size());
    std::vector<std::int64_t> next(part_begin_.begin(), part_begin_.end() - 1);
    for (std::size_t v = 0; v < labels_.size(); ++v) {
      members_[next[labels_[v]]++] = static_cast<std::int32_t>(v);
    }
  }

  // One thread's work arrays.
  struct Worker {
    explicit Worker(const CoverVolumeCounter& counter)
        : owner(counter), volume(counter.parts_), slot(counter.pattern_.vertices()) {
      std::fill(slot.begin(), slot.end(), -1);
    }

    void count(std::int64_t part) {
      gather(part);
      for (std::int64_t q = 0; q < owner.parts_; ++q) {
        if (block_begin[q] == block_begin[q + 1]) continue;
        volume.add(q, part, cover_block(block_begin[q], block_begin[q + 1]));
      }
    }

    // The nonzeros of the part's rows that lie in other parts' columns, grouped by that part.
    void gather(std::int64_t part) {
      block_begin.assign(owner.parts_ + 1, 0);
      for_each_cut(part, [&](std::int64_t q, std::int32_t, std::int32_t) { ++block_begin[q + 1]; });
      std::partial_sum(block_begin.begin(), block_begin.end(), block_begin.begin());
      nonzeros.resize(block_begin.back());
      std::vector<std::int64_t> next(block_begin.begin(), block_begin.end() - 1);
      for_each_cut(part, [&](std::int64_t q, std::int32_t row, std::int32_t column) {
        nonzeros[next[q]++] = {row, column};
      });
    }

    template <class Visit>
    void for_each_cut(std::int64_t part, const Visit& visit) {
      const auto& [indptr, indices] = owner.pattern_;
      for (std::int64_t i = owner.part_begin_[part]; i < owner.part_begin_[part + 1]; ++i) {
        std::int32_t row = owner.members_[i];
        for (std::int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
          std::int32_t label = owner.labels_[indices[e]];
          if (label != part) visit(label, row, indices[e]);
        }
      }
    }

    std::int64_t cover_block(std::int64_t begin, std::int64_t end) {
      row_begin.clear();
      columns.clear();
      std::int32_t distinct = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        if (i == begin || nonzeros[i].row != nonzeros[i - 1].row) row_begin.push_back(i - begin);
        std::int32_t& compact = slot[nonzeros[i].column];
        if (compact < 0) compact = distinct++;
        columns.push_back(compact);
      }
      row_begin.push_back(end - begin);
      for (std::int64_t i = begin; i < end; ++i) slot[nonzeros[i].column] = -1;
      return cover({row_begin, columns, distinct}, row_cover, column_cover);
    }

    struct Nonzero {
      std::int32_t row, column;
    };

    const CoverVolumeCounter& owner;
    Volume volume;
    BigArray<std::int32_t> slot;  // column -> its number inside the block, -1 outside
    std::vector<Nonzero> nonzeros;
    std::vector<std::int64_t> block_begin, row_begin;
    std::vector<std::int32_t> columns;
    std::vector<std::uint8_t> row_cover, column_cover;
    MinimumVertexCover<std::int32_t> cover;
  };

  Pattern pattern_;
  Labels labels_;
  std::int64_t parts_;
  int threads_;
  Tick tick_;
  std::vector<std::int64_t> part_begin_;
  std::vector<std::int32_t> members_;
};

}  // namespace spgnn
