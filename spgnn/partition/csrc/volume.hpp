// Counts the rows that a partition moves by column, by row, and under minimum vertex covers.
#pragma once

#include "adjacency.hpp"
#include "big_array.hpp"
#include "minimum_cover.hpp"
#include "parallel.hpp"

namespace spgnn {

using Labels = std::span<const i32>;

// blocks[p * parts + q] = rows that p sends to q; kept for up to kMaxBlockParts parts.
struct CoverVolume {
  static constexpr i64 kMaxBlockParts = 1024;

  explicit CoverVolume(i64 parts, bool keep_blocks = true)
      : send(parts), receive(parts),
        blocks(keep_blocks && parts <= kMaxBlockParts ? parts * parts : 0) {}

  void add(i64 from, i64 to, i64 rows) {
    send[from] += rows;
    receive[to] += rows;
    if (!blocks.empty()) blocks[from * std::ssize(send) + to] += rows;
  }
  void add(const CoverVolume& other) {
    add_to(send, other.send);
    add_to(receive, other.receive);
    add_to(blocks, other.blocks);
  }

  std::vector<i64> send, receive, blocks;
};

struct VolumeCount {
  CoverVolume column, row;
  i64 edge_cut = 0;  // nonzeros whose row and column live in different parts
};

// Column: row v of H goes to each other part that needs it. Row: part q sends one partial sum for
// each row elsewhere. Rows are read in storage order, so that a memory-mapped adjacency streams;
// the sets of parts that need v, bounded by `table_bytes`, are counted in several passes if need
// be.
class VolumeCounter {
 public:
  VolumeCounter(const Adjacency& adjacency, Labels labels, i64 parts, int threads, i64 table_bytes,
                Tick tick)
      : adjacency_(adjacency), labels_(labels), parts_(parts), chunks_(adjacency, kWorkPerChunk),
        tick_(std::move(tick)) {
    // Each thread counts for itself, so no more than can have work.
    threads_ =
        static_cast<int>(std::clamp<i64>(std::max(chunks_.count(), column_chunks()), 1, threads));
    i64 words = labels.empty() ? 1 : std::ranges::max(labels) / 64 + 1;
    i64 affordable = table_bytes / (8 * std::max<i64>(1, adjacency.vertices()));
    words_ = std::clamp<i64>(affordable, 1, words);
    passes_ = (words + words_ - 1) / words_;
  }

  VolumeCount operator()() {
    std::vector<VolumeCount> counts(threads_, {CoverVolume(parts_), CoverVolume(parts_)});
    for (pass_ = 0; pass_ < passes_; ++pass_) {
      needed_by_ = BigArray<u64>(adjacency_.vertices() * words_);
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
  static constexpr i64 kWorkPerChunk = 1 << 18, kColumnsPerChunk = 1 << 16;
  static constexpr i64 kPrefetch = 24;  // nonzeros between asking for a line and using it

  i64 column_chunks() const {
    return (adjacency_.vertices() + kColumnsPerChunk - 1) / kColumnsPerChunk;
  }
  i64 first_part() const { return pass_ * words_ * 64; }

  template <bool CountRows> void mark(std::vector<VolumeCount>& counts) {
    std::vector<std::vector<i64>> seen(threads_, std::vector<i64>(parts_, -1));
    parallel_chunks(
        chunks_.count(), threads_,
        [&](i64 chunk, int thread) {
          for (i64 v = chunks_.first(chunk), end = chunks_.last(chunk); v < end; ++v) {
            if constexpr (CountRows) count_row(v, counts[thread], seen[thread]);
            mark_columns(v);
          }
        },
        [this](i64 done, i64 all) {
          if (tick_) tick_(pass_ * all + done, passes_ * all);
        });
  }

  void count_row(i64 v, VolumeCount& count, std::vector<i64>& seen) {
    i32 part = labels_[v];
    i64 cut = 0;
    for (i64 e = adjacency_.indptr[v]; e < adjacency_.indptr[v + 1]; ++e) {
      if (e + kPrefetch < adjacency_.edges()) prefetch(adjacency_.indices[e + kPrefetch]);
      i32 column = adjacency_.indices[e];
      require_vertex(column, adjacency_.vertices(), v);
      i32 owner = labels_[column];
      if (owner == part) continue;
      ++cut;
      if (seen[owner] == v) continue;
      seen[owner] = v;
      count.row.add(owner, part, 1);
    }
    count.edge_cut += cut;
  }

  void mark_columns(i64 v) {
    i64 part = labels_[v] - first_part();
    if (part < 0 || part >= words_ * 64) return;
    u64 bit = u64{1} << (part % 64);
    u64* word = needed_by_.data() + part / 64;
    for (i64 e = adjacency_.indptr[v]; e < adjacency_.indptr[v + 1]; ++e) {
      std::atomic_ref<u64> set(word[adjacency_.indices[e] * words_]);
      if (!(set.load(std::memory_order_relaxed) & bit))
        set.fetch_or(bit, std::memory_order_relaxed);
    }
  }

  void prefetch(i32 column) {
    if (static_cast<u32>(column) >= labels_.size()) return;
    __builtin_prefetch(&labels_[column]);
    __builtin_prefetch(&needed_by_[column * words_], 1);
  }

  void count_columns(std::vector<VolumeCount>& counts) {
    parallel_chunks(column_chunks(), threads_, [&](i64 chunk, int thread) {
      i64 begin = chunk * kColumnsPerChunk;
      i64 end = std::min(begin + kColumnsPerChunk, adjacency_.vertices());
      for (i64 v = begin; v < end; ++v) {
        for (i64 w = 0; w < words_; ++w) { count_word(v, w, counts[thread].column); }
      }
    });
  }

  void count_word(i64 v, i64 w, CoverVolume& volume) {
    i64 first = first_part() + w * 64;
    for (u64 set = needed_by_[v * words_ + w]; set; set &= set - 1) {
      i64 part = first + std::countr_zero(set);
      if (part != labels_[v]) volume.add(labels_[v], part, 1);
    }
  }

  Adjacency adjacency_;
  Labels labels_;
  i64 parts_;
  RowChunks chunks_;
  int threads_ = 1;
  Tick tick_;
  i64 words_ = 1, passes_ = 1, pass_ = 0;
  BigArray<u64> needed_by_;
};

// Minimum vertex covers of the blocks of a partition.

// Block (p, q): p's rows in q's columns, a bipartite graph. Covering a row means that q sends a
// partial sum, covering a column that row of H: the size of the cover is what moves from q to p.
class BlockCovers {
 public:
  // keep_places: whether for_each_nonzero will be called.
  BlockCovers(const Adjacency& adjacency, std::span<const i32> labels, i64 parts,
              const Members& members, bool keep_places)
      : adjacency_(adjacency), labels_(labels), members_(members), keep_places_(keep_places),
        slot_(adjacency.vertices()), block_begin_(parts), block_end_(parts) {
    std::fill(slot_.begin(), slot_.end(), -1);
  }

  // Calls visit(q, size of the cover) for every block of part p's rows that is not empty.
  template <class Visit> void of_rows(i64 p, const Visit& visit) {
    gather(p);
    for (const i32 q : near_) {
      first_ = block_begin_[q];
      visit(q, cover_block(std::exchange(block_end_[q], 0)));
    }
  }

  // Calls visit(row) for each row of the block at hand that is in a minimum cover.
  template <class Visit> void for_each_covered_row(const Visit& visit) const {
    for (std::size_t row = 0; row < row_cover_.size(); ++row) {
      if (row_cover_[row]) visit(nonzeros_[first_ + row_begin_[row]].row);
    }
  }

  // Calls visit(nonzero, row is covered, column is covered) for each nonzero of the block at hand.
  template <class Visit> void for_each_nonzero(const Visit& visit) const {
    i64 row = -1;
    for (i64 i = 0; i < std::ssize(columns_); ++i) {
      if (i == row_begin_[row + 1]) ++row;
      visit(places_[first_ + i], row_cover_[row] != 0, column_cover_[columns_[i]] != 0);
    }
  }

 private:
  struct Nonzero {
    i32 row, column;
  };

  // The nonzeros of the part's rows that lie in other parts' columns, grouped by that part.
  void gather(i64 p) {
    near_.clear();
    for_each_cut(p, [&](i32 q, Nonzero, i64) {
      if (block_end_[q]++ == 0) near_.push_back(q);
    });
    std::sort(near_.begin(), near_.end());
    i64 count = 0;
    for (const i32 q : near_) {
      block_begin_[q] = count;
      count += std::exchange(block_end_[q], count);
    }
    nonzeros_.resize(count);
    if (keep_places_) places_.resize(count);
    for_each_cut(p, [&](i32 q, Nonzero nonzero, i64 place) {
      if (keep_places_) places_[block_end_[q]] = place;
      nonzeros_[block_end_[q]++] = nonzero;
    });
  }

  template <class Visit> void for_each_cut(i64 p, const Visit& visit) const {
    const auto& [indptr, indices] = adjacency_;
    for (i32 row : members_.of(p)) {
      for (i64 e = indptr[row]; e < indptr[row + 1]; ++e) {
        const i32 label = labels_[indices[e]];
        if (label != p) visit(label, Nonzero{row, indices[e]}, e);
      }
    }
  }

  // The block of the nonzeros [first_, end).
  i64 cover_block(i64 end) {
    row_begin_.clear();
    columns_.clear();
    i32 row = -1, distinct = 0;
    for (i64 i = first_; i < end; ++i) {
      if (nonzeros_[i].row != row) row_begin_.push_back(i - first_);
      row = nonzeros_[i].row;
      i32& number = slot_[nonzeros_[i].column];
      if (number < 0) number = distinct++;
      columns_.push_back(number);
    }
    row_begin_.push_back(end - first_);
    for (i64 i = first_; i < end; ++i) slot_[nonzeros_[i].column] = -1;
    return cover_({row_begin_, columns_, distinct}, row_cover_, column_cover_);
  }

  Adjacency adjacency_;
  std::span<const i32> labels_;
  const Members& members_;
  bool keep_places_;
  BigArray<i32> slot_;  // column -> its number inside the block, -1 outside
  std::vector<Nonzero> nonzeros_;
  std::vector<i64> places_;                   // of the nonzeros in the matrix
  i64 first_ = 0;                             // nonzero of the block at hand
  std::vector<i32> near_;                     // parts whose blocks are not empty
  std::vector<i64> block_begin_, block_end_;  // of each part; the latter 0 in between
  std::vector<i64> row_begin_;
  std::vector<i32> columns_;
  std::vector<u8> row_cover_, column_cover_;
  MinimumVertexCover<i32> cover_;
};

// Rows that move under minimum covers: all, and those between nodes of neighbouring parts.
struct MinimumVolume {
  explicit MinimumVolume(i64 parts) : all(parts), between(parts, false) {}

  CoverVolume all, between;
};

inline MinimumVolume count_minimum_covers(const Adjacency& adjacency, Labels labels, i64 parts,
                                          i64 parts_per_node, int threads, const Tick& tick) {
  const int used = static_cast<int>(std::clamp<i64>(threads, 1, parts));
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
      [&](i64 p, int thread) {
        auto& [covers, volume] = workers[thread];
        covers.of_rows(p, [&](i64 q, i64 rows) {
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
