// The square sparse matrix that is partitioned: row v needs the rows of H named by its columns.
#pragma once

#include "big_array.hpp"
#include "parallel.hpp"

namespace spgnn {

struct Adjacency {
  std::span<const i64> indptr;   // vertices + 1
  std::span<const i32> indices;  // each in [0, vertices)

  i64 vertices() const { return std::ssize(indptr) - 1; }
  i64 edges() const { return std::ssize(indices); }
  std::span<const i32> row(i64 v) const {
    return indices.subspan(indptr[v], indptr[v + 1] - indptr[v]);
  }

  // Whether the columns of every row rise: no duplicates.
  bool canonical() const {
    for (i64 v = 0; v < vertices(); ++v) {
      const auto columns = row(v);
      if (std::adjacent_find(columns.begin(), columns.end(), std::greater_equal<>()) !=
          columns.end()) {
        return false;
      }
    }
    return true;
  }
};

// A memory-mapped matrix is not read before it is used, so a broken file shows only here.
inline void require_vertex(i32 column, i64 vertices, i64 row) {
  if (static_cast<u32>(column) >= static_cast<u64>(vertices)) [[unlikely]] {
    throw InputError("row " + std::to_string(row) + " has column index " + std::to_string(column) +
                     ", outside [0, " + std::to_string(vertices) + ")");
  }
}

// Rows cut into chunks of about equal work (nonzeros plus rows), so that threads end together.
class RowChunks {
 public:
  RowChunks(const Adjacency& adjacency, i64 work_per_chunk)
      : adjacency_(adjacency), work_per_chunk_(work_per_chunk),
        count_((adjacency.edges() + adjacency.vertices() + work_per_chunk - 1) / work_per_chunk) {}

  i64 count() const { return count_; }
  i64 first(i64 chunk) const {
    // The work before row v is indptr[v] + v, which rises strictly with v.
    return first_where(0, adjacency_.vertices(),
                       [&](i64 v) { return adjacency_.indptr[v] + v >= chunk * work_per_chunk_; });
  }
  i64 last(i64 chunk) const {
    return chunk + 1 == count_ ? adjacency_.vertices() : first(chunk + 1);
  }

 private:
  Adjacency adjacency_;
  i64 work_per_chunk_;
  i64 count_;
};

// Calls visit(v, thread) for all rows, on new threads.
template <class Visit>
void for_each_row(const Adjacency& adjacency, int threads, const Visit& visit,
                  const Tick& tick = {}) {
  const RowChunks chunks(adjacency, 1 << 18);
  parallel_chunks(
      chunks.count(), threads,
      [&](i64 chunk, int thread) {
        for (i64 v = chunks.first(chunk), end = chunks.last(chunk); v < end; ++v) visit(v, thread);
      },
      tick);
}

inline void add_to(std::vector<i64>& sums, const std::vector<i64>& more) {
  std::ranges::transform(sums, more, sums.begin(), std::plus<>());
}

// A set of parts for each of many vertices, as bits.
class PartSets {
 public:
  PartSets(i64 vertices, i64 parts) : words_((parts + 63) / 64), bits_(vertices * words_) {}

  i64 words() const { return words_; }
  u64 word(i64 v, i64 w) const { return bits_[v * words_ + w]; }
  bool has(i64 v, i64 part) const { return word(v, part / 64) >> part % 64 & 1; }
  void add(i64 v, i64 part) { bits_[v * words_ + part / 64] |= u64{1} << part % 64; }
  // For a vertex that several threads add to.
  void add_shared(i64 v, i64 part) {
    std::atomic_ref<u64> set(bits_[v * words_ + part / 64]);
    const u64 bit = u64{1} << part % 64;
    if (!(set.load(std::memory_order_relaxed) & bit)) set.fetch_or(bit, std::memory_order_relaxed);
  }

 private:
  i64 words_;
  BigArray<u64> bits_;
};

// Calls visit(part) for every bit of a word of sets.
template <class Visit> void for_each_part(u64 set, i64 word, const Visit& visit) {
  for (; set; set &= set - 1) visit(word * 64 + std::countr_zero(set));
}

// What other partitioners want: its undirected graph, its column-net hypergraph.

struct Graph {
  std::vector<i64> indptr;
  std::vector<i32> indices;
};

// The transposed adjacency; rows come out sorted if duplicates are.
inline Graph transpose(const Adjacency& adjacency) {
  i64 n = adjacency.vertices();
  Graph t{std::vector<i64>(n + 1), std::vector<i32>(adjacency.edges())};
  for (i64 v = 0; v < n; ++v) {
    for (i64 e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
      require_vertex(adjacency.indices[e], n, v);
      ++t.indptr[adjacency.indices[e] + 1];
    }
  }
  std::partial_sum(t.indptr.begin(), t.indptr.end(), t.indptr.begin());
  std::vector<i64> next(t.indptr.begin(), t.indptr.end() - 1);
  for (i64 v = 0; v < n; ++v) {
    for (i64 e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
      t.indices[next[adjacency.indices[e]]++] = static_cast<i32>(v);
    }
  }
  return t;
}

// Rows that append(v, row) puts together, sorted, without duplicates.
template <class Append> Graph merged_rows(i64 rows, i64 entries, const Append& append) {
  Graph merged{{0}, {}};
  merged.indptr.reserve(rows + 1);
  merged.indices.reserve(entries);
  std::vector<i32> row;
  for (i64 v = 0; v < rows; ++v) {
    row.clear();
    append(v, row);
    std::ranges::sort(row);
    merged.indices.insert(merged.indices.end(), row.begin(), std::ranges::unique(row).begin());
    merged.indptr.push_back(std::ssize(merged.indices));
  }
  return merged;
}

// Net v of the column-net hypergraph: v itself and all rows that need it.
inline Graph column_nets(const Adjacency& adjacency) {
  const Graph t = transpose(adjacency);
  const i64 n = adjacency.vertices();
  return merged_rows(n, adjacency.edges() + n, [&](i64 v, std::vector<i32>& net) {
    net.push_back(static_cast<i32>(v));
    net.insert(net.end(), t.indices.begin() + t.indptr[v], t.indices.begin() + t.indptr[v + 1]);
  });
}

// Adjacency of A + Aᵀ without the diagonal.
inline Graph symmetrize(const Adjacency& adjacency) {
  const Graph t = transpose(adjacency);
  return merged_rows(adjacency.vertices(), adjacency.edges(), [&](i64 v, std::vector<i32>& row) {
    const auto own = adjacency.row(v);
    row.assign(own.begin(), own.end());
    row.insert(row.end(), t.indices.begin() + t.indptr[v], t.indices.begin() + t.indptr[v + 1]);
    std::erase(row, static_cast<i32>(v));
  });
}

// Renames labels in [0, size) to 0, 1, … in order of first appearance; returns how many.
template <class Labels> i64 number_in_order(Labels& labels) {
  Labels name(labels.size());  // + 1, so that 0 means none
  i32 count = 0;
  for (i32& label : labels) {
    if (name[label] == 0) name[label] = ++count;
    label = name[label] - 1;
  }
  return count;
}

// The vertices of each of `count` groups, in rising order.
class Members {
 public:
  Members(std::span<const i32> group_of, i64 count)
      : begin_(count + 1, 0), vertices_(group_of.size()) {
    for (i32 group : group_of) ++begin_[group + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<i64> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t v = 0; v < group_of.size(); ++v) {
      vertices_[next[group_of[v]]++] = static_cast<i32>(v);
    }
  }

  std::span<const i32> of(i64 group) const {
    return {vertices_.data() + begin_[group], vertices_.data() + begin_[group + 1]};
  }

 private:
  std::vector<i64> begin_;
  std::vector<i32> vertices_;
};

}  // namespace spgnn
