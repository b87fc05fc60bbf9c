// What gvb works on: vertices with weights, hypergraphs whose nets know who pays (the volume model
// of a sparse product), and graphs whose edge cut stands in for volume where moves must be cheap.
#pragma once

#include "adjacency.hpp"
#include "inlined.hpp"

namespace spgnn::gvb {

// Numbers of SplitMix64 (Steele, Lea, Flood 2014): the same from a seed with every compiler.
class Random {
 public:
  explicit Random(u64 seed) : state_(mixed(seed)) {}

  u64 next() { return mixed(state_ += kGolden); }

  // Uniform in [0, bound); the bias of the multiplication is below 2^-32.
  u32 below(u32 bound) { return static_cast<u32>(((next() >> 32) * bound) >> 32); }

  // A generator of its own for a subproblem, independent of how this one is used later.
  Random split(u64 key) const { return Random(mixed(state_ ^ mixed(key))); }

  template <class T> void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[below(static_cast<u32>(i))]);
    }
  }

  // Shuffles runs of items as wholes: what is close in memory stays close.
  template <class T> void shuffle_runs(std::vector<T>& items) {
    constexpr std::size_t kRun = 64;
    std::vector<std::size_t> first((items.size() + kRun - 1) / kRun);
    for (std::size_t i = 0; i < first.size(); ++i) first[i] = kRun * i;
    shuffle(first);
    std::vector<T> result;
    result.reserve(items.size());
    for (std::size_t i : first) {
      result.insert(result.end(), items.begin() + i,
                    items.begin() + std::min(i + kRun, items.size()));
    }
    items = std::move(result);
  }

 private:
  u64 state_;
};

// What graphs and hypergraphs share: vertices with weights, and the weights of parts of them.

using Vertex = i32;
using Part = i32;
using Bound = std::vector<i64>;  // largest weights, [parts × constraints]

struct WeightedVertices {
  Vertex num_vertices = 0;
  int constraints = 1;
  std::vector<i64> vertex_weight{};  // [vertices × constraints]
  std::vector<Part> fixed{};         // the part that a vertex must be in, -1: any; or empty

  bool is_fixed(Vertex v) const { return !fixed.empty() && fixed[v] >= 0; }

  std::span<const i64> weight_of(Vertex v) const {
    return {vertex_weight.data() + static_cast<i64>(v) * constraints,
            static_cast<std::size_t>(constraints)};
  }
  std::vector<i64> total_weight() const {
    std::vector<i64> total(constraints, 0);
    for (std::size_t i = 0; i < vertex_weight.size(); ++i) {
      total[i % constraints] += vertex_weight[i];
    }
    return total;
  }
};

// The weight of each part in each constraint, kept up to date under moves of vertices.
class PartWeights {
 public:
  template <class Labels>
  PartWeights(const WeightedVertices& vertices, const Labels& part, Part parts)
      : vertices_(vertices), constraints_(vertices.constraints),
        weight_(static_cast<std::size_t>(parts) * vertices.constraints, 0) {
    for (Vertex v = 0; v < vertices.num_vertices; ++v) add(v, part[v], 1);
  }

  i64 operator()(Part p, int constraint) const { return weight_[p * constraints_ + constraint]; }
  void add(Vertex v, Part p, int sign) {
    const auto weight = vertices_.weight_of(v);
    for (i64 c = 0; c < constraints_; ++c) { weight_[p * constraints_ + c] += sign * weight[c]; }
  }
  void move(Vertex v, Part from, Part to) {
    add(v, from, -1);
    add(v, to, 1);
  }

  // Whether p keeps its bound with v as well.
  bool fits(Vertex v, Part p, const Bound& bound) const {
    const auto weight = vertices_.weight_of(v);
    for (i64 c = 0; c < constraints_; ++c) {
      if (weight_[p * constraints_ + c] + weight[c] > bound[p * constraints_ + c]) return false;
    }
    return true;
  }
  bool within(Part p, const Bound& bound) const {
    for (i64 c = 0; c < constraints_; ++c) {
      if (weight_[p * constraints_ + c] > bound[p * constraints_ + c]) return false;
    }
    return true;
  }
  // Weight above the bound, summed over parts and constraints.
  i64 overload(const Bound& bound) const {
    i64 sum = 0;
    for (std::size_t i = 0; i < weight_.size(); ++i) {
      sum += std::max<i64>(0, weight_[i] - bound[i]);
    }
    return sum;
  }

 private:
  const WeightedVertices& vertices_;
  i64 constraints_;
  std::vector<i64> weight_;  // [parts × constraints]
};

// Nodes of neighbouring parts. A row that leaves its node counts as `outside` rows where parts and
// nodes are compared, by what is sent and received; in the total all rows count alike.
struct Nodes {
  Part size = 1;  // parts of a node; with 1 all rows count alike
  i32 outside = 1;

  bool matter() const { return size > 1; }
};

using Net = i32;

// A net's first pin is its root. With λ parts among its pins, a net of weight w costs w · (λ − 1)
// rows. Nets [0, num_scatter) are scattered: the root's part sends to each other part (one net per
// column). The rest are gathered: each other part sends to the root's (one net per row).
struct Hypergraph : WeightedVertices {
  std::vector<i64> net_begin{0};  // [nets + 1]
  std::vector<Vertex> pins{};
  std::vector<i32> net_weight{};
  Net num_scatter = 0;
  std::vector<i64> incident_begin{0};  // [vertices + 1]
  std::vector<Net> incident{};         // nets of each vertex, rising

  Net num_nets() const { return static_cast<Net>(net_weight.size()); }
  Vertex root(Net e) const { return pins[net_begin[e]]; }
  i64 size(Net e) const { return net_begin[e + 1] - net_begin[e]; }
  std::span<const Vertex> pins_of(Net e) const {
    return {pins.data() + net_begin[e], pins.data() + net_begin[e + 1]};
  }
  std::span<const Net> nets_of(Vertex v) const {
    return {incident.data() + incident_begin[v], incident.data() + incident_begin[v + 1]};
  }

  // Ends the net of the pins appended since the last one; one of one pin is dropped.
  void close_net(i32 weight) {
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
    std::vector<i64> next(incident_begin.begin(), incident_begin.end() - 1);
    for (Net e = 0; e < num_nets(); ++e) {
      for (Vertex v : pins_of(e)) incident[next[v]++] = e;
    }
  }
};

// How many threads pay for their start, where work looks at all nets of the vertices.
inline int worth_starting(int threads, const Hypergraph& h, std::span<const Vertex> vertices) {
  constexpr i64 kPays = 1 << 12;
  i64 nets = 0;
  for (Vertex v : vertices) nets += std::ssize(h.nets_of(v));
  return nets < kPays ? 1 : threads;
}

// One scattered net per column v: v and the rows that need it, if column_pays(nonzero).
template <class ColumnPays>
Hypergraph nets_of_columns(const Adjacency& adjacency, const ColumnPays& column_pays) {
  const auto n = static_cast<Vertex>(adjacency.vertices());
  // Transpose, each column's owner first.
  std::vector<i64> begin(static_cast<std::size_t>(n) + 1, 0);
  for (i64 e = 0; e < adjacency.edges(); ++e) { begin[adjacency.indices[e] + 1] += column_pays(e); }
  for (Vertex v = 0; v < n; ++v) begin[v + 1] += begin[v] + 1;
  std::vector<Vertex> pins(begin[n]);
  std::vector<i64> next(begin.begin(), begin.end() - 1);
  for (Vertex v = 0; v < n; ++v) pins[next[v]++] = v;
  for (Vertex i = 0; i < n; ++i) {
    for (i64 e = adjacency.indptr[i]; e < adjacency.indptr[i + 1]; ++e) {
      const Vertex v = adjacency.indices[e];
      if (v != i && column_pays(e)) pins[next[v]++] = i;
    }
  }
  Hypergraph h;
  h.num_vertices = n;
  h.net_begin.reserve(static_cast<std::size_t>(n) + 1);
  i64 end = 0;
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

// The hypergraph where every column pays.
inline Hypergraph column_hypergraph(const Adjacency& adjacency) {
  Hypergraph h = nets_of_columns(adjacency, [](i64) { return true; });
  h.build_incidence();
  return h;
}

struct CutGraph : WeightedVertices {
  struct Edge {
    Vertex to;
    i32 weight;
  };

  std::vector<i64> begin{0};  // [vertices + 1]
  std::vector<Edge> edges{};  // both directions, no loops, one per pair

  std::span<const Edge> edges_of(Vertex v) const {
    return {edges.data() + begin[v], edges.data() + begin[v + 1]};
  }
};

// Gathers weighted neighbours of one vertex after another, adding up those that come twice.
class EdgeCollector {
 public:
  explicit EdgeCollector(CutGraph& graph) : graph_(graph), place_(graph.num_vertices, -1) {}

  void add(Vertex to, i64 weight) {
    constexpr i64 kMost = std::numeric_limits<i32>::max();
    i64& place = place_[to];
    if (place < first_) {
      place = std::ssize(graph_.edges);
      graph_.edges.push_back({to, 0});
    }
    i32& sum = graph_.edges[place].weight;
    sum = static_cast<i32>(std::min(kMost, sum + weight));
  }

  void close_vertex() {
    first_ = std::ssize(graph_.edges);
    graph_.begin.push_back(first_);
  }

 private:
  CutGraph& graph_;
  std::vector<i64> place_;
  i64 first_ = 0;  // of the vertex at hand
};

// A star per net. Cutting one edge of a net of d + 1 pins costs a row only if no other pin lies
// there: with k parts an edge weighs k / (k + d).
inline CutGraph star_graph(const Hypergraph& h, Part parts) {
  constexpr double kScale = 1024;
  const auto weight_in = [&](Net e) {
    const double share = parts / static_cast<double>(parts + h.size(e) - 1);
    return std::max<i64>(1, static_cast<i64>(kScale * h.net_weight[e] * share));
  };
  CutGraph graph{{h}};
  graph.edges.reserve(h.pins.size());
  EdgeCollector collector(graph);
  for (Vertex v = 0; v < h.num_vertices; ++v) {
    for (Net e : h.nets_of(v)) {
      const i64 weight = weight_in(e);
      if (h.root(e) != v) {
        collector.add(h.root(e), weight);
      } else {
        for (Vertex pin : h.pins_of(e).subspan(1)) collector.add(pin, weight);
      }
    }
    collector.close_vertex();
  }
  return graph;
}

// A binary heap of vertices whose keys can change.
template <class Key> class VertexHeap {
 public:
  explicit VertexHeap(Vertex n) : place_(n, -1) {}

  bool empty() const { return heap_.empty(); }
  bool contains(Vertex v) const { return place_[v] >= 0; }
  Vertex top() const { return heap_[0].vertex; }
  Key key(Vertex v) const { return heap_[place_[v]].key; }

  // Inserts a vertex or changes its key.
  void set(Vertex v, Key key) {
    if (contains(v)) {
      Key& old = heap_[place_[v]].key;
      const bool up = old < key;
      old = key;
      up ? rise(place_[v]) : sink(place_[v]);
      return;
    }
    heap_.push_back({key, v});
    rise(static_cast<i32>(heap_.size()) - 1);
  }

  void remove(Vertex v) {
    const i32 i = place_[v];
    const Entry last = heap_.back();
    heap_.pop_back();
    place_[v] = -1;
    if (last.vertex == v) return;
    put(last, i);
    rise(i);
    sink(place_[last.vertex]);
  }

  void clear() {
    for (const Entry& entry : heap_) place_[entry.vertex] = -1;
    heap_.clear();
  }

 private:
  // Keys lie beside their vertices: those that are compared are close in memory.
  struct Entry {
    Key key;
    Vertex vertex;
  };

  void put(const Entry& entry, i32 i) {
    heap_[i] = entry;
    place_[entry.vertex] = i;
  }

  void rise(i32 i) {
    const Entry entry = heap_[i];
    while (i > 0 && heap_[(i - 1) / 2].key < entry.key) {
      put(heap_[(i - 1) / 2], i);
      i = (i - 1) / 2;
    }
    put(entry, i);
  }

  void sink(i32 i) {
    const Entry entry = heap_[i];
    const auto size = static_cast<i32>(heap_.size());
    for (i32 child = 2 * i + 1; child < size; child = 2 * i + 1) {
      if (child + 1 < size && heap_[child].key < heap_[child + 1].key) ++child;
      if (!(entry.key < heap_[child].key)) break;
      put(heap_[child], i);
      i = child;
    }
    put(entry, i);
  }

  std::vector<Entry> heap_;
  std::vector<i32> place_;
};

}  // namespace spgnn::gvb
