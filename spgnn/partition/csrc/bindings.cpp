#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "label_file.hpp"
#include "stream.hpp"
#include "vertex_cut.hpp"
#include "volume.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace spgnn::python;

namespace {

using Pattern = Array<std::int64_t>;
using Indices = Array<std::int32_t>;

spgnn::Adjacency adjacency_of(const Pattern& indptr, const Indices& indices) {
  return {span_of(indptr), span_of(indices)};
}

nb::tuple volume_tuple(spgnn::CoverVolume&& volume) {
  return nb::make_tuple(to_numpy(std::move(volume.send)), to_numpy(std::move(volume.receive)),
                        to_numpy(std::move(volume.blocks)));
}

nb::tuple count_volumes(Pattern indptr, Indices indices, Indices labels, std::int64_t parts,
                        int threads, std::int64_t table_bytes, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  auto count = unlocked([&] {
    return spgnn::VolumeCounter(adjacency_of(indptr, indices), span_of(labels), parts, threads,
                                table_bytes, tick)();
  });
  return nb::make_tuple(volume_tuple(std::move(count.column)), volume_tuple(std::move(count.row)),
                        count.edge_cut);
}

nb::tuple count_minimum_covers(Pattern indptr, Indices indices, Indices labels, std::int64_t parts,
                               std::int64_t parts_per_node, int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  auto count = unlocked([&] {
    return spgnn::count_minimum_covers(adjacency_of(indptr, indices), span_of(labels), parts,
                                       parts_per_node, threads, tick);
  });
  return nb::make_tuple(volume_tuple(std::move(count.all)), volume_tuple(std::move(count.between)));
}

template <spgnn::Graph (*Derive)(const spgnn::Adjacency&)>
nb::tuple derived(Pattern indptr, Indices indices) {
  auto graph = unlocked([&] { return Derive(adjacency_of(indptr, indices)); });
  return nb::make_tuple(to_numpy(std::move(graph.indptr)), to_numpy(std::move(graph.indices)));
}

nb::object stream_partition(Pattern indptr, Indices indices, Pattern column_indptr,
                            Indices column_indices, Array<std::int64_t> weights,
                            std::vector<std::int64_t> max_weight, std::optional<Indices> fixed,
                            bool receive, std::uint64_t seed, int cluster_passes, int refine_passes,
                            std::optional<Indices> initial, int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::StreamOptions options{
      std::ssize(max_weight), std::move(max_weight), span_of(fixed), seed,
      cluster_passes,         refine_passes,         threads,        receive};
  return to_numpy(unlocked([&] {
    spgnn::StreamPartitioner partitioner(adjacency_of(indptr, indices),
                                         adjacency_of(column_indptr, column_indices),
                                         span_of(weights), options, tick);
    if (!initial) return partitioner.partition();
    spgnn::BigArray<std::int32_t> labels(initial->size());
    std::copy_n(initial->data(), initial->size(), labels.begin());
    partitioner.refine(labels);
    return labels;
  }));
}

void libra_add(spgnn::Libra& libra, std::int64_t first, Pattern indptr, Indices columns,
               Output<std::int32_t> labels) {
  unlocked([&] { libra.add(first, span_of(indptr), span_of(columns), span_of(labels)); });
}

nb::object lower_degree_labels(Pattern indptr, Indices indices, Indices owners, int threads) {
  return to_numpy(unlocked([&] {
    std::vector<std::int32_t> labels(indices.size());
    spgnn::lower_degree_labels(adjacency_of(indptr, indices), span_of(owners), threads, labels);
    return labels;
  }));
}

nb::tuple count_cut(Pattern indptr, Indices indices, Indices labels, std::optional<Indices> given,
                    std::int64_t parts, std::int64_t most_vertices, int threads) {
  const spgnn::Adjacency adjacency = adjacency_of(indptr, indices);
  std::vector<std::int32_t> owners;
  auto count = unlocked([&] {
    const spgnn::Touching touching(adjacency, span_of(labels), parts, threads);
    const auto known = span_of(given);
    owners.assign(known.begin(), known.end());
    if (owners.empty()) {
      owners = spgnn::Masters(touching, adjacency.vertices(), parts, most_vertices)();
    }
    return spgnn::count_cut(adjacency, span_of(labels), owners, touching, parts, threads);
  });
  return nb::make_tuple(to_numpy(std::move(owners)), to_numpy(std::move(count.nonzeros)),
                        to_numpy(std::move(count.touched)), to_numpy(std::move(count.expand_send)),
                        to_numpy(std::move(count.expand_receive)),
                        to_numpy(std::move(count.fold_send)),
                        to_numpy(std::move(count.fold_receive)));
}

nb::tuple count_levels(Pattern indptr, Indices indices, Indices labels, std::int64_t parts,
                       std::int64_t parts_per_node, int threads) {
  auto count = unlocked([&] {
    return spgnn::count_levels(adjacency_of(indptr, indices), span_of(labels), parts,
                               parts_per_node, threads);
  });
  return nb::make_tuple(
      to_numpy(std::move(count.flat_send)), to_numpy(std::move(count.flat_receive)),
      to_numpy(std::move(count.once_send)), to_numpy(std::move(count.once_receive)),
      to_numpy(std::move(count.inside_send)), to_numpy(std::move(count.inside_receive)));
}

void parse_labels(nb::bytes text, std::int64_t lowest, std::int64_t parts,
                  Output<std::int32_t> labels) {
  spgnn::parse_labels({text.c_str(), text.size()}, lowest, parts, span_of(labels));
}

nb::bytes format_labels(Indices labels) {
  std::string text = spgnn::format_labels(span_of(labels));
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_partition(nb::module_& m) {
  m.def("count_volumes", &count_volumes, "indptr"_a, "indices"_a, "labels"_a, "parts"_a,
        "threads"_a, "table_bytes"_a, "progress"_a.none(),
        "(column, row, edge_cut); column and row are (send, receive, blocks), int64.");
  m.def("count_minimum_covers", &count_minimum_covers, "indptr"_a, "indices"_a, "labels"_a,
        "parts"_a, "parts_per_node"_a, "threads"_a, "progress"_a.none(),
        "(all, between nodes) under minimum vertex covers; both are (send, receive, blocks).");
  m.def("column_nets", &derived<spgnn::column_nets>, "indptr"_a, "indices"_a,
        "(begin, pins) of the column-net hypergraph.");
  m.def("symmetrize", &derived<spgnn::symmetrize>, "indptr"_a, "indices"_a,
        "(indptr, indices) of A + Aᵀ without the diagonal.");
  m.def("stream_partition", &stream_partition, "indptr"_a, "indices"_a, "column_indptr"_a,
        "column_indices"_a, "weights"_a, "max_weight"_a, "fixed"_a.none(), "receive"_a, "seed"_a,
        "cluster_passes"_a, "refine_passes"_a, "initial"_a.none(), "threads"_a, "progress"_a.none(),
        "Labels, int32, in O(vertices) memory. The columns of a symmetric matrix are its rows.");
  nb::class_<spgnn::Libra>(m, "Libra")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::uint64_t>(), "vertices"_a,
           "parts"_a, "limit"_a, "seed"_a)
      .def("add", &libra_add, "first"_a, "indptr"_a, "columns"_a, "labels"_a,
           "Fill the labels of the nonzeros of some rows.");
  m.def("lower_degree_labels", &lower_degree_labels, "indptr"_a, "indices"_a, "owners"_a,
        "threads"_a, "Edge labels, int32: the owner of the endpoint with fewer nonzeros.");
  m.def("count_cut", &count_cut, "indptr"_a, "indices"_a, "labels"_a, "owners"_a.none(), "parts"_a,
        "most_vertices"_a, "threads"_a,
        "(owners, nonzeros, touched, expand sent and received, fold sent and received).");
  m.def("count_levels", &count_levels, "indptr"_a, "indices"_a, "labels"_a, "parts"_a,
        "parts_per_node"_a, "threads"_a,
        "Sent and received: between nodes flat, once a node, and inside nodes.");
  m.def("parse_labels", &parse_labels, "text"_a, "lowest"_a, "parts"_a, "labels"_a,
        "Fill labels from METIS's format; ValueError names the line.");
  m.def("format_labels", &format_labels, "labels"_a, "One label a line, as bytes.");
}
