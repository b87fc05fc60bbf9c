// Samples of neighbours.
//
// Hamilton, Ying & Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017.
#pragma once

#include <cstdint>
#include <span>

#include "expand.hpp"
#include "hop.hpp"

namespace spgnn {

// A sample of each seed's own (disjoint) or of all together; `limits`: the latest time of each
// seed.
template <class Index>
Sampled sample_neighbors(const Rows<Index>& rows, Tables& tables,
                         std::span<const std::int64_t> seeds, std::span<const std::int64_t> limits,
                         std::span<const std::int64_t> fanouts, const Draw& draw,
                         const HopOptions& options, int threads) {
  const auto hop = [&](std::int64_t k, const Targets<Index>& targets, Sink<Index>* sink) {
    const HopDraws draws(draw, options.resample ? k : 0);
    return draw_hop(rows, targets, fanouts[k], draws, options, threads, sink);
  };
  const auto grow = [&]<bool kDisjoint>(auto& table) {
    using Table = std::remove_reference_t<decltype(table)>;
    Growth<Index, Table, kDisjoint> growth(rows, table, seeds, limits, threads);
    return growth.grow(fanouts.size(), options.directed, options.edge_ids, hop);
  };
  if (options.disjoint) {
    return tables.with_hashes([&](auto& table) { return grow.template operator()<true>(table); });
  }
  return tables.with_table([&](auto& table) { return grow.template operator()<false>(table); });
}

// One hop alone; columns are those of the pattern. `roots` and `limits` may be empty.
template <class Index>
Entries<Index> sample_hop(const Rows<Index>& rows, std::span<const std::int64_t> targets,
                          std::span<const std::int64_t> roots, std::span<const std::int64_t> limits,
                          std::int64_t fanout, std::uint64_t hop, const Draw& draw,
                          const HopOptions& options, int threads) {
  const auto count = static_cast<std::int64_t>(targets.size());
  Buffer<Index> vertices(count);
  Buffer<std::int32_t> trees(static_cast<std::int64_t>(roots.size()));
  for (std::int64_t i = 0; i < count; ++i) {
    check_vertex(targets[i], rows.rows, "target");
    vertices[i] = static_cast<Index>(targets[i]);
    if (!roots.empty()) trees[i] = static_cast<std::int32_t>(roots[i]);
  }
  const Targets<Index> those{vertices.data(), count, roots.empty() ? nullptr : trees.data(),
                             limits.empty() ? nullptr : limits.data()};
  return draw_hop(rows, those, fanout, HopDraws(draw, hop), options, threads);
}

}  // namespace spgnn
