// Vertices that a vertex has no edge from; and random walks.
#pragma once

#include "buffer.hpp"
#include "drawers.hpp"
#include "lanes.hpp"
#include "parallel.hpp"
#include "rows.hpp"
#include "weighted.hpp"

namespace spgnn {

// Draws `count` vertices for each source, with replacement: uniformly, or by the weights of
// `vertices` (one row of all, in the order of original ids, with tables and sums). With `excluded`
// a source's edges and itself are drawn anew; the i-th source draws by itself.
template <class Index> class Negatives {
 public:
  Negatives(const Rows<Index>& rows, const Rows<Index>& vertices, bool by_weight, bool excluded)
      : rows_(rows), vertices_(vertices), by_weight_(by_weight), excluded_(excluded) {}

  Buffer<i64> draw(std::span<const i64> sources, i64 count, const Draw& draw, int threads) const {
    constexpr i64 kPerTask = 256;
    const auto all = std::ssize(sources);
    Buffer<i64> drawn(all * count);
    const HopDraws draws(draw, kNegatives);
    std::atomic<i64> without{-1};
    for_each_task((all + kPerTask - 1) / kPerTask, threads, [&](i64 task) {
      const i64 end = std::min((task + 1) * kPerTask, all);
      for (i64 i = task * kPerTask; i < end; ++i) {
        const VertexDraws own = draws.of(rows_.id(sources[i]), i);
        if (!draw_for(sources[i], count, own, drawn.data() + i * count)) without = sources[i];
      }
    });
    if (without >= 0) {
      throw std::invalid_argument("vertex " + std::to_string(without) +
                                  " has an edge with every vertex that can be drawn");
    }
    return drawn;
  }

 private:
  static constexpr u64 kNegatives = u64{1} << 62;
  static constexpr u64 kPatience = 64;

  bool draw_for(i64 source, i64 count, VertexDraws draws, i64* drawn) const {
    for (i64 j = 0; j < count; ++j) {
      u64 attempt = 0;
      do {
        drawn[j] = any(draws[(u64{1} << 32) * attempt + j]);
      } while (excluded_ && is_edge(source, drawn[j]) && ++attempt < kPatience);
      if (attempt < kPatience) continue;
      if ((drawn[j] = one_of_rest(source, draws[kKeys + j])) < 0) return false;
    }
    return true;
  }

  i64 any(u64 random) const {
    if (!by_weight_) return vertices_.indices[below(random, vertices_.indptr[1])];
    const AliasDrawer<Index> drawer(vertices_, 0, 0, vertices_.indptr[1]);
    return drawer.draw(random).column;
  }

  bool is_edge(i64 source, i64 vertex) const {
    if (vertex == source) return true;
    const Index* begin = rows_.indices + rows_.indptr[source];
    const Index* end = rows_.indices + rows_.indptr[source + 1];
    const auto by_id = [&](Index column, u64 id) { return rows_.column_id(column) < id; };
    const Index* place = std::lower_bound(begin, end, rows_.column_id(vertex), by_id);
    return place != end && *place == vertex;
  }

  // Nearly everything is an edge: the chance of each vertex that is none, added up.
  i64 one_of_rest(i64 source, u64 random) const {
    const i64 all = vertices_.indptr[1];
    std::vector<double> sums(all);
    double sum = 0;
    for (i64 v = 0; v < all; ++v) {
      const double before = v > 0 ? vertices_.sums[v - 1] : 0;
      if (!is_edge(source, vertices_.indices[v])) {
        sum += by_weight_ ? vertices_.sums[v] - before : 1;
      }
      sums[v] = sum;
    }
    if (sum <= 0) return -1;
    const auto place = std::upper_bound(sums.begin(), sums.end(), unit(random) * sum);
    return vertices_.indices[std::min<i64>(place - sums.begin(), all - 1)];
  }

  const Rows<Index>& rows_;
  const Rows<Index>& vertices_;
  bool by_weight_, excluded_;
};

// Walks [starts, length + 1] by uniform entries, which stay where there are none; each by itself.
template <class Index>
Buffer<i64> random_walks(const Rows<Index>& rows, std::span<const i64> starts, i64 length,
                         const Draw& draw, int threads) {
  constexpr i64 kPerTask = 64;
  const auto count = std::ssize(starts);
  Buffer<i64> walks(count * (length + 1));
  for_each_task((count + kPerTask - 1) / kPerTask, threads, [&](i64 task) {
    const i64 first = task * kPerTask, end = std::min(first + kPerTask, count);
    for (i64 i = first; i < end; ++i) walks[i * (length + 1)] = starts[i];
    // Step by step for all of them, so that they wait for memory at the same time.
    for (i64 step = 0; step < length; ++step) {
      const HopDraws draws(draw, step);
      for (i64 i = first; i < end; ++i) {
        __builtin_prefetch(rows.indptr + walks[i * (length + 1) + step]);
      }
      for (i64 i = first; i < end; ++i) {
        const i64 at = walks[i * (length + 1) + step];
        const i64 from = rows.indptr[at], degree = rows.indptr[at + 1] - from;
        const u64 random = draws.of(rows.id(at), i)[0];
        walks[i * (length + 1) + step + 1] =
            degree ? static_cast<i64>(rows.indices[from + below(random, degree)]) : at;
      }
    }
  });
  return walks;
}

}  // namespace spgnn
