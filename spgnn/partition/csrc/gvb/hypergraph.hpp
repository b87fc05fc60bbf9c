// Hypergraphs whose nets know who pays: the volume model of a sparse product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "adjacency.hpp"
#include "vertices.hpp"

namespace spgnn::gvb {

using Net = std::int32_t;

// A net's first pin is its root. With λ the number of parts among its pins, a net of weight w costs
// w · (λ − 1) rows. Nets [0, num_scatter) are scattered: the root's part sends to each other part
// (a row of H; one net per column). The rest are gathered: each other part sends one row to the
// root's part (a partial sum; one net per row).
struct Hypergraph : WeightedVertices {
  std::vector<std::int64_t> net_begin{0};  // [nets + 1]
  std::vector<Vertex> pins{};
  std::vector<std::int32_t> net_weight{};
  Net num_scatter = 0;
  std::vector<std::int64_t> incident_begin{0};  // [vertices + 1]
  std::vector<Net> incident{};                  // nets of each vertex, rising

  Net num_nets() const { return static_cast<Net>(net_weight.size()); }
  Vertex root(Net e) const { return pins[net_begin[e]]; }
  std::int64_t size(Net e) const { return net_begin[e + 1] - net_begin[e]; }
  std::span<const Vertex> pins_of(Net e) const {
    return {pins.data() + net_begin[e], pins.data() + net_begin[e + 1]};
  }
  std::span<const Net> nets_of(Vertex v) const {
    return {incident.data() + incident_begin[v], incident.data() + incident_begin[v + 1]};
  }

  // Ends the net whose pins were appended since the last one. A net of one pin costs nothing and
  // is dropped.
  void close_net(std::int32_t weight) {
    if (std::ssize(pins) - net_begin.back() < 2) {
      pins.resize(net_begin.back());
      return;
    }
    net_begin.push_back(std::ssize(pins));
    net_weight.push_back(weight);
  }

  void build_incidence() {
    incident_begin.assign(static_cast<std::size_t>(num_vertices) + 1, 0);
    for (Vertex v : pins) ++incident_begin[v + 1];
    for (Vertex v = 0; v < num_vertices; ++v) incident_begin[v + 1] += incident_begin[v];
    incident.resize(pins.size());
    std::vector<std::int64_t> next(incident_begin.begin(), incident_begin.end() - 1);
    for (Net e = 0; e < num_nets(); ++e) {
      for (Vertex v : pins_of(e)) incident[next[v]++] = e;
    }
  }
};

// One scattered net per column v: v and the rows that need it, as far as column_pays(nonzero).
// Without incidence yet.
template <class ColumnPays>
Hypergraph nets_of_columns(const Adjacency& adjacency, const ColumnPays& column_pays) {
  const auto n = static_cast<Vertex>(adjacency.vertices());
  // Transpose, each column's owner first.
  std::vector<std::int64_t> begin(static_cast<std::size_t>(n) + 1, 0);
  for (std::int64_t e = 0; e < adjacency.edges(); ++e) {
    begin[adjacency.indices[e] + 1] += column_pays(e);
  }
  for (Vertex v = 0; v < n; ++v) begin[v + 1] += begin[v] + 1;
  std::vector<Vertex> pins(begin[n]);
  std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
  for (Vertex v = 0; v < n; ++v) pins[next[v]++] = v;
  for (Vertex i = 0; i < n; ++i) {
    for (std::int64_t e = adjacency.indptr[i]; e < adjacency.indptr[i + 1]; ++e) {
      const Vertex v = adjacency.indices[e];
      if (v != i && column_pays(e)) pins[next[v]++] = i;
    }
  }
  Hypergraph h;
  h.num_vertices = n;
  h.net_begin.reserve(static_cast<std::size_t>(n) + 1);
  std::int64_t end = 0;
  for (Vertex v = 0; v < n; ++v) {
    if (next[v] - begin[v] < 2) continue;
    std::copy(pins.begin() + begin[v], pins.begin() + next[v], pins.begin() + end);
    end += next[v] - begin[v];
    h.net_begin.push_back(end);
  }
  pins.resize(end);
  h.pins = std::move(pins);
  h.net_weight.assign(h.net_begin.size() - 1, 1);
  h.num_scatter = h.num_nets();
  return h;
}

// The hypergraph of the column objective: every column pays.
inline Hypergraph column_hypergraph(const Adjacency& adjacency) {
  Hypergraph h = nets_of_columns(adjacency, [](std::int64_t) { return true; });
  h.build_incidence();
  return h;
}

}  // namespace spgnn::gvb
