// What a rank needs of its peers, from its own rows alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "minimum_cover.hpp"

namespace spgnn {

// A set of column numbers that knows how many of its members come before any of them.

// Bits in leaves of kLeafColumns columns, made when first needed: memory follows the columns that
// occur, not the width of the matrix.
class ColumnSet {
 public:
  explicit ColumnSet(std::int64_t columns) : leaves_(columns / kLeafColumns + 1) {}

  void insert(std::int64_t column) {
    auto& leaf = leaves_[column >> kLeafBits];
    if (!leaf) leaf = std::make_unique<Leaf>();
    leaf->bits[word_of(column)] |= bit_of(column);
  }

  // Counts members; nothing may be inserted after that.
  std::int64_t finish() {
    std::int64_t members = 0;
    for (auto& leaf : leaves_) {
      if (!leaf) continue;
      for (int word = 0; word < kWords; ++word) {
        leaf->before[word] = members;
        members += std::popcount(leaf->bits[word]);
      }
    }
    return members;
  }

  // How many members are below a member.
  std::int64_t rank(std::int64_t column) const {
    const Leaf& leaf = *leaves_[column >> kLeafBits];
    const int word = word_of(column);
    return leaf.before[word] + std::popcount(leaf.bits[word] & (bit_of(column) - 1));
  }

  // Calls visit(column) for all members, from the least to the greatest.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (!leaves_[i]) continue;
      for (int word = 0; word < kWords; ++word) {
        for (std::uint64_t bits = leaves_[i]->bits[word]; bits; bits &= bits - 1) {
          visit(static_cast<std::int64_t>(i) * kLeafColumns + word * 64 + std::countr_zero(bits));
        }
      }
    }
  }

 private:
  static constexpr int kLeafBits = 10;
  static constexpr std::int64_t kLeafColumns = std::int64_t{1} << kLeafBits;
  static constexpr int kWords = kLeafColumns / 64;
  struct Leaf {
    std::uint64_t bits[kWords]{};
    std::int64_t before[kWords];
  };

  static int word_of(std::int64_t column) { return static_cast<int>(column >> 6) & (kWords - 1); }
  static std::uint64_t bit_of(std::int64_t column) { return std::uint64_t{1} << (column & 63); }

  std::vector<std::unique_ptr<Leaf>> leaves_;
};

// A rank's rows of a matrix, and who owns their columns.

// This rank's rows, with columns of the whole matrix.
template <class Index>
struct Rows {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  std::int64_t nonzeros() const { return indptr[rows]; }
};

// Which peer of a group owns a column. Parts own neighbouring columns; some parts are no peers.
class Owners {
 public:
  // offsets: first column of each part, and the end; members: the parts that are peers, rising.
  Owners(const std::int64_t* offsets, std::int64_t parts, const std::int64_t* members,
         std::int64_t peers)
      : offsets_(offsets), peers_(peers), peer_(parts, -1) {
    for (std::int64_t peer = 0; peer < peers; ++peer) {
      peer_[members[peer]] = static_cast<std::int32_t>(peer);
    }
    // A few buckets a part: walking on from the first part of a bucket takes a step or two.
    while ((offsets[parts] >> shift_) > 4 * parts) ++shift_;
    std::int64_t part = 0;
    for (std::int64_t bucket = 0; bucket <= offsets[parts] >> shift_; ++bucket) {
      while (part + 1 < parts && offsets[part + 1] <= bucket << shift_) ++part;
      first_part_.push_back(static_cast<std::int32_t>(part));
    }
  }

  std::int64_t columns() const { return offsets_[peer_.size()]; }
  std::int64_t peers() const { return peers_; }
  bool all_are_peers() const { return peers_ == static_cast<std::int64_t>(peer_.size()); }
  std::int64_t part_of(std::int64_t column) const {
    std::int64_t part = first_part_[column >> shift_];
    while (offsets_[part + 1] <= column) ++part;
    return part;
  }
  std::int32_t peer_of_part(std::int64_t part) const { return peer_[part]; }
  std::int64_t first_of_part(std::int64_t part) const { return offsets_[part]; }

 private:
  const std::int64_t* offsets_;
  std::int64_t peers_;
  std::vector<std::int32_t> peer_, first_part_;
  int shift_ = 0;
};

// An array whose elements nobody has set yet.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(std::int64_t size)
      : data_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {}
  Array(std::int64_t size, T value) : Array(size) { std::fill_n(data_.get(), size, value); }

  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }

 private:
  std::unique_ptr<T[]> data_;
  std::int64_t size_ = 0;
};

// Numbers things in the order in which they are first met; starts anew without clearing.
class Slots {
 public:
  void restart() {
    ++round_;
    size_ = 0;
  }
  std::int64_t size() const { return size_; }

  std::int32_t number(std::int32_t thing) {
    if (is_new(thing)) number_[thing] = size_++;
    return number_[thing];
  }
  // Whether a thing was not met in this round; it has been now.
  bool is_new(std::int32_t thing) {
    if (static_cast<std::size_t>(thing) >= round_of_.size()) {
      round_of_.resize(2 * static_cast<std::size_t>(thing) + 64, 0);
      number_.resize(round_of_.size());
    }
    const bool fresh = round_of_[thing] != round_;
    round_of_[thing] = round_;
    return fresh;
  }

 private:
  std::vector<std::int32_t> round_of_, number_;
  std::int32_t round_ = 0, size_ = 0;
};

enum class Cover { column, row, minimum };

// A block in CSR form; sources say which nonzero of the rank's rows each entry is, or -1 where it
// adds up a partial sum.
template <class Position>
struct SplitBlock {
  Array<std::int64_t> indptr;
  Array<std::int32_t> indices;
  Array<Position> sources;
};

// A sparse matrix of what is asked, grouped by the peer that is asked. Columns are numbers of that
// peer's own rows. Of each peer first rows of H (one entry each), then partial sums.
template <class Position>
struct Demand {
  Array<std::int64_t> rows_by_peer, entries_by_peer;
  Array<std::int32_t> lengths;  // of each row; empty if all are rows of H
  Array<std::int32_t> columns;
  Array<Position> sources;
};

template <class Position>
struct Inspected {
  SplitBlock<Position> L, R;
  Demand<Position> demand;
};

template <class Index, class Position>
class Inspector {
 public:
  Inspector(const Rows<Index>& a, const Owners& owners, std::int64_t own_first,
            std::int64_t own_last, bool weighted)
      : a_(a),
        owners_(owners),
        peers_(owners.peers()),
        own_first_(own_first),
        own_size_(own_last - own_first),
        weighted_(weighted) {}

  Inspected<Position> run(Cover cover) {
    split();
    if (cover == Cover::column) {
      wanted_by_columns();
    } else {
      cover_blocks(cover);
    }
    return std::move(result_);
  }

 private:
  enum class Place { own, remote, others };

  Place place(std::int64_t column) const {
    if (static_cast<std::uint64_t>(column - own_first_) < static_cast<std::uint64_t>(own_size_)) {
      return Place::own;
    }
    if (owners_.all_are_peers()) return Place::remote;
    return owners_.peer_of_part(owners_.part_of(column)) < 0 ? Place::others : Place::remote;
  }

  // Puts own nonzeros into L and collects the remote columns, row after row.
  void split() {
    auto& L = result_.L;
    L.indptr = Array<std::int64_t>(a_.rows + 1);
    remote_begin_ = Array<std::int64_t>(a_.rows + 1);
    std::int64_t own = 0, remote = 0;
    for (std::int64_t row = 0; row < a_.rows; ++row) {
      L.indptr[row] = own;
      remote_begin_[row] = remote;
      for (std::int64_t e = a_.indptr[row]; e < a_.indptr[row + 1]; ++e) {
        const Place where = place(a_.indices[e]);
        own += where == Place::own;
        remote += where == Place::remote;
      }
    }
    L.indptr[a_.rows] = own;
    remote_begin_[a_.rows] = remote;
    L.indices = Array<std::int32_t>(own);
    columns_ = Array<Index>(remote);
    if (weighted_) {
      L.sources = Array<Position>(own);
      sources_ = Array<Position>(remote);
    }
    own = remote = 0;
    for (std::int64_t e = 0; e < a_.nonzeros(); ++e) {
      const std::int64_t column = a_.indices[e];
      const Place where = place(column);
      if (where == Place::own) {
        if (weighted_) L.sources[own] = static_cast<Position>(e);
        L.indices[own++] = static_cast<std::int32_t>(column - own_first_);
      } else if (where == Place::remote) {
        if (weighted_) sources_[remote] = static_cast<Position>(e);
        columns_[remote++] = static_cast<Index>(column);
      }
    }
  }

  // The column cover: every remote column is asked for, in order, hence grouped by owner.
  void wanted_by_columns() {
    ColumnSet wanted(owners_.columns());
    for (std::int64_t e = 0; e < columns_.size(); ++e) wanted.insert(columns_[e]);
    const std::int64_t count = fits(wanted.finish());
    auto& [L, R, demand] = result_;
    R.indptr = std::move(remote_begin_);
    R.indices = Array<std::int32_t>(columns_.size());
    for (std::int64_t e = 0; e < columns_.size(); ++e) {
      R.indices[e] = static_cast<std::int32_t>(wanted.rank(columns_[e]));
    }
    R.sources = std::move(sources_);
    demand.columns = Array<std::int32_t>(count);
    demand.rows_by_peer = Array<std::int64_t>(peers_, 0);
    std::int64_t next = 0;
    wanted.for_each([&](std::int64_t column) {
      const std::int64_t part = owners_.part_of(column);
      ++demand.rows_by_peer[owners_.peer_of_part(part)];
      demand.columns[next++] = static_cast<std::int32_t>(column - owners_.first_of_part(part));
    });
    demand.entries_by_peer = Array<std::int64_t>(peers_);
    std::copy_n(demand.rows_by_peer.data(), peers_, demand.entries_by_peer.data());
  }

  // Remote nonzeros grouped by owner, in the order of rows.
  struct Entry {
    std::int32_t row;
    std::int32_t column;  // of the owner
    Position source;
  };

  // Row and minimum covers: each block of nonzeros of one owner by itself.
  void cover_blocks(Cover cover) {
    const Array<std::int64_t> block_begin = group_by_owner();
    chosen_ = Array<std::uint8_t>(entries_.size());
    MinimumVertexCover<std::int32_t> solver;
    for (std::int64_t peer = 0; peer < peers_; ++peer) {
      const std::int64_t begin = block_begin[peer], end = block_begin[peer + 1];
      if (cover == Cover::row) {
        std::fill(chosen_.data() + begin, chosen_.data() + end, std::uint8_t{1});
      } else {
        choose_rows(begin, end, solver);
      }
    }
    assemble(block_begin);
  }

  Array<std::int64_t> group_by_owner() {
    Array<std::int64_t> begin(peers_ + 1, 0);
    const auto peer_of = [&](std::int64_t e) {
      return owners_.peer_of_part(owners_.part_of(columns_[e]));
    };
    for (std::int64_t e = 0; e < columns_.size(); ++e) ++begin[peer_of(e) + 1];
    for (std::int64_t peer = 0; peer < peers_; ++peer) begin[peer + 1] += begin[peer];
    std::vector<std::int64_t> next(begin.data(), begin.data() + peers_);
    entries_ = Array<Entry>(columns_.size());
    for (std::int64_t row = 0; row < a_.rows; ++row) {
      for (std::int64_t e = remote_begin_[row]; e < remote_begin_[row + 1]; ++e) {
        const std::int64_t part = owners_.part_of(columns_[e]);
        entries_[next[owners_.peer_of_part(part)]++] = {
            static_cast<std::int32_t>(row),
            static_cast<std::int32_t>(columns_[e] - owners_.first_of_part(part)),
            weighted_ ? sources_[e] : Position{0}};
      }
    }
    columns_ = {};
    sources_ = {};
    return begin;
  }

  // Marks the entries of one block whose row pays: those whose column a minimum cover leaves out.
  void choose_rows(std::int64_t begin, std::int64_t end, MinimumVertexCover<std::int32_t>& solver) {
    row_begin_.clear();
    joined_.clear();
    slots_.restart();
    for (std::int64_t e = begin; e < end; ++e) {
      if (e == begin || entries_[e].row != entries_[e - 1].row) row_begin_.push_back(e - begin);
      joined_.push_back(slots_.number(entries_[e].column));
    }
    row_begin_.push_back(end - begin);
    const BipartiteGraph<std::int32_t> graph{row_begin_, joined_, slots_.size()};
    solver(graph, row_cover_, column_cover_);
    for (std::int64_t e = begin; e < end; ++e) {
      chosen_[e] = column_cover_[joined_[e - begin]] == 0;
    }
  }

  // What each peer is asked for, in its order: rows of H by number, then partial sums by row; and
  // where it goes. Walking block after block fills the rows of R from left to right.
  void assemble(const Array<std::int64_t>& block_begin) {
    auto& [L, R, demand] = result_;
    demand.rows_by_peer = Array<std::int64_t>(peers_, 0);
    demand.entries_by_peer = Array<std::int64_t>(peers_, 0);
    R.indptr = Array<std::int64_t>(a_.rows + 1, 0);
    std::int64_t asked_rows = 0, asked_entries = 0;
    std::vector<std::int64_t> wanted_end(peers_);
    for (std::int64_t peer = 0; peer < peers_; ++peer) {
      const auto [rows, entries] = count_block(block_begin[peer], block_begin[peer + 1]);
      wanted_end[peer] = static_cast<std::int64_t>(wanted_.size());
      demand.rows_by_peer[peer] = rows;
      demand.entries_by_peer[peer] = entries;
      asked_rows += rows;
      asked_entries += entries;
    }
    for (std::int64_t row = 0; row < a_.rows; ++row) R.indptr[row + 1] += R.indptr[row];
    demand.lengths = Array<std::int32_t>(fits(asked_rows), 1);
    demand.columns = Array<std::int32_t>(asked_entries);
    R.indices = Array<std::int32_t>(R.indptr[a_.rows]);
    if (weighted_) {
      demand.sources = Array<Position>(asked_entries);
      R.sources = Array<Position>(R.indices.size());
    }
    std::vector<std::int64_t> next(R.indptr.data(), R.indptr.data() + a_.rows);
    Places places;
    for (std::int64_t peer = 0; peer < peers_; ++peer) {
      fill_block({block_begin[peer], block_begin[peer + 1]}, wanted_end[peer], next, places);
    }
  }

  // The distinct columns that pay for entries of a block, in order, at the end of wanted_.
  std::int64_t collect_columns(std::int64_t begin, std::int64_t end) {
    const auto before = static_cast<std::int64_t>(wanted_.size());
    slots_.restart();
    for (std::int64_t e = begin; e < end; ++e) {
      if (!chosen_[e] && slots_.is_new(entries_[e].column)) wanted_.push_back(entries_[e].column);
    }
    std::sort(wanted_.begin() + before, wanted_.end());
    return static_cast<std::int64_t>(wanted_.size()) - before;
  }

  std::pair<std::int64_t, std::int64_t> count_block(std::int64_t begin, std::int64_t end) {
    std::int64_t rows = collect_columns(begin, end);
    std::int64_t entries = rows, summed_row = -1;
    for (std::int64_t e = begin; e < end; ++e) {
      const std::int64_t row = entries_[e].row;
      entries += chosen_[e];
      if (chosen_[e] && row == summed_row) continue;
      ++result_.R.indptr[row + 1];
      if (chosen_[e]) ++rows, summed_row = row;
    }
    return {rows, entries};
  }

  // Where the next row, entry and wanted column of the demand are.
  struct Places {
    std::int64_t row = 0, entry = 0, column = 0;
  };

  // One block of nonzeros; its columns are those of wanted_ up to `wanted_end`.
  void fill_block(std::pair<std::int64_t, std::int64_t> nonzeros, std::int64_t wanted_end,
                  std::vector<std::int64_t>& next, Places& at) {
    auto& [L, R, demand] = result_;
    const auto [begin, end] = nonzeros;
    const std::int64_t first = at.row;
    slots_.restart();
    while (at.column < wanted_end) {
      const std::int32_t column = wanted_[at.column++];
      slots_.number(column);
      if (weighted_) demand.sources[at.entry] = -1;
      demand.columns[at.entry++] = column;
      ++at.row;
    }
    const auto put = [&](std::int64_t row, std::int64_t position, Position source) {
      const std::int64_t place = next[row]++;
      R.indices[place] = static_cast<std::int32_t>(position);
      if (weighted_) R.sources[place] = source;
    };
    for (std::int64_t e = begin; e < end;) {  // row after row: its columns first, then its sum
      const std::int64_t row = entries_[e].row;
      std::int32_t summed = 0;
      for (; e < end && entries_[e].row == row; ++e) {
        if (chosen_[e]) {
          if (weighted_) demand.sources[at.entry] = entries_[e].source;
          demand.columns[at.entry++] = entries_[e].column;
          ++summed;
        } else {
          put(row, first + slots_.number(entries_[e].column), entries_[e].source);
        }
      }
      if (summed > 0) {
        demand.lengths[at.row] = summed;
        put(row, at.row++, Position{-1});
      }
    }
  }

  static std::int64_t fits(std::int64_t rows) {
    if (rows > std::numeric_limits<std::int32_t>::max()) {
      throw std::length_error("a rank would receive 2^31 rows or more");
    }
    return rows;
  }

  Rows<Index> a_;
  const Owners& owners_;
  std::int64_t peers_, own_first_, own_size_;
  bool weighted_;
  Inspected<Position> result_;
  Array<std::int64_t> remote_begin_;
  Array<Index> columns_;
  Array<Position> sources_;
  Array<Entry> entries_;
  Array<std::uint8_t> chosen_;
  std::vector<std::int32_t> wanted_, joined_;
  Slots slots_;
  std::vector<std::int64_t> row_begin_;
  std::vector<std::uint8_t> row_cover_, column_cover_;
};

}  // namespace spgnn
