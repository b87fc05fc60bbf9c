// What a rank needs of its peers, from its own rows alone.
#pragma once

#include "minimum_cover.hpp"

namespace spgnn {

// A set of column numbers that knows how many of its members come before any of them.

// Bits in leaves made when needed: memory follows the columns that occur.
class ColumnSet {
 public:
  explicit ColumnSet(i64 columns) : leaves_(columns / kLeafColumns + 1) {}

  void insert(i64 column) {
    auto& leaf = leaves_[column >> kLeafBits];
    if (!leaf) leaf = std::make_unique<Leaf>();
    leaf->bits[word_of(column)] |= bit_of(column);
  }

  // Counts members; nothing may be inserted after that.
  i64 finish() {
    i64 members = 0;
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
  i64 rank(i64 column) const {
    const Leaf& leaf = *leaves_[column >> kLeafBits];
    const int word = word_of(column);
    return leaf.before[word] + std::popcount(leaf.bits[word] & (bit_of(column) - 1));
  }

  // Calls visit(column) for all members, from the least to the greatest.
  template <class Visit> void for_each(const Visit& visit) const {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (!leaves_[i]) continue;
      for (int word = 0; word < kWords; ++word) {
        for (u64 bits = leaves_[i]->bits[word]; bits; bits &= bits - 1) {
          visit(static_cast<i64>(i) * kLeafColumns + word * 64 + std::countr_zero(bits));
        }
      }
    }
  }

 private:
  static constexpr int kLeafBits = 10;
  static constexpr i64 kLeafColumns = i64{1} << kLeafBits;
  static constexpr int kWords = kLeafColumns / 64;
  struct Leaf {
    u64 bits[kWords]{};
    i64 before[kWords];
  };

  static int word_of(i64 column) { return static_cast<int>(column >> 6) & (kWords - 1); }
  static u64 bit_of(i64 column) { return u64{1} << (column & 63); }

  std::vector<std::unique_ptr<Leaf>> leaves_;
};

// A rank's rows of a matrix, and who owns their columns.

// This rank's rows, with columns of the whole matrix.
template <class Index> struct Rows {
  const i64* indptr;
  const Index* indices;
  i64 rows;
  i64 nonzeros() const { return indptr[rows]; }
};

// Which peer of a group owns a column. Parts own neighbouring columns; some parts are no peers.
class Owners {
 public:
  // offsets: first column of each part, and the end; members: the parts that are peers, rising.
  Owners(const i64* offsets, i64 parts, const i64* members, i64 peers)
      : offsets_(offsets), peers_(peers), peer_(parts, -1) {
    for (i64 peer = 0; peer < peers; ++peer) { peer_[members[peer]] = static_cast<i32>(peer); }
    // A few buckets a part: walking on from the first part of a bucket takes a step or two.
    while ((offsets[parts] >> shift_) > 4 * parts) ++shift_;
    i64 part = 0;
    for (i64 bucket = 0; bucket <= offsets[parts] >> shift_; ++bucket) {
      while (part + 1 < parts && offsets[part + 1] <= bucket << shift_) ++part;
      first_part_.push_back(static_cast<i32>(part));
    }
  }

  i64 columns() const { return offsets_[peer_.size()]; }
  i64 peers() const { return peers_; }
  bool all_are_peers() const { return peers_ == std::ssize(peer_); }
  i64 part_of(i64 column) const {
    i64 part = first_part_[column >> shift_];
    while (offsets_[part + 1] <= column) ++part;
    return part;
  }
  i32 peer_of_part(i64 part) const { return peer_[part]; }
  i64 first_of_part(i64 part) const { return offsets_[part]; }

 private:
  const i64* offsets_;
  i64 peers_;
  std::vector<i32> peer_, first_part_;
  int shift_ = 0;
};

// An array whose elements nobody has set yet.
template <class T> class Array {
 public:
  Array() = default;
  explicit Array(i64 size) : data_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {}
  Array(i64 size, T value) : Array(size) { std::fill_n(data_.get(), size, value); }

  T& operator[](i64 i) { return data_[i]; }
  const T& operator[](i64 i) const { return data_[i]; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  i64 size() const { return size_; }

 private:
  std::unique_ptr<T[]> data_;
  i64 size_ = 0;
};

// Numbers things in the order in which they are first met; starts anew without clearing.
class Slots {
 public:
  void restart() {
    ++round_;
    size_ = 0;
  }
  i64 size() const { return size_; }

  i32 number(i32 thing) {
    if (is_new(thing)) number_[thing] = size_++;
    return number_[thing];
  }
  // Whether a thing was not met in this round; it has been now.
  bool is_new(i32 thing) {
    if (static_cast<std::size_t>(thing) >= round_of_.size()) {
      round_of_.resize(2 * static_cast<std::size_t>(thing) + 64, 0);
      number_.resize(round_of_.size());
    }
    const bool fresh = round_of_[thing] != round_;
    round_of_[thing] = round_;
    return fresh;
  }

 private:
  std::vector<i32> round_of_, number_;
  i32 round_ = 0, size_ = 0;
};

enum class Cover { column, row, minimum };

// A block in CSR form; sources: the nonzero of the rank's rows, or -1: adds up a partial sum.
template <class Position> struct SplitBlock {
  Array<i64> indptr;
  Array<i32> indices;
  Array<Position> sources;
};

// A sparse matrix of what is asked, grouped by the peer that is asked. Columns are numbers of that
// peer's own rows. Of each peer first rows of H (one entry each), then partial sums.
template <class Position> struct Demand {
  Array<i64> rows_by_peer, entries_by_peer;
  Array<i32> lengths;  // of each row; empty if all are rows of H
  Array<i32> columns;
  Array<Position> sources;
};

template <class Position> struct Inspected {
  SplitBlock<Position> L, R;
  Demand<Position> demand;
};

template <class Index, class Position> class Inspector {
 public:
  Inspector(const Rows<Index>& a, const Owners& owners, i64 own_first, i64 own_last, bool weighted)
      : a_(a), owners_(owners), peers_(owners.peers()), own_first_(own_first),
        own_size_(own_last - own_first), weighted_(weighted) {}

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

  Place place(i64 column) const {
    if (static_cast<u64>(column - own_first_) < static_cast<u64>(own_size_)) { return Place::own; }
    if (owners_.all_are_peers()) return Place::remote;
    return owners_.peer_of_part(owners_.part_of(column)) < 0 ? Place::others : Place::remote;
  }

  // Puts own nonzeros into L and collects the remote columns, row after row.
  void split() {
    auto& L = result_.L;
    L.indptr = Array<i64>(a_.rows + 1);
    remote_begin_ = Array<i64>(a_.rows + 1);
    i64 own = 0, remote = 0;
    for (i64 row = 0; row < a_.rows; ++row) {
      L.indptr[row] = own;
      remote_begin_[row] = remote;
      for (i64 e = a_.indptr[row]; e < a_.indptr[row + 1]; ++e) {
        const Place where = place(a_.indices[e]);
        own += where == Place::own;
        remote += where == Place::remote;
      }
    }
    L.indptr[a_.rows] = own;
    remote_begin_[a_.rows] = remote;
    L.indices = Array<i32>(own);
    columns_ = Array<Index>(remote);
    if (weighted_) {
      L.sources = Array<Position>(own);
      sources_ = Array<Position>(remote);
    }
    own = remote = 0;
    for (i64 e = 0; e < a_.nonzeros(); ++e) {
      const i64 column = a_.indices[e];
      const Place where = place(column);
      if (where == Place::own) {
        if (weighted_) L.sources[own] = static_cast<Position>(e);
        L.indices[own++] = static_cast<i32>(column - own_first_);
      } else if (where == Place::remote) {
        if (weighted_) sources_[remote] = static_cast<Position>(e);
        columns_[remote++] = static_cast<Index>(column);
      }
    }
  }

  // The column cover: every remote column is asked for, in order, hence grouped by owner.
  void wanted_by_columns() {
    ColumnSet wanted(owners_.columns());
    for (i64 e = 0; e < columns_.size(); ++e) wanted.insert(columns_[e]);
    const i64 count = fits(wanted.finish());
    auto& [L, R, demand] = result_;
    R.indptr = std::move(remote_begin_);
    R.indices = Array<i32>(columns_.size());
    for (i64 e = 0; e < columns_.size(); ++e) {
      R.indices[e] = static_cast<i32>(wanted.rank(columns_[e]));
    }
    R.sources = std::move(sources_);
    demand.columns = Array<i32>(count);
    demand.rows_by_peer = Array<i64>(peers_, 0);
    i64 next = 0;
    wanted.for_each([&](i64 column) {
      const i64 part = owners_.part_of(column);
      ++demand.rows_by_peer[owners_.peer_of_part(part)];
      demand.columns[next++] = static_cast<i32>(column - owners_.first_of_part(part));
    });
    demand.entries_by_peer = Array<i64>(peers_);
    std::copy_n(demand.rows_by_peer.data(), peers_, demand.entries_by_peer.data());
  }

  // Remote nonzeros grouped by owner, in the order of rows.
  struct Entry {
    i32 row;
    i32 column;  // of the owner
    Position source;
  };

  // Row and minimum covers: each block of nonzeros of one owner by itself.
  void cover_blocks(Cover cover) {
    const Array<i64> block_begin = group_by_owner();
    chosen_ = Array<u8>(entries_.size());
    MinimumVertexCover<i32> solver;
    for (i64 peer = 0; peer < peers_; ++peer) {
      const i64 begin = block_begin[peer], end = block_begin[peer + 1];
      if (cover == Cover::row) {
        std::fill(chosen_.data() + begin, chosen_.data() + end, u8{1});
      } else {
        choose_rows(begin, end, solver);
      }
    }
    assemble(block_begin);
  }

  Array<i64> group_by_owner() {
    Array<i64> begin(peers_ + 1, 0);
    const auto peer_of = [&](i64 e) { return owners_.peer_of_part(owners_.part_of(columns_[e])); };
    for (i64 e = 0; e < columns_.size(); ++e) ++begin[peer_of(e) + 1];
    for (i64 peer = 0; peer < peers_; ++peer) begin[peer + 1] += begin[peer];
    std::vector<i64> next(begin.data(), begin.data() + peers_);
    entries_ = Array<Entry>(columns_.size());
    for (i64 row = 0; row < a_.rows; ++row) {
      for (i64 e = remote_begin_[row]; e < remote_begin_[row + 1]; ++e) {
        const i64 part = owners_.part_of(columns_[e]);
        entries_[next[owners_.peer_of_part(part)]++] = {
            static_cast<i32>(row), static_cast<i32>(columns_[e] - owners_.first_of_part(part)),
            weighted_ ? sources_[e] : Position{0}};
      }
    }
    columns_ = {};
    sources_ = {};
    return begin;
  }

  // Marks the entries of one block whose row pays: those whose column a minimum cover leaves out.
  void choose_rows(i64 begin, i64 end, MinimumVertexCover<i32>& solver) {
    row_begin_.clear();
    joined_.clear();
    slots_.restart();
    for (i64 e = begin; e < end; ++e) {
      if (e == begin || entries_[e].row != entries_[e - 1].row) row_begin_.push_back(e - begin);
      joined_.push_back(slots_.number(entries_[e].column));
    }
    row_begin_.push_back(end - begin);
    const BipartiteGraph<i32> graph{row_begin_, joined_, slots_.size()};
    solver(graph, row_cover_, column_cover_);
    for (i64 e = begin; e < end; ++e) { chosen_[e] = column_cover_[joined_[e - begin]] == 0; }
  }

  // What each peer is asked for, in its order: rows of H by number, then partial sums by row; and
  // where it goes. Walking block after block fills the rows of R from left to right.
  void assemble(const Array<i64>& block_begin) {
    auto& [L, R, demand] = result_;
    demand.rows_by_peer = Array<i64>(peers_, 0);
    demand.entries_by_peer = Array<i64>(peers_, 0);
    R.indptr = Array<i64>(a_.rows + 1, 0);
    i64 asked_rows = 0, asked_entries = 0;
    std::vector<i64> wanted_end(peers_);
    for (i64 peer = 0; peer < peers_; ++peer) {
      const auto [rows, entries] = count_block(block_begin[peer], block_begin[peer + 1]);
      wanted_end[peer] = std::ssize(wanted_);
      demand.rows_by_peer[peer] = rows;
      demand.entries_by_peer[peer] = entries;
      asked_rows += rows;
      asked_entries += entries;
    }
    for (i64 row = 0; row < a_.rows; ++row) R.indptr[row + 1] += R.indptr[row];
    demand.lengths = Array<i32>(fits(asked_rows), 1);
    demand.columns = Array<i32>(asked_entries);
    R.indices = Array<i32>(R.indptr[a_.rows]);
    if (weighted_) {
      demand.sources = Array<Position>(asked_entries);
      R.sources = Array<Position>(R.indices.size());
    }
    std::vector<i64> next(R.indptr.data(), R.indptr.data() + a_.rows);
    Places places;
    for (i64 peer = 0; peer < peers_; ++peer) {
      fill_block({block_begin[peer], block_begin[peer + 1]}, wanted_end[peer], next, places);
    }
  }

  // The distinct columns that pay for entries of a block, in order, at the end of wanted_.
  i64 collect_columns(i64 begin, i64 end) {
    const auto before = std::ssize(wanted_);
    slots_.restart();
    for (i64 e = begin; e < end; ++e) {
      if (!chosen_[e] && slots_.is_new(entries_[e].column)) wanted_.push_back(entries_[e].column);
    }
    std::sort(wanted_.begin() + before, wanted_.end());
    return std::ssize(wanted_) - before;
  }

  std::pair<i64, i64> count_block(i64 begin, i64 end) {
    i64 rows = collect_columns(begin, end);
    i64 entries = rows, summed_row = -1;
    for (i64 e = begin; e < end; ++e) {
      const i64 row = entries_[e].row;
      entries += chosen_[e];
      if (chosen_[e] && row == summed_row) continue;
      ++result_.R.indptr[row + 1];
      if (chosen_[e]) ++rows, summed_row = row;
    }
    return {rows, entries};
  }

  // Where the next row, entry and wanted column of the demand are.
  struct Places {
    i64 row = 0, entry = 0, column = 0;
  };

  // One block of nonzeros; its columns are those of wanted_ up to `wanted_end`.
  void fill_block(std::pair<i64, i64> nonzeros, i64 wanted_end, std::vector<i64>& next,
                  Places& at) {
    auto& [L, R, demand] = result_;
    const auto [begin, end] = nonzeros;
    const i64 first = at.row;
    slots_.restart();
    while (at.column < wanted_end) {
      const i32 column = wanted_[at.column++];
      slots_.number(column);
      if (weighted_) demand.sources[at.entry] = -1;
      demand.columns[at.entry++] = column;
      ++at.row;
    }
    const auto put = [&](i64 row, i64 position, Position source) {
      const i64 place = next[row]++;
      R.indices[place] = static_cast<i32>(position);
      if (weighted_) R.sources[place] = source;
    };
    for (i64 e = begin; e < end;) {  // row after row: its columns first, then its sum
      const i64 row = entries_[e].row;
      i32 summed = 0;
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

  static i64 fits(i64 rows) {
    if (rows > std::numeric_limits<i32>::max()) {
      throw std::length_error("a rank would receive 2^31 rows or more");
    }
    return rows;
  }

  Rows<Index> a_;
  const Owners& owners_;
  i64 peers_, own_first_, own_size_;
  bool weighted_;
  Inspected<Position> result_;
  Array<i64> remote_begin_;
  Array<Index> columns_;
  Array<Position> sources_;
  Array<Entry> entries_;
  Array<u8> chosen_;
  std::vector<i32> wanted_, joined_;
  Slots slots_;
  std::vector<i64> row_begin_;
  std::vector<u8> row_cover_, column_cover_;
};

// Edges in the numbers of a halo, and the rows that they need of others, from ids in two passes.

// Ids in [0, n) and who owns them. Numbers lie owner by owner; without a table ids are numbers.
struct OwnedIds {
  const i64* offsets;  // [parts + 1], of numbers
  i64 parts;
  std::span<const i32> numbers;  // [n], or empty

  i64 size() const { return offsets[parts]; }
  bool has(i64 id) const { return static_cast<u64>(id) < static_cast<u64>(size()); }
  void prefetch(i64 id) const {
    if (!numbers.empty() && has(id)) __builtin_prefetch(numbers.data() + id);
  }
  i64 number(i64 id) const { return numbers.empty() ? id : numbers[id]; }
};

struct HaloNeeds {
  Array<i64> rows_by_peer;  // [parts]
  Array<i32> columns;       // what is needed: numbers among each peer's own
};

template <class Id> class HaloInspector {
 public:
  HaloInspector(const OwnedIds& sources, const OwnedIds& targets, i64 me)
      : sources_(sources), targets_(targets), me_(me) {}

  // Writes the edges to `row` and `end`, [e] each: rows of the halo, and own targets.
  HaloNeeds run(std::span<const Id> from, std::span<const Id> to, i64* row, i64* end) const {
    const auto edges = std::ssize(from);
    const i64 first = sources_.offsets[me_], own = sources_.offsets[me_ + 1] - first;
    const i64 target = targets_.offsets[me_], made = targets_.offsets[me_ + 1] - target;
    ColumnSet needed(sources_.size());
    for (i64 e = 0; e < edges; ++e) {
      sources_.prefetch(from[std::min(e + kAhead, edges - 1)]);
      if (!sources_.has(from[e]) || !targets_.has(to[e])) out_of_range(e, from[e], to[e]);
      end[e] = targets_.number(to[e]) - target;
      if (static_cast<u64>(end[e]) >= static_cast<u64>(made)) { ends_elsewhere(e, to[e]); }
      const i64 number = sources_.number(from[e]);
      row[e] = number - first;
      if (static_cast<u64>(row[e]) >= static_cast<u64>(own)) {
        needed.insert(number);
        row[e] = ~number;  // negative until all that is needed is known
      }
    }
    HaloNeeds found{Array<i64>(sources_.parts, 0), Array<i32>(needed.finish())};
    for (i64 e = 0; e < edges; ++e) {
      if (row[e] < 0) row[e] = own + needed.rank(~row[e]);
    }
    i64 next = 0, part = 0;
    needed.for_each([&](i64 number) {
      while (sources_.offsets[part + 1] <= number) ++part;
      ++found.rows_by_peer[part];
      found.columns[next++] = static_cast<i32>(number - sources_.offsets[part]);
    });
    return found;
  }

 private:
  static constexpr i64 kAhead = 16;

  [[noreturn]] void out_of_range(i64 edge, i64 from, i64 to) const {
    const bool starts = !sources_.has(from);
    throw InputError("edge " + std::to_string(edge) + (starts ? " starts at " : " ends at ") +
                     std::to_string(starts ? from : to) + ", outside [0, " +
                     std::to_string((starts ? sources_ : targets_).size()) + ")");
  }

  [[noreturn]] void ends_elsewhere(i64 edge, i64 to) const {
    i64 part = 0;
    while (targets_.offsets[part + 1] <= targets_.number(to)) ++part;
    throw InputError("edge " + std::to_string(edge) + " ends at " + std::to_string(to) +
                     ", which rank " + std::to_string(part) + " owns, not rank " +
                     std::to_string(me_) + ": each rank passes the edges that end at its own");
  }

  const OwnedIds &sources_, &targets_;
  i64 me_;
};

}  // namespace spgnn
