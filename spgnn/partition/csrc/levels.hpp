// Counts the rows that a partition moves between nodes and inside them, where columns pay. The
// parts of a node are neighbours: node of part p = p / parts_per_node.
#pragma once

#include "vertex_cut.hpp"

namespace spgnn {

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
