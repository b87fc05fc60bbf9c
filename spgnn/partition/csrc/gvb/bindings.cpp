#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "cover.hpp"
#include "places.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace spgnn::gvb;
using namespace spgnn::python;

namespace {

spgnn::Adjacency adjacency_of(const Array<i64>& indptr, const Array<i32>& indices) {
  return {span_of(indptr), span_of(indices)};
}

std::vector<Part> run(const spgnn::Adjacency& adjacency, const WeightedVertices& vertices,
                      const Options& options, bool cover, const std::vector<Part>* initial) {
  if (cover) {
    CoverPartitioner partitioner(adjacency, vertices, options);
    return initial ? partitioner.improve(*initial) : partitioner();
  }
  Hypergraph h = column_hypergraph(adjacency);
  static_cast<WeightedVertices&>(h) = vertices;
  Multilevel multilevel(h, options);
  return initial ? multilevel.improve(*initial) : multilevel();
}

nb::object partition(Array<i64> indptr, Array<i32> indices, Array<i64> weights,
                     const Options& options, bool cover, std::optional<Array<Part>> fixed_parts,
                     std::optional<Array<Part>> initial, nb::object progress) {
  Options watched = options;
  watched.progress = [&](const char* stage, double fraction) {
    nb::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(stage, fraction);
  };
  return to_numpy(unlocked([&] {
    const auto fixed = span_of(fixed_parts);
    const WeightedVertices vertices{static_cast<Vertex>(indptr.size() - 1),
                                    static_cast<int>(options.max_weight.size() / options.parts),
                                    {weights.data(), weights.data() + weights.size()},
                                    {fixed.begin(), fixed.end()}};
    std::vector<Part> start;
    if (initial) start.assign(initial->data(), initial->data() + initial->size());
    return run(adjacency_of(indptr, indices), vertices, watched, cover, initial ? &start : nullptr);
  }));
}

bool canonical(Array<i64> indptr, Array<i32> indices) {
  return adjacency_of(indptr, indices).canonical();
}

// For tests: makes moves; (total, send, receive) as kept up to date, and how far gains missed.
nb::tuple replay(Array<i64> indptr, Array<i32> indices, Array<u8> split, Array<Part> labels,
                 Part parts, Array<Vertex> vertices, Array<Part> targets, Part node_size,
                 i32 outside) {
  Hypergraph h = split_hypergraph(adjacency_of(indptr, indices),
                                  Split(split.data(), split.data() + split.size()));
  h.vertex_weight.assign(h.num_vertices, 1);
  const Bound max_weight(parts, h.num_vertices);
  VolumeState state(h, {labels.data(), labels.data() + labels.size()}, parts, {node_size, outside});
  MoveFinder finder(state, max_weight);
  double error = 0;
  for (std::size_t i = 0; i < vertices.size(); ++i) {
    if (state.part(vertices(i)) == targets(i)) continue;
    const double expected = state.cost() - finder.gain(vertices(i), targets(i));
    state.move(vertices(i), targets(i));
    error = std::max(error, std::abs(state.cost() - expected));
  }
  return nb::make_tuple(
      state.total(), to_numpy(std::vector(state.send())), to_numpy(std::vector(state.receive())),
      to_numpy(std::vector(state.node_send())), to_numpy(std::vector(state.node_receive())), error);
}

// The place of each part, by what columns move, or by blocks [from × to] of rows.
nb::object place_parts(Array<i64> indptr, Array<i32> indices, Array<Part> labels, Part node_size,
                       Array<Part> kinds) {
  return to_numpy(unlocked([&] {
    const PartGraph graph =
        part_graph(adjacency_of(indptr, indices), span_of(labels), static_cast<Part>(kinds.size()));
    return Places(graph, node_size, span_of(kinds))();
  }));
}

nb::object place_blocks(Array<i64> blocks, Part node_size, Array<Part> kinds) {
  return to_numpy(unlocked([&] {
    PartGraph graph(static_cast<Part>(kinds.size()));
    for (Part p = 0; p < graph.parts(); ++p) {
      for (Part q = 0; q < graph.parts(); ++q) {
        const i64 rows = blocks(std::ssize(kinds) * p + q);
        if (rows > 0) graph.add(p, q, rows);
      }
    }
    graph.join_pairs();
    return Places(graph, node_size, span_of(kinds))();
  }));
}

// For tests: whether each vertex covers blocks with each part, uint8 [vertices × parts]; and of
// moves each made alone, whether they seem to lower the volume, and the total.
nb::tuple cover_moves(Array<i64> indptr, Array<i32> indices, Array<i64> column_indptr,
                      Array<i32> column_indices, bool symmetric, Array<Part> labels, Part parts,
                      Array<Vertex> vertices, Array<Part> targets, Part node_size, i32 outside) {
  const spgnn::Adjacency rows = adjacency_of(indptr, indices);
  const auto n = static_cast<Vertex>(rows.vertices());
  const WeightedVertices weights{n, 1, std::vector<i64>(n, 1)};
  Options options;
  options.parts = parts;
  options.nodes = {node_size, outside};
  const CoverState state(rows, symmetric ? rows : adjacency_of(column_indptr, column_indices),
                         weights, {labels.data(), labels.data() + labels.size()}, options);
  std::vector<std::vector<u8>> covering;
  for (int side = 0; side < state.sides(); ++side) {
    covering.emplace_back(static_cast<std::size_t>(n) * parts);
    for (Vertex v = 0; v < n; ++v) {
      for (Part p : state.covering(side).of(v)) covering[side][v * parts + p] = 1;
    }
  }
  std::vector<u8> lowered;
  std::vector<i64> total;
  for (std::size_t i = 0; i < vertices.size(); ++i) {
    CoverState moved = state;
    lowered.push_back(moved.try_move(vertices(i), targets(i)));
    total.push_back(moved.total());
  }
  return nb::make_tuple(to_numpy(std::vector(covering.front())),
                        to_numpy(std::vector(covering.back())), to_numpy(std::move(lowered)),
                        to_numpy(std::move(total)));
}

}  // namespace

void bind_gvb(nb::module_& m) {
  nb::class_<Options>(m, "GvbOptions")
      .def(nb::init<>())
      .def_rw("parts", &Options::parts)
      .def_rw("max_weight", &Options::max_weight)
      .def_rw("kinds", &Options::kinds)
      .def_rw("seed", &Options::seed)
      .def_rw("receive", &Options::receive)
      .def_prop_rw(
          "node_size", [](const Options& o) { return o.nodes.size; },
          [](Options& o, Part size) { o.nodes.size = size; })
      .def_prop_rw(
          "outside", [](const Options& o) { return o.nodes.outside; },
          [](Options& o, i32 rows) { o.nodes.outside = rows; })
      .def_rw("threads", &Options::threads)
      .def_rw("starts", &Options::starts)
      .def_rw("cycles", &Options::cycles)
      .def_rw("greedy_rounds", &Options::greedy_rounds)
      .def_rw("peak_rounds", &Options::peak_rounds)
      .def_rw("search_passes", &Options::search_passes)
      .def_rw("coarse_search_passes", &Options::coarse_search_passes)
      .def_rw("search_budget", &Options::search_budget)
      .def_rw("patience", &Options::patience)
      .def_prop_rw(
          "cut_rounds", [](const Options& o) { return o.cut.rounds; },
          [](Options& o, int rounds) { o.cut.rounds = rounds; })
      .def_prop_rw(
          "bisection",
          [](const Options& o) {
            const BisectionOptions& b = o.cut.bisection;
            return std::vector<int>{b.tries, b.passes, b.patience};
          },
          [](Options& o, const std::vector<int>& b) {
            o.cut.bisection = {b.at(0), b.at(1), b.at(2)};
          })
      .def_rw("alpha_coarse", &Options::alpha_coarse)
      .def_rw("alpha_fine", &Options::alpha_fine)
      .def_rw("alpha_last", &Options::alpha_last);
  m.def("gvb_partition", &partition, "indptr"_a, "indices"_a, "weights"_a, "options"_a, "cover"_a,
        "fixed"_a.none(), "initial"_a.none(), "progress"_a.none());
  m.def("place_parts", &place_parts, "indptr"_a, "indices"_a, "labels"_a, "node_size"_a, "kinds"_a);
  m.def("place_blocks", &place_blocks, "blocks"_a, "node_size"_a, "kinds"_a);
  m.def("is_canonical", &canonical, "indptr"_a, "indices"_a);
  m.def("gvb_replay", &replay, "indptr"_a, "indices"_a, "split"_a, "labels"_a, "parts"_a,
        "vertices"_a, "targets"_a, "node_size"_a = 1, "outside"_a = 1);
  m.def("gvb_cover_moves", &cover_moves, "indptr"_a, "indices"_a, "column_indptr"_a,
        "column_indices"_a, "symmetric"_a, "labels"_a, "parts"_a, "vertices"_a, "targets"_a,
        "node_size"_a, "outside"_a);
}
