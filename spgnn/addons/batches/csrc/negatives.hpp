// Vertices that a vertex has no edge from; and random walks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "drawers.hpp"
#include "hash.hpp"
#include "parallel.hpp"
#include "rows.hpp"
#include "weighted.hpp"

namespace spgnn {

// Draws `count` vertices for each of some sources, with replacement: uniformly, or in proportion to
// the weights of `vertices` (one row of all, in the order of their original ids, with alias tables
// and sums). A source's own edges and the source itself are drawn anew if they are `excluded`; the
// i-th source draws by itself.
template <class Index>
class Negatives {
 public:
  Negatives(const Rows<Index>& rows, const Rows<Index>& vertices, bool by_weight, bool excluded)
      : rows_(rows), vertices_(vertices), by_weight_(by_weight), excluded_(excluded) {}

  Buffer<std::int64_t> draw(std::span<const std::int64_t> sources, std::int64_t count,
                            const Draw& draw, int threads) const {
    constexpr std::int64_t kPerTask = 256;
    const auto all = static_cast<std::int64_t>(sources.size());
    Buffer<std::int64_t> drawn(all * count);
    const HopDraws draws(draw, kNegatives);
    std::atomic<std::int64_t> without{-1};
    for_each_task((all + kPerTask - 1) / kPerTask, threads, [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kPerTask, all);
      for (std::int64_t i = task * kPerTask; i < end; ++i) {
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
  static constexpr std::uint64_t kNegatives = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kPatience = 64;

  bool draw_for(std::int64_t source, std::int64_t count, VertexDraws draws,
                std::int64_t* drawn) const {
    for (std::int64_t j = 0; j < count; ++j) {
      std::uint64_t attempt = 0;
      do {
        drawn[j] = any(draws[(std::uint64_t{1} << 32) * attempt + j]);
      } while (excluded_ && is_edge(source, drawn[j]) && ++attempt < kPatience);
      if (attempt < kPatience) continue;
      if ((drawn[j] = one_of_rest(source, draws[kKeys + j])) < 0) return false;
    }
    return true;
  }

  std::int64_t any(std::uint64_t random) const {
    if (!by_weight_) return vertices_.indices[below(random, vertices_.indptr[1])];
    const AliasDrawer<Index> drawer(vertices_, 0, 0, vertices_.indptr[1]);
    return drawer.draw(random).column;
  }

  bool is_edge(std::int64_t source, std::int64_t vertex) const {
    if (vertex == source) return true;
    const Index* begin = rows_.indices + rows_.indptr[source];
    const Index* end = rows_.indices + rows_.indptr[source + 1];
    const auto by_id = [&](Index column, std::uint64_t id) { return rows_.column_id(column) < id; };
    const Index* place = std::lower_bound(begin, end, rows_.column_id(vertex), by_id);
    return place != end && *place == vertex;
  }

  // Nearly everything is an edge: the chance of each vertex that is none, added up.
  std::int64_t one_of_rest(std::int64_t source, std::uint64_t random) const {
    const std::int64_t all = vertices_.indptr[1];
    std::vector<double> sums(all);
    double sum = 0;
    for (std::int64_t v = 0; v < all; ++v) {
      const double before = v > 0 ? vertices_.sums[v - 1] : 0;
      if (!is_edge(source, vertices_.indices[v])) {
        sum += by_weight_ ? vertices_.sums[v] - before : 1;
      }
      sums[v] = sum;
    }
    if (sum <= 0) return -1;
    const auto place = std::upper_bound(sums.begin(), sums.end(), unit(random) * sum);
    return vertices_.indices[std::min<std::int64_t>(place - sums.begin(), all - 1)];
  }

  const Rows<Index>& rows_;
  const Rows<Index>& vertices_;
  bool by_weight_, excluded_;
};

// Walks [starts, length + 1] that take a uniform entry of a vertex's row, and stay where it has
// none. Walk i draws by itself, whoever else starts where it does.
template <class Index>
Buffer<std::int64_t> random_walks(const Rows<Index>& rows, std::span<const std::int64_t> starts,
                                  std::int64_t length, const Draw& draw, int threads) {
  constexpr std::int64_t kPerTask = 64;
  const auto count = static_cast<std::int64_t>(starts.size());
  Buffer<std::int64_t> walks(count * (length + 1));
  for_each_task((count + kPerTask - 1) / kPerTask, threads, [&](std::int64_t task) {
    const std::int64_t first = task * kPerTask, end = std::min(first + kPerTask, count);
    for (std::int64_t i = first; i < end; ++i) walks[i * (length + 1)] = starts[i];
    // Step by step for all of them, so that they wait for memory at the same time.
    for (std::int64_t step = 0; step < length; ++step) {
      const HopDraws draws(draw, step);
      for (std::int64_t i = first; i < end; ++i) {
        __builtin_prefetch(rows.indptr + walks[i * (length + 1) + step]);
      }
      for (std::int64_t i = first; i < end; ++i) {
        const std::int64_t at = walks[i * (length + 1) + step];
        const std::int64_t from = rows.indptr[at], degree = rows.indptr[at + 1] - from;
        const std::uint64_t random = draws.of(rows.id(at), i)[0];
        walks[i * (length + 1) + step + 1] =
            degree ? static_cast<std::int64_t>(rows.indices[from + below(random, degree)]) : at;
      }
    }
  });
  return walks;
}

}  // namespace spgnn
