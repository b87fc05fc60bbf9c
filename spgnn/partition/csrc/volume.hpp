// Counts the rows that a partition moves: when columns pay, when rows pay, and when every block
// takes a minimum vertex cover.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "adjacency.hpp"
#include "big_array.hpp"
#include "minimum_cover.hpp"
#include "parallel.hpp"

namespace spgnn {

using Labels = std::span<const std::int32_t>;

// Rows sent and received by each part under one cover. blocks[p * parts + q] = rows that p sends to
// q; kept for up to kMaxBlockParts parts (8 MB a thread), empty beyond.
struct CoverVolume {
  static constexpr std::int64_t kMaxBlockParts = 1024;

  explicit CoverVolume(std::int64_t parts, bool keep_blocks = true)
      : send(parts),
        receive(parts),
        blocks(keep_blocks && parts <= kMaxBlockParts ? parts * parts : 0) {}

  void add(std::int64_t from, std::int64_t to, std::int64_t rows) {
    send[from] += rows;
    receive[to] += rows;
    if (!blocks.empty()) blocks[from * static_cast<std::int64_t>(send.size()) + to] += rows;
  }
  void add(const CoverVolume& other) {
    auto sum = [](auto& to, const auto& from) {
      std::transform(to.begin(), to.end(), from.begin(), to.begin(), std::plus<>());
    };
    sum(send, other.send);
    sum(receive, other.receive);
    sum(blocks, other.blocks);
  }

  std::vector<std::int64_t> send, receive, blocks;
};

struct VolumeCount {
  CoverVolume column, row;
  std::int64_t edge_cut = 0;  // nonzeros whose row and column live in different parts
};

// Column: the row of H of vertex v goes to each other part with a row that needs v.
// Row: part q sends one partial sum for each row elsewhere with a nonzero in a column of q.
//
// Rows are read in storage order, never at random, so that a memory-mapped adjacency streams. Which
// parts need v is a set of bits per vertex; `table_bytes` bounds it, and sets that do not fit are
// counted in several passes of 64 or more parts each.
class VolumeCounter {
 public:
  VolumeCounter(const Adjacency& adjacency, Labels labels, std::int64_t parts, int threads,
                std::int64_t table_bytes, Tick tick)
      : adjacency_(adjacency),
        labels_(labels),
        parts_(parts),
        chunks_(adjacency, kWorkPerChunk),
        tick_(std::move(tick)) {
    // Each thread counts for itself, so no more than can have work.
    threads_ = static_cast<int>(
        std::clamp<std::int64_t>(std::max(chunks_.count(), column_chunks()), 1, threads));
    std::int64_t words = labels.empty() ? 1 : std::ranges::max(labels) / 64 + 1;
    std::int64_t affordable = table_bytes / (8 * std::max<std::int64_t>(1, adjacency.vertices()));
    words_ = std::clamp<std::int64_t>(affordable, 1, words);
    passes_ = (words + words_ - 1) / words_;
  }

  VolumeCount operator()() {
    std::vector<VolumeCount> counts(threads_, {CoverVolume(parts_), CoverVolume(parts_)});
    for (pass_ = 0; pass_ < passes_; ++pass_) {
      needed_by_ = BigArray<std::uint64_t>(adjacency_.vertices() * words_);
      if (pass_ == 0) {
        mark<true>(counts);
      } else {
        mark<false>(counts);
      }
      count_columns(counts);
    }
    VolumeCount total = std::move(counts[0]);
    for (int thread = 1; thread < threads_; ++thread) {
      total.column.add(counts[thread].column);
      total.row.add(counts[thread].row);
      total.edge_cut += counts[thread].edge_cut;
    }
    return total;
  }

 private:
  static constexpr std::int64_t kWorkPerChunk = 1 << 18, kColumnsPerChunk = 1 << 16;
  static constexpr std::int64_t kPrefetch = 24;  // nonzeros between asking for a line and using it

  std::int64_t column_chunks() const {
    return (adjacency_.vertices() + kColumnsPerChunk - 1) / kColumnsPerChunk;
  }
  std::int64_t first_part() const { return pass_ * words_ * 64; }

  template <bool CountRows>
  void mark(std::vector<VolumeCount>& counts) {
    std::vector<std::vector<std::int64_t>> seen(threads_, std::vector<std::int64_t>(parts_, -1));
    parallel_chunks(
        chunks_.count(), threads_,
        [&](std::int64_t chunk, int thread) {
          for (std::int64_t v = chunks_.first(chunk), end = chunks_.last(chunk); v < end; ++v) {
            if constexpr (CountRows) count_row(v, counts[thread], seen[thread]);
            mark_columns(v);
          }
        },
        [this](std::int64_t done, std::int64_t all) {
          if (tick_) tick_(pass_ * all + done, passes_ * all);
        });
  }

  void count_row(std::int64_t v, VolumeCount& count, std::vector<std::int64_t>& seen) {
    std::int32_t part = labels_[v];
    std::int64_t cut = 0;
    for (std::int64_t e = adjacency_.indptr[v]; e < adjacency_.indptr[v + 1]; ++e) {
      if (e + kPrefetch < adjacency_.edges()) prefetch(adjacency_.indices[e + kPrefetch]);
      std::int32_t column = adjacency_.indices[e];
      require_vertex(column, adjacency_.vertices(), v);
      std::int32_t owner = labels_[column];
      if (owner == part) continue;
      ++cut;
      if (seen[owner] == v) continue;
      seen[owner] = v;
      count.row.add(owner, part, 1);
    }
    count.edge_cut += cut;
  }

  void mark_columns(std::int64_t v) {
    std::int64_t part = labels_[v] - first_part();
    if (part < 0 || part >= words_ * 64) return;
    std::uint64_t bit = std::uint64_t{1} << (part % 64);
    std::uint64_t* word = needed_by_.data() + part / 64;
    for (std::int64_t e = adjacency_.indptr[v]; e < adjacency_.indptr[v + 1]; ++e) {
      std::atomic_ref<std::uint64_t> set(word[adjacency_.indices[e] * words_]);
      if (!(set.load(std::memory_order_relaxed) & bit))
        set.fetch_or(bit, std::memory_order_relaxed);
    }
  }

  void prefetch(std::int32_t column) {
    if (static_cast<std::uint32_t>(column) >= labels_.size()) return;
    __builtin_prefetch(&labels_[column]);
    __builtin_prefetch(&needed_by_[column * words_], 1);
  }

  void count_columns(std::vector<VolumeCount>& counts) {
    parallel_chunks(column_chunks(), threads_, [&](std::int64_t chunk, int thread) {
      std::int64_t begin = chunk * kColumnsPerChunk;
      std::int64_t end = std::min(begin + kColumnsPerChunk, adjacency_.vertices());
      for (std::int64_t v = begin; v < end; ++v) {
        for (std::int64_t w = 0; w < words_; ++w) {
          count_word(v, w, counts[thread].column);
        }
      }
    });
  }

  void count_word(std::int64_t v, std::int64_t w, CoverVolume& volume) {
    std::int64_t first = first_part() + w * 64;
    for (std::uint64_t set = needed_by_[v * words_ + w]; set; set &= set - 1) {
      std::int64_t part = first + std::countr_zero(set);
      if (part != labels_[v]) volume.add(labels_[v], part, 1);
    }
  }

  Adjacency adjacency_;
  Labels labels_;
  std::int64_t parts_;
  RowChunks chunks_;
  int threads_ = 1;
  Tick tick_;
  std::int64_t words_ = 1, passes_ = 1, pass_ = 0;
  BigArray<std::uint64_t> needed_by_;
};

// Minimum vertex covers of the blocks of a partition.

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
        members_(members),
        keep_places_(keep_places),
        slot_(adjacency.vertices()),
        block_begin_(parts),
        block_end_(parts) {
    std::fill(slot_.begin(), slot_.end(), -1);
  }

  // Calls visit(q, size of the cover) for every block of part p's rows that is not empty.
  template <class Visit>
  void of_rows(std::int64_t p, const Visit& visit) {
    gather(p);
    for (const std::int32_t q : near_) {
      first_ = block_begin_[q];
      visit(q, cover_block(std::exchange(block_end_[q], 0)));
    }
  }

  // Calls visit(row) for each row of the block at hand that is in a minimum cover.
  template <class Visit>
  void for_each_covered_row(const Visit& visit) const {
    for (std::size_t row = 0; row < row_cover_.size(); ++row) {
      if (row_cover_[row]) visit(nonzeros_[first_ + row_begin_[row]].row);
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
    near_.clear();
    for_each_cut(p, [&](std::int32_t q, Nonzero, std::int64_t) {
      if (block_end_[q]++ == 0) near_.push_back(q);
    });
    std::sort(near_.begin(), near_.end());
    std::int64_t count = 0;
    for (const std::int32_t q : near_) {
      block_begin_[q] = count;
      count += std::exchange(block_end_[q], count);
    }
    nonzeros_.resize(count);
    if (keep_places_) places_.resize(count);
    for_each_cut(p, [&](std::int32_t q, Nonzero nonzero, std::int64_t place) {
      if (keep_places_) places_[block_end_[q]] = place;
      nonzeros_[block_end_[q]++] = nonzero;
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
  const Members& members_;
  bool keep_places_;
  BigArray<std::int32_t> slot_;  // column -> its number inside the block, -1 outside
  std::vector<Nonzero> nonzeros_;
  std::vector<std::int64_t> places_;                   // of the nonzeros in the matrix
  std::int64_t first_ = 0;                             // nonzero of the block at hand
  std::vector<std::int32_t> near_;                     // parts whose blocks are not empty
  std::vector<std::int64_t> block_begin_, block_end_;  // of each part; the latter 0 in between
  std::vector<std::int64_t> row_begin_;
  std::vector<std::int32_t> columns_;
  std::vector<std::uint8_t> row_cover_, column_cover_;
  MinimumVertexCover<std::int32_t> cover_;
};

// Rows that move under minimum covers: all, and those between nodes of neighbouring parts.
struct MinimumVolume {
  explicit MinimumVolume(std::int64_t parts) : all(parts), between(parts, false) {}

  CoverVolume all, between;
};

inline MinimumVolume count_minimum_covers(const Adjacency& adjacency, Labels labels,
                                          std::int64_t parts, std::int64_t parts_per_node,
                                          int threads, const Tick& tick) {
  const int used = static_cast<int>(std::clamp<std::int64_t>(threads, 1, parts));
  const Members members(labels, parts);
  struct Worker {
    BlockCovers covers;
    MinimumVolume volume;
  };
  std::vector<Worker> workers;
  for (int thread = 0; thread < used; ++thread) {
    workers.push_back(
        {BlockCovers(adjacency, labels, parts, members, false), MinimumVolume(parts)});
  }
  parallel_chunks(
      parts, used,
      [&](std::int64_t p, int thread) {
        auto& [covers, volume] = workers[thread];
        covers.of_rows(p, [&](std::int64_t q, std::int64_t rows) {
          volume.all.add(q, p, rows);
          if (p / parts_per_node != q / parts_per_node) volume.between.add(q, p, rows);
        });
      },
      tick);
  MinimumVolume total = std::move(workers[0].volume);
  for (int thread = 1; thread < used; ++thread) {
    total.all.add(workers[thread].volume.all);
    total.between.add(workers[thread].volume.between);
  }
  return total;
}

}  // namespace spgnn
