// The partitioners and the report on exactly sized heap arrays, with one thread and with several,
// so that a sanitizer sees every stray access and every race.
#include <cstdint>
#include <cstdio>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "adjacency.hpp"
#include "gvb/cover.hpp"
#include "stream.hpp"
#include "vertex_cut.hpp"
#include "volume.hpp"

namespace {

using spgnn::Adjacency;
using spgnn::gvb::Options;
using spgnn::gvb::Part;
using spgnn::gvb::Vertex;

int failures = 0;

void expect(bool condition, const char* what, const char* graph, int parts) {
  if (condition) return;
  std::fprintf(stderr, "FAILED on %s in %d parts: %s\n", graph, parts, what);
  ++failures;
}

struct Matrix {
  const char* name;
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;

  Adjacency adjacency() const { return {indptr, indices}; }
};

// Rows with `degree` nonzeros on average; with a skew low columns are needed by many.
Matrix random_matrix(const char* name, std::int32_t n, int degree, double skew, bool symmetric) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> uniform;
  std::vector<std::set<std::int32_t>> rows(n);
  for (std::int64_t i = 0; i < std::int64_t{n} * degree; ++i) {
    const auto row = static_cast<std::int32_t>(uniform(rng) * n);
    const auto column = static_cast<std::int32_t>(std::pow(uniform(rng), 1 + skew) * n);
    rows[row].insert(column);
    if (symmetric) rows[column].insert(row);
  }
  Matrix matrix{name, {0}, {}};
  for (const auto& row : rows) {
    matrix.indices.insert(matrix.indices.end(), row.begin(), row.end());
    matrix.indptr.push_back(std::ssize(matrix.indices));
  }
  return matrix;
}

std::vector<std::int64_t> row_lengths(const Adjacency& adjacency) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t v = 0; v < adjacency.vertices(); ++v) {
    lengths.push_back(std::ssize(adjacency.row(v)));
  }
  return lengths;
}

// Column: distinct pairs (column, part that needs it); row: distinct pairs (row, part that has it).
void test_report(const Matrix& matrix, const std::vector<Part>& labels, int parts) {
  const Adjacency adjacency = matrix.adjacency();
  std::set<std::pair<std::int64_t, Part>> columns, rows;
  for (std::int64_t v = 0; v < adjacency.vertices(); ++v) {
    for (std::int32_t u : adjacency.row(v)) {
      if (labels[u] == labels[v]) continue;
      columns.insert({u, labels[v]});
      rows.insert({v, labels[u]});
    }
  }
  std::vector<std::int64_t> sent(parts, 0), received(parts, 0);
  for (const auto& [u, part] : columns) {
    ++sent[labels[u]];
    ++received[part];
  }
  for (int threads : {1, 4}) {
    const auto volumes = spgnn::VolumeCounter(adjacency, labels, parts, threads, 1 << 20, {})();
    expect(volumes.column.send == sent, "rows sent", matrix.name, parts);
    expect(volumes.column.receive == received, "rows received", matrix.name, parts);
    const auto& by_row = volumes.row.send;
    expect(std::accumulate(by_row.begin(), by_row.end(), std::int64_t{0}) == std::ssize(rows),
           "partial sums", matrix.name, parts);
    const auto minimum = spgnn::count_minimum_covers(adjacency, labels, parts, 1, threads, {});
    const auto transposed = spgnn::transpose(adjacency);
    const auto n = static_cast<Vertex>(adjacency.vertices());
    const spgnn::gvb::WeightedVertices vertices{n, 1, row_lengths(adjacency)};
    Options options;
    options.parts = parts;
    options.threads = threads;
    const spgnn::gvb::CoverState state(adjacency, {transposed.indptr, transposed.indices}, vertices,
                                       labels, options);
    expect(minimum.all.send == state.send() && minimum.all.receive == state.receive(),
           "minimum covers", matrix.name, parts);
    expect(minimum.between.send == minimum.all.send, "nodes of one part", matrix.name, parts);
  }
}

// Vertex cuts: chunks of rows, owners, counts with one thread and with several.
void test_vertex_cut(const Matrix& matrix, const std::vector<Part>& labels, int parts) {
  const Adjacency adjacency = matrix.adjacency();
  const std::int64_t n = adjacency.vertices(), most = adjacency.edges() / parts + 2;
  std::vector<std::int32_t> edges(matrix.indices.size());
  spgnn::Libra libra(n, parts, most, 7);
  for (std::int64_t first = 0, last = 0; first < n; first = last) {
    last = std::min(n, first + 100);
    const std::int64_t begin = matrix.indptr[first], size = matrix.indptr[last] - begin;
    libra.add(first, {matrix.indptr.data() + first, static_cast<std::size_t>(last - first + 1)},
              {matrix.indices.data() + begin, static_cast<std::size_t>(size)},
              {edges.data() + begin, static_cast<std::size_t>(size)});
  }
  std::vector<std::int64_t> load(parts);
  for (std::int32_t part : edges) ++load[part];
  expect(std::ranges::max(load) <= most, "a part above Libra's limit", matrix.name, parts);
  std::vector<std::vector<std::int32_t>> owners, degrees;
  std::vector<spgnn::CutCount> cuts;
  std::vector<spgnn::LevelCount> levels;
  for (int threads : {1, 4}) {
    const spgnn::Touching touching(adjacency, edges, parts, threads);
    owners.push_back(spgnn::Masters(touching, n, parts, n / parts + 1)());
    cuts.push_back(spgnn::count_cut(adjacency, edges, owners.back(), touching, parts, threads));
    degrees.emplace_back(edges.size());
    spgnn::lower_degree_labels(adjacency, labels, threads, degrees.back());
    levels.push_back(spgnn::count_levels(adjacency, labels, parts, 1, threads));
  }
  expect(owners[0] == owners[1], "owners depend on threads", matrix.name, parts);
  expect(cuts[0].expand_send == cuts[1].expand_send && cuts[0].fold_send == cuts[1].fold_send &&
             cuts[0].nonzeros == cuts[1].nonzeros && cuts[0].touched == cuts[1].touched,
         "a vertex cut depends on threads", matrix.name, parts);
  expect(degrees[0] == degrees[1], "edge labels depend on threads", matrix.name, parts);
  expect(levels[0].once_send == levels[1].once_send && levels[0].once_send == levels[0].flat_send,
         "rows between nodes of one part", matrix.name, parts);
}

std::vector<Part> run_gvb(const Matrix& matrix, const Options& options, bool cover,
                          const std::vector<Part>* initial) {
  const Adjacency adjacency = matrix.adjacency();
  const auto n = static_cast<Vertex>(adjacency.vertices());
  const spgnn::gvb::WeightedVertices vertices{n, 1, row_lengths(adjacency)};
  if (cover) {
    spgnn::gvb::CoverPartitioner partitioner(adjacency, vertices, options);
    return initial ? partitioner.improve(*initial) : partitioner();
  }
  spgnn::gvb::Hypergraph h = spgnn::gvb::column_hypergraph(adjacency);
  static_cast<spgnn::gvb::WeightedVertices&>(h) = vertices;
  spgnn::gvb::Multilevel multilevel(h, options);
  return initial ? multilevel.improve(*initial) : multilevel();
}

std::vector<Part> test_gvb(const Matrix& matrix, int parts, const Options& chosen, bool cover,
                           const std::vector<Part>* initial = nullptr) {
  Options options = chosen;
  options.parts = parts;
  const auto lengths = row_lengths(matrix.adjacency());
  const auto total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  options.max_weight.assign(parts, total * 110 / 100 / parts);
  options.progress = [](const char*, double) {};
  std::vector<Part> first;
  for (int threads : {1, 4}) {
    options.threads = threads;
    const std::vector<Part> labels = run_gvb(matrix, options, cover, initial);
    if (threads == 1) first = labels;
    expect(labels == first, "gvb depends on the number of threads", matrix.name, parts);
    for (Part label : labels) expect(label >= 0 && label < parts, "label", matrix.name, parts);
  }
  return first;
}

void test_stream(const Matrix& matrix, int parts) {
  const auto nets = spgnn::column_nets(matrix.adjacency());
  const Adjacency columns{nets.indptr, nets.indices};
  const auto weights = row_lengths(matrix.adjacency());
  std::vector<std::int32_t> first;
  for (int threads : {1, 4}) {
    const auto total = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    const spgnn::gvb::Bound bounds(parts, total * 21 / 20 / parts + 1);
    const spgnn::StreamOptions options{parts, bounds, {}, 1, 3, 3, threads, true};
    auto found =
        spgnn::StreamPartitioner(matrix.adjacency(), columns, weights, options, {}).partition();
    std::vector<std::int32_t> labels(found.begin(), found.end());
    if (threads == 1) first = labels;
    expect(labels == first, "stream depends on the number of threads", matrix.name, parts);
  }
}

std::int64_t cost_of(const spgnn::gvb::Hypergraph& h, const std::vector<Part>& labels, int parts) {
  return spgnn::gvb::VolumeState(h, labels, parts).total();
}

std::int64_t cost_of(const spgnn::gvb::CutGraph& graph, const std::vector<Part>& labels,
                     int parts) {
  const auto cut = spgnn::gvb::cut_of_parts(graph, labels, parts);
  return std::accumulate(cut.begin(), cut.end(), std::int64_t{0});
}

bool has_no_loops(const spgnn::gvb::Hypergraph&) { return true; }

bool has_no_loops(const spgnn::gvb::CutGraph& graph) {
  for (Vertex v = 0; v < graph.num_vertices; ++v) {
    for (const auto& edge : graph.edges_of(v)) {
      if (edge.to == v) return false;
    }
  }
  return true;
}

// Labels of a coarse level cost as much there as on all finer ones, and weights stay what they are.
template <class Graph> void test_coarsening(const Matrix& matrix, const Graph& graph, bool rooted) {
  constexpr int kParts = 5;
  spgnn::gvb::Random random(3);
  spgnn::gvb::CoarsenOptions options;
  options.rooted = rooted;
  for (std::int64_t total : graph.total_weight()) options.max_weight.push_back(total / 10);
  const auto levels = spgnn::gvb::coarsen(graph, options, 20, random);
  expect(levels.size() >= 2, "coarsening stalls", matrix.name, kParts);
  const Graph& coarsest = spgnn::gvb::coarsest(graph, levels);
  std::vector<Part> labels(coarsest.num_vertices);
  for (Part& label : labels) label = static_cast<Part>(random.below(kParts));
  const std::int64_t cost = cost_of(coarsest, labels, kParts);
  spgnn::gvb::uncoarsen(graph, levels, labels, [&](const Graph& finer, std::vector<Part>& found) {
    expect(cost_of(finer, found, kParts) == cost, "cost of a level", matrix.name, kParts);
    expect(finer.total_weight() == graph.total_weight(), "weight of a level", matrix.name, kParts);
    expect(has_no_loops(finer), "loops", matrix.name, kParts);
  });
  for (std::int64_t weight : coarsest.vertex_weight) {
    expect(weight <= std::max(options.max_weight[0], std::ranges::max(graph.vertex_weight)),
           "a cluster is too heavy", matrix.name, kParts);
  }
}

void test_coarsening(const Matrix& matrix) {
  spgnn::gvb::Hypergraph h = spgnn::gvb::column_hypergraph(matrix.adjacency());
  h.vertex_weight = row_lengths(matrix.adjacency());
  test_coarsening(matrix, h, true);
  test_coarsening(matrix, h, false);
  test_coarsening(matrix, spgnn::gvb::star_graph(h, 7), true);
  spgnn::gvb::Split split(matrix.indices.size());
  for (std::size_t e = 0; e < split.size(); ++e) split[e] = e % 3 == 0;
  spgnn::gvb::Hypergraph both = spgnn::gvb::split_hypergraph(matrix.adjacency(), split);
  both.vertex_weight = h.vertex_weight;
  test_coarsening(matrix, both, true);
}

void test_matrix(const Matrix& matrix, int parts) {
  Options fast, defaults, strong, receive;
  fast.starts = 1;
  fast.cycles = 0;
  fast.peak_rounds = 1;
  strong.starts = 8;
  strong.net_start_above = -1;  // bisect the nets, too
  strong.net_start_below = 1;
  receive.receive = true;
  test_gvb(matrix, parts, fast, false);
  test_gvb(matrix, parts, strong, false);
  test_gvb(matrix, parts, receive, false);
  test_gvb(matrix, parts, defaults, true);
  const std::vector<Part> labels = test_gvb(matrix, parts, defaults, false);
  test_gvb(matrix, parts, defaults, false, &labels);
  test_report(matrix, labels, parts);
  test_vertex_cut(matrix, labels, parts);
  test_stream(matrix, parts);
  expect(std::ssize(spgnn::column_nets(matrix.adjacency()).indptr) == std::ssize(matrix.indptr),
         "one net a column", matrix.name, parts);
}

}  // namespace

int main() {
  const std::vector<Matrix> matrices{random_matrix("a directed graph", 600, 4, 0, false),
                                     random_matrix("a graph with hubs", 500, 5, 3, true),
                                     random_matrix("hardly any edges", 300, 1, 0, true)};
  for (const Matrix& matrix : matrices) {
    test_coarsening(matrix);
    for (int parts : {2, 7, 70}) test_matrix(matrix, parts);
  }
  if (failures == 0) std::puts("all partition tests passed");
  return failures == 0 ? 0 : 1;
}
