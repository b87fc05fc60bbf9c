// Partitions of nonzeros, and volumes by level.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "adjacency.hpp"
#include "big_array.hpp"
#include "gvb/graphs.hpp"
#include "parallel.hpp"

namespace spgnn {

// A set of parts for each of many vertices, as bits.
class PartSets {
 public:
  PartSets(std::int64_t vertices, std::int64_t parts)
      : words_((parts + 63) / 64), bits_(vertices * words_) {}

  std::int64_t words() const { return words_; }
  std::uint64_t word(std::int64_t v, std::int64_t w) const { return bits_[v * words_ + w]; }
  bool has(std::int64_t v, std::int64_t part) const { return word(v, part / 64) >> part % 64 & 1; }
  void add(std::int64_t v, std::int64_t part) {
    bits_[v * words_ + part / 64] |= std::uint64_t{1} << part % 64;
  }
  // For a vertex that several threads add to.
  void add_shared(std::int64_t v, std::int64_t part) {
    std::atomic_ref<std::uint64_t> set(bits_[v * words_ + part / 64]);
    const std::uint64_t bit = std::uint64_t{1} << part % 64;
    if (!(set.load(std::memory_order_relaxed) & bit)) set.fetch_or(bit, std::memory_order_relaxed);
  }

 private:
  std::int64_t words_;
  BigArray<std::uint64_t> bits_;
};

// Calls visit(part) for every bit of a word of sets.
template <class Visit>
void for_each_part(std::uint64_t set, std::int64_t word, const Visit& visit) {
  for (; set; set &= set - 1) visit(word * 64 + std::countr_zero(set));
}

// Libra's rule, one nonzero after another: the lightest part that both endpoints touch; else the
// lightest that one of them does; else the lightest of all (Gonzalez et al., PowerGraph, OSDI'12;
// Xie et al., NIPS'14; Md et al., DistGNN, SC'21). A part that has reached the limit takes nothing
// while a part below it is left. Rows come in chunks; those of a chunk are taken in random order,
// since in a graph's own order one part would grow along its edges until it is full.
class Libra {
 public:
  Libra(std::int64_t vertices, std::int64_t parts, std::int64_t limit, std::uint64_t seed)
      : vertices_(vertices),
        limit_(limit),
        seed_(seed),
        load_(parts),
        rank_(parts),
        touched_(vertices, parts) {
    std::iota(rank_.begin(), rank_.end(), 0);
    gvb::Random(seed).shuffle(rank_);
  }

  // Rows [first, first + rows): `indptr` of length rows + 1 counts from its first entry. Fills the
  // labels of their nonzeros.
  void add(std::int64_t first, std::span<const std::int64_t> indptr,
           std::span<const std::int32_t> columns, std::span<std::int32_t> labels) {
    std::vector<std::int32_t> order(indptr.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    gvb::Random(seed_).split(static_cast<std::uint64_t>(first)).shuffle(order);
    for (std::int32_t row : order) {
      for (std::int64_t e = indptr[row] - indptr[0]; e < indptr[row + 1] - indptr[0]; ++e) {
        require_vertex(columns[e], vertices_, first + row);
        labels[e] = static_cast<std::int32_t>(place(first + row, columns[e]));
      }
    }
  }

 private:
  std::int64_t place(std::int64_t u, std::int64_t v) {
    std::int64_t part =
        lightest([&](std::int64_t w) { return touched_.word(u, w) & touched_.word(v, w); });
    if (part < 0) {
      part = lightest([&](std::int64_t w) { return touched_.word(u, w) | touched_.word(v, w); });
    }
    if (part < 0) part = lightest_of_all();
    ++load_[part];
    touched_.add(u, part);
    touched_.add(v, part);
    return part;
  }

  bool lighter(std::int64_t p, std::int64_t q) const {
    return load_[p] != load_[q] ? load_[p] < load_[q] : rank_[p] < rank_[q];
  }

  template <class Set>
  std::int64_t lightest(const Set& set) const {
    std::int64_t best = -1;
    for (std::int64_t w = 0; w < touched_.words(); ++w) {
      for_each_part(set(w), w, [&](std::int64_t p) {
        if (load_[p] < limit_ && (best < 0 || lighter(p, best))) best = p;
      });
    }
    return best;
  }

  std::int64_t lightest_of_all() const {
    std::int64_t best = 0;
    for (std::int64_t p = 1; p < std::ssize(load_); ++p) {
      if (lighter(p, best)) best = p;
    }
    return best;
  }

  std::int64_t vertices_, limit_;
  std::uint64_t seed_;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> rank_;  // which of equally light parts goes first
  PartSets touched_;
};

// Nonzero (i, j) for the owner of j if column j has fewer nonzeros off the diagonal than row i,
// else for that of i: other parts get to see the endpoint with more.
inline void lower_degree_labels(const Adjacency& adjacency, std::span<const std::int32_t> owners,
                                int threads, std::span<std::int32_t> labels) {
  const std::int64_t n = adjacency.vertices();
  std::vector<std::int64_t> column(n), row(n);
  for (std::int64_t v = 0; v < n; ++v) {
    for (std::int32_t u : adjacency.row(v)) {
      require_vertex(u, n, v);
      if (u != v) ++column[u], ++row[v];
    }
  }
  const RowChunks chunks(adjacency, 1 << 18);
  parallel_chunks(chunks.count(), threads, [&](std::int64_t chunk, int) {
    for (std::int64_t v = chunks.first(chunk), end = chunks.last(chunk); v < end; ++v) {
      for (std::int64_t e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
        const std::int32_t u = adjacency.indices[e];
        labels[e] = owners[column[u] < row[v] ? u : v];
      }
    }
  });
}

// The parts with nonzeros in each row and in each column, the diagonal left out.
struct Touching {
  Touching(const Adjacency& adjacency, std::span<const std::int32_t> labels, std::int64_t parts,
           int threads)
      : rows(adjacency.vertices(), parts), columns(adjacency.vertices(), parts) {
    const RowChunks chunks(adjacency, 1 << 18);
    parallel_chunks(chunks.count(), threads, [&](std::int64_t chunk, int) {
      for (std::int64_t v = chunks.first(chunk), end = chunks.last(chunk); v < end; ++v) {
        for (std::int64_t e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
          const std::int32_t u = adjacency.indices[e];
          require_vertex(u, adjacency.vertices(), v);
          if (u == v) continue;
          rows.add(v, labels[e]);
          columns.add_shared(u, labels[e]);
        }
      }
    });
  }

  std::uint64_t any(std::int64_t v, std::int64_t w) const {
    return rows.word(v, w) | columns.word(v, w);
  }
  template <class Set>
  static std::int64_t size(const Set& set, std::int64_t words) {
    std::int64_t count = 0;
    for (std::int64_t w = 0; w < words; ++w) count += std::popcount(set(w));
    return count;
  }

  PartSets rows, columns;
};

// Who owns which vertex: a part that touches it, so that nothing moves needlessly.
//
// A part that touches a vertex both ways saves two rows, one that does one way saves one. Vertices
// of one part are its own. The others follow, those in most parts first: each goes to the candidate
// where the larger of rows sent and received, of expand and fold together, is least so far, among
// those below `limit` vertices; where all have reached it, to the candidate with the fewest.
// Isolated vertices fill up the parts with the fewest.
class Masters {
 public:
  Masters(const Touching& touching, std::int64_t vertices, std::int64_t parts, std::int64_t limit)
      : touching_(touching),
        limit_(limit),
        size_(parts),
        send_(parts),
        receive_(parts),
        owners_(vertices, -1) {}

  std::vector<std::int32_t> operator()() && {
    const std::int64_t words = touching_.rows.words(), n = std::ssize(owners_);
    std::vector<std::vector<std::int32_t>> by_parts(size_.size() + 1);
    for (std::int64_t v = 0; v < n; ++v) {
      for (std::int64_t w = 0; w < words; ++w) {
        for_each_part(touching_.rows.word(v, w), w, [&](std::int64_t p) { ++send_[p]; });
        for_each_part(touching_.columns.word(v, w), w, [&](std::int64_t p) { ++receive_[p]; });
      }
      const auto any = [&](std::int64_t w) { return touching_.any(v, w); };
      by_parts[Touching::size(any, words)].push_back(static_cast<std::int32_t>(v));
    }
    for (std::int32_t v : by_parts[1]) choose(v);
    for (std::int64_t parts = std::ssize(size_); parts > 1; --parts) {
      for (std::int32_t v : by_parts[parts]) choose(v);
    }
    fill(by_parts[0]);
    return std::move(owners_);
  }

 private:
  void choose(std::int64_t v) {
    const auto both = [&](std::int64_t w) {
      return touching_.rows.word(v, w) & touching_.columns.word(v, w);
    };
    const auto any = [&](std::int64_t w) { return touching_.any(v, w); };
    std::int64_t part = best(both, true);
    if (part < 0) part = best(any, true);
    if (part < 0) part = best(any, false);
    // What counted as sent and received by this part as if it were not the owner no longer does.
    const std::int64_t counted = touching_.rows.has(v, part) + touching_.columns.has(v, part);
    send_[part] += size_of(touching_.columns, v) - counted;
    receive_[part] += size_of(touching_.rows, v) - counted;
    own(v, part);
  }

  std::int64_t size_of(const PartSets& sets, std::int64_t v) const {
    return Touching::size([&](std::int64_t w) { return sets.word(v, w); }, sets.words());
  }

  template <class Set>
  std::int64_t best(const Set& set, bool below_limit) const {
    std::int64_t found = -1;
    const auto better = [&](std::int64_t p, std::int64_t q) {
      if (!below_limit) return size_[p] < size_[q];
      const std::int64_t moved_p = std::max(send_[p], receive_[p]);
      const std::int64_t moved_q = std::max(send_[q], receive_[q]);
      return moved_p != moved_q ? moved_p < moved_q : size_[p] < size_[q];
    };
    for (std::int64_t w = 0; w < touching_.rows.words(); ++w) {
      for_each_part(set(w), w, [&](std::int64_t p) {
        if (below_limit && size_[p] >= limit_) return;
        if (found < 0 || better(p, found)) found = p;
      });
    }
    return found;
  }

  // Raises the smallest parts to one level.
  void fill(const std::vector<std::int32_t>& isolated) {
    std::vector<std::int32_t> order(size_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t p, std::int32_t q) { return size_[p] < size_[q]; });
    std::int64_t level = size_[order[0]];
    std::size_t next = 0;
    for (std::int32_t v : isolated) {
      // All parts before `next` have level + 1 vertices, those from it on at least level.
      if (next == order.size() || size_[order[next]] > level) ++level, next = 0;
      own(v, order[next++]);
    }
  }

  void own(std::int64_t v, std::int64_t part) {
    owners_[v] = static_cast<std::int32_t>(part);
    ++size_[part];
  }

  const Touching& touching_;
  std::int64_t limit_;
  std::vector<std::int64_t> size_, send_, receive_;
  std::vector<std::int32_t> owners_;
};

// What a vertex cut holds and moves, per part.
struct CutCount {
  explicit CutCount(std::int64_t parts)
      : nonzeros(parts),
        touched(parts),
        expand_send(parts),
        expand_receive(parts),
        fold_send(parts),
        fold_receive(parts) {}

  void add(const CutCount& other) {
    const auto sum = [](auto& to, const auto& from) {
      std::transform(to.begin(), to.end(), from.begin(), to.begin(), std::plus<>());
    };
    sum(nonzeros, other.nonzeros);
    sum(touched, other.touched);
    sum(expand_send, other.expand_send);
    sum(expand_receive, other.expand_receive);
    sum(fold_send, other.fold_send);
    sum(fold_receive, other.fold_receive);
  }

  std::vector<std::int64_t> nonzeros, touched, expand_send, expand_receive, fold_send, fold_receive;
};

inline CutCount count_cut(const Adjacency& adjacency, std::span<const std::int32_t> labels,
                          std::span<const std::int32_t> owners, const Touching& touching,
                          std::int64_t parts, int threads) {
  std::vector<CutCount> counts(std::max(threads, 1), CutCount(parts));
  const RowChunks chunks(adjacency, 1 << 18);
  parallel_chunks(chunks.count(), threads, [&](std::int64_t chunk, int thread) {
    CutCount& count = counts[thread];
    for (std::int64_t v = chunks.first(chunk), end = chunks.last(chunk); v < end; ++v) {
      for (std::int64_t e = adjacency.indptr[v]; e < adjacency.indptr[v + 1]; ++e) {
        ++count.nonzeros[adjacency.indices[e] == v ? owners[v] : labels[e]];
      }
      const std::int64_t owner = owners[v];
      ++count.touched[owner];
      for (std::int64_t w = 0; w < touching.rows.words(); ++w) {
        for_each_part(touching.any(v, w), w,
                      [&](std::int64_t p) { count.touched[p] += p != owner; });
        for_each_part(touching.columns.word(v, w), w, [&](std::int64_t p) {
          if (p != owner) ++count.expand_send[owner], ++count.expand_receive[p];
        });
        for_each_part(touching.rows.word(v, w), w, [&](std::int64_t p) {
          if (p != owner) ++count.fold_send[p], ++count.fold_receive[owner];
        });
      }
    }
  });
  for (std::size_t thread = 1; thread < counts.size(); ++thread) counts[0].add(counts[thread]);
  return std::move(counts[0]);
}

// Counts the rows that a partition moves between nodes and inside them, where columns pay. The
// parts of a node are neighbours: node of part p = p / parts_per_node.

// Rows by part; `once_receive` by node. A row that several parts of another node need counts for
// each of them in `flat`, once in `once`.
struct LevelCount {
  LevelCount(std::int64_t parts, std::int64_t nodes)
      : flat_send(parts),
        flat_receive(parts),
        once_send(parts),
        inside_send(parts),
        inside_receive(parts),
        once_receive(nodes) {}

  std::vector<std::int64_t> flat_send, flat_receive, once_send, inside_send, inside_receive,
      once_receive;
};

inline LevelCount count_levels(const Adjacency& adjacency, std::span<const std::int32_t> labels,
                               std::int64_t parts, std::int64_t parts_per_node, int threads) {
  const std::int64_t n = adjacency.vertices();
  PartSets needed(n, parts);
  const RowChunks chunks(adjacency, 1 << 18);
  parallel_chunks(chunks.count(), threads, [&](std::int64_t chunk, int) {
    for (std::int64_t v = chunks.first(chunk), end = chunks.last(chunk); v < end; ++v) {
      for (std::int32_t u : adjacency.row(v)) {
        require_vertex(u, n, v);
        needed.add_shared(u, labels[v]);
      }
    }
  });
  LevelCount count(parts, parts / parts_per_node);
  for (std::int64_t v = 0; v < n; ++v) {
    const std::int64_t owner = labels[v], home = owner / parts_per_node;
    std::int64_t last = home;  // parts come in rising order, so those of one node together
    for (std::int64_t w = 0; w < needed.words(); ++w) {
      for_each_part(needed.word(v, w), w, [&](std::int64_t part) {
        const std::int64_t node = part / parts_per_node;
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
