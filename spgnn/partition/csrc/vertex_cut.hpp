// Partitions of nonzeros, and volumes by level.
#pragma once

#include "adjacency.hpp"
#include "big_array.hpp"
#include "gvb/graphs.hpp"
#include "parallel.hpp"

namespace spgnn {

// Libra's rule: the lightest part that both endpoints touch; else that one does; else of all (Xie
// et al., NIPS'14; Md et al., DistGNN, SC'21). A part at the limit takes nothing while another is
// left. Rows of a chunk are taken in random order, else one part would grow along a graph's own
// order.
class Libra {
 public:
  Libra(i64 vertices, i64 parts, i64 limit, u64 seed)
      : vertices_(vertices), limit_(limit), seed_(seed), load_(parts), rank_(parts),
        touched_(vertices, parts) {
    std::iota(rank_.begin(), rank_.end(), 0);
    gvb::Random(seed).shuffle(rank_);
  }

  // Labels of the nonzeros of rows [first, first + rows); `indptr` counts from its first entry.
  void add(i64 first, std::span<const i64> indptr, std::span<const i32> columns,
           std::span<i32> labels) {
    std::vector<i32> order(indptr.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    gvb::Random(seed_).split(static_cast<u64>(first)).shuffle(order);
    for (i32 row : order) {
      for (i64 e = indptr[row] - indptr[0]; e < indptr[row + 1] - indptr[0]; ++e) {
        require_vertex(columns[e], vertices_, first + row);
        labels[e] = static_cast<i32>(place(first + row, columns[e]));
      }
    }
  }

 private:
  i64 place(i64 u, i64 v) {
    i64 part = lightest([&](i64 w) { return touched_.word(u, w) & touched_.word(v, w); });
    if (part < 0) {
      part = lightest([&](i64 w) { return touched_.word(u, w) | touched_.word(v, w); });
    }
    if (part < 0) part = lightest_of_all();
    ++load_[part];
    touched_.add(u, part);
    touched_.add(v, part);
    return part;
  }

  bool lighter(i64 p, i64 q) const {
    return load_[p] != load_[q] ? load_[p] < load_[q] : rank_[p] < rank_[q];
  }

  template <class Set> i64 lightest(const Set& set) const {
    i64 best = -1;
    for (i64 w = 0; w < touched_.words(); ++w) {
      for_each_part(set(w), w, [&](i64 p) {
        if (load_[p] < limit_ && (best < 0 || lighter(p, best))) best = p;
      });
    }
    return best;
  }

  i64 lightest_of_all() const {
    i64 best = 0;
    for (i64 p = 1; p < std::ssize(load_); ++p) {
      if (lighter(p, best)) best = p;
    }
    return best;
  }

  i64 vertices_, limit_;
  u64 seed_;
  std::vector<i64> load_;
  std::vector<i32> rank_;  // which of equally light parts goes first
  PartSets touched_;
};

// Nonzero (i, j) for the owner of j if column j has fewer off the diagonal than row i, else of i.
inline void lower_degree_labels(const Adjacency& adjacency, std::span<const i32> owners,
                                int threads, std::span<i32> labels) {
  const i64 n = adjacency.vertices();
  std::vector<i64> column(n), row(n);
  for (i64 v = 0; v < n; ++v) {
    for (i32 u : adjacency.row(v)) {
      require_vertex(u, n, v);
      if (u != v) ++column[u], ++row[v];
    }
  }
  for_each_row(adjacency, threads, [&](i64 v, int) {
    for (i64 e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
      const i32 u = adjacency.indices[e];
      labels[e] = owners[column[u] < row[v] ? u : v];
    }
  });
}

// The parts with nonzeros in each row and in each column, the diagonal left out.
struct Touching {
  Touching(const Adjacency& adjacency, std::span<const i32> labels, i64 parts, int threads)
      : rows(adjacency.vertices(), parts), columns(adjacency.vertices(), parts) {
    for_each_row(adjacency, threads, [&](i64 v, int) {
      for (i64 e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
        const i32 u = adjacency.indices[e];
        require_vertex(u, adjacency.vertices(), v);
        if (u == v) continue;
        rows.add(v, labels[e]);
        columns.add_shared(u, labels[e]);
      }
    });
  }

  u64 any(i64 v, i64 w) const { return rows.word(v, w) | columns.word(v, w); }
  template <class Set> static i64 size(const Set& set, i64 words) {
    i64 count = 0;
    for (i64 w = 0; w < words; ++w) count += std::popcount(set(w));
    return count;
  }

  PartSets rows, columns;
};

// Who owns which vertex: a part that touches it, both ways if any does. Vertices of one part are
// its own. The others follow, those in most parts first: each goes to the candidate where the
// larger of rows sent and received is least so far, among those below `limit` vertices; where all
// have reached it, to the one with the fewest. Isolated vertices fill up.
class Masters {
 public:
  Masters(const Touching& touching, i64 vertices, i64 parts, i64 limit)
      : touching_(touching), limit_(limit), size_(parts), send_(parts), receive_(parts),
        owners_(vertices, -1) {}

  std::vector<i32> operator()() && {
    const i64 words = touching_.rows.words(), n = std::ssize(owners_);
    std::vector<std::vector<i32>> by_parts(size_.size() + 1);
    for (i64 v = 0; v < n; ++v) {
      for (i64 w = 0; w < words; ++w) {
        for_each_part(touching_.rows.word(v, w), w, [&](i64 p) { ++send_[p]; });
        for_each_part(touching_.columns.word(v, w), w, [&](i64 p) { ++receive_[p]; });
      }
      const auto any = [&](i64 w) { return touching_.any(v, w); };
      by_parts[Touching::size(any, words)].push_back(static_cast<i32>(v));
    }
    for (i32 v : by_parts[1]) choose(v);
    for (i64 parts = std::ssize(size_); parts > 1; --parts) {
      for (i32 v : by_parts[parts]) choose(v);
    }
    fill(by_parts[0]);
    return std::move(owners_);
  }

 private:
  void choose(i64 v) {
    const auto both = [&](i64 w) {
      return touching_.rows.word(v, w) & touching_.columns.word(v, w);
    };
    const auto any = [&](i64 w) { return touching_.any(v, w); };
    i64 part = best(both, true);
    if (part < 0) part = best(any, true);
    if (part < 0) part = best(any, false);
    // What counted as sent and received by this part as if it were not the owner no longer does.
    const i64 counted = touching_.rows.has(v, part) + touching_.columns.has(v, part);
    send_[part] += size_of(touching_.columns, v) - counted;
    receive_[part] += size_of(touching_.rows, v) - counted;
    own(v, part);
  }

  i64 size_of(const PartSets& sets, i64 v) const {
    return Touching::size([&](i64 w) { return sets.word(v, w); }, sets.words());
  }

  template <class Set> i64 best(const Set& set, bool below_limit) const {
    i64 found = -1;
    const auto better = [&](i64 p, i64 q) {
      if (!below_limit) return size_[p] < size_[q];
      const i64 moved_p = std::max(send_[p], receive_[p]);
      const i64 moved_q = std::max(send_[q], receive_[q]);
      return moved_p != moved_q ? moved_p < moved_q : size_[p] < size_[q];
    };
    for (i64 w = 0; w < touching_.rows.words(); ++w) {
      for_each_part(set(w), w, [&](i64 p) {
        if (below_limit && size_[p] >= limit_) return;
        if (found < 0 || better(p, found)) found = p;
      });
    }
    return found;
  }

  // Raises the smallest parts to one level.
  void fill(const std::vector<i32>& isolated) {
    std::vector<i32> order(size_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](i32 p, i32 q) { return size_[p] < size_[q]; });
    i64 level = size_[order[0]];
    std::size_t next = 0;
    for (i32 v : isolated) {
      // All parts before `next` have level + 1 vertices, those from it on at least level.
      if (next == order.size() || size_[order[next]] > level) ++level, next = 0;
      own(v, order[next++]);
    }
  }

  void own(i64 v, i64 part) {
    owners_[v] = static_cast<i32>(part);
    ++size_[part];
  }

  const Touching& touching_;
  i64 limit_;
  std::vector<i64> size_, send_, receive_;
  std::vector<i32> owners_;
};

// What a vertex cut holds and moves, per part.
struct CutCount {
  std::vector<i64> nonzeros, touched, expand_send, expand_receive, fold_send, fold_receive;
};

inline CutCount count_cut(const Adjacency& adjacency, std::span<const i32> labels,
                          std::span<const i32> owners, const Touching& touching, i64 parts,
                          int threads) {
  const std::vector<i64> none(parts);
  std::vector<CutCount> counts(std::max(threads, 1), {none, none, none, none, none, none});
  for_each_row(adjacency, threads, [&](i64 v, int thread) {
    CutCount& count = counts[thread];
    for (i64 e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
      ++count.nonzeros[adjacency.indices[e] == v ? owners[v] : labels[e]];
    }
    const i64 owner = owners[v];
    ++count.touched[owner];
    for (i64 w = 0; w < touching.rows.words(); ++w) {
      for_each_part(touching.any(v, w), w, [&](i64 p) { count.touched[p] += p != owner; });
      for_each_part(touching.columns.word(v, w), w, [&](i64 p) {
        if (p != owner) ++count.expand_send[owner], ++count.expand_receive[p];
      });
      for_each_part(touching.rows.word(v, w), w, [&](i64 p) {
        if (p != owner) ++count.fold_send[p], ++count.fold_receive[owner];
      });
    }
  });
  for (std::size_t thread = 1; thread < counts.size(); ++thread) {
    for (auto each : {&CutCount::nonzeros, &CutCount::touched, &CutCount::expand_send,
                      &CutCount::expand_receive, &CutCount::fold_send, &CutCount::fold_receive}) {
      add_to(counts[0].*each, counts[thread].*each);
    }
  }
  return std::move(counts[0]);
}

// Rows moved between nodes and inside them, where columns pay; node of part p = p / parts_per_node.

// By part; `once_receive` by node. `flat`: for each part that needs the row, `once`: for each node.
struct LevelCount {
  std::vector<i64> flat_send, flat_receive, once_send, inside_send, inside_receive, once_receive;
};

inline LevelCount count_levels(const Adjacency& adjacency, std::span<const i32> labels, i64 parts,
                               i64 parts_per_node, int threads) {
  const i64 n = adjacency.vertices();
  PartSets needed(n, parts);
  for_each_row(adjacency, threads, [&](i64 v, int) {
    for (i32 u : adjacency.row(v)) {
      require_vertex(u, n, v);
      needed.add_shared(u, labels[v]);
    }
  });
  const std::vector<i64> none(parts);
  LevelCount count{none, none, none, none, none, std::vector<i64>(parts / parts_per_node)};
  for (i64 v = 0; v < n; ++v) {
    const i64 owner = labels[v], home = owner / parts_per_node;
    i64 last = home;  // parts come in rising order, so those of one node together
    for (i64 w = 0; w < needed.words(); ++w) {
      for_each_part(needed.word(v, w), w, [&](i64 part) {
        const i64 node = part / parts_per_node;
        if (part == owner) return;
        if (node == home) {
          ++count.inside_send[owner], ++count.inside_receive[part];
          return;
        }
        ++count.flat_send[owner], ++count.flat_receive[part];
        if (node != last) ++count.once_send[owner], ++count.once_receive[node];
        last = node;
      });
    }
  }
  return count;
}

}  // namespace spgnn
