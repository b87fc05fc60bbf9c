#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "derived.hpp"
#include "label_file.hpp"
#include "minimum_volume.hpp"
#include "stream.hpp"
#include "vertex_cut.hpp"
#include "volume.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), array.size()};
}

template <class T>
nb::object to_numpy(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

nb::object big_to_numpy(spgnn::BigArray<std::int32_t>&& values, std::int32_t* data,
                        std::size_t size) {
  using Holder = spgnn::BigArray<std::int32_t>;
  auto* kept = new Holder(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Holder*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>(data, {size}, owner));
}

// Lets Ctrl-C through and reports progress; runs on the thread that Python called from.
spgnn::Tick make_tick(nb::object progress) {
  return [progress](std::int64_t done, std::int64_t all) {
    nb::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done, all);
  };
}

nb::tuple volume_tuple(spgnn::CoverVolume&& volume) {
  return nb::make_tuple(to_numpy(std::move(volume.send)), to_numpy(std::move(volume.receive)),
                        to_numpy(std::move(volume.blocks)));
}

nb::tuple count_volumes(Array<std::int64_t> indptr, Array<std::int32_t> indices,
                        Array<std::int32_t> labels, std::int64_t parts, int threads,
                        std::int64_t table_bytes, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::VolumeCount count{spgnn::CoverVolume(0), spgnn::CoverVolume(0)};
  {
    nb::gil_scoped_release released;
    count = spgnn::VolumeCounter({view(indptr), view(indices)}, view(labels), parts, threads,
                                 table_bytes, tick)();
  }
  return nb::make_tuple(volume_tuple(std::move(count.column)), volume_tuple(std::move(count.row)),
                        count.edge_cut);
}

nb::tuple count_minimum_covers(Array<std::int64_t> indptr, Array<std::int32_t> indices,
                               Array<std::int32_t> labels, std::int64_t parts, int threads,
                               nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::CoverVolume volume(0);
  {
    nb::gil_scoped_release released;
    volume = spgnn::count_minimum_covers({view(indptr), view(indices)}, view(labels), parts,
                                         threads, tick);
  }
  return volume_tuple(std::move(volume));
}

template <spgnn::Graph (*Derive)(const spgnn::Adjacency&)>
nb::tuple derived(Array<std::int64_t> indptr, Array<std::int32_t> indices) {
  spgnn::Graph graph;
  {
    nb::gil_scoped_release released;
    graph = Derive({view(indptr), view(indices)});
  }
  return nb::make_tuple(to_numpy(std::move(graph.indptr)), to_numpy(std::move(graph.indices)));
}

nb::object stream_partition(Array<std::int64_t> indptr, Array<std::int32_t> indices,
                            Array<std::int64_t> weights, std::int64_t parts, double imbalance,
                            std::uint64_t seed, int cluster_passes, int refine_passes, int attempts,
                            nb::object initial, int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::StreamOptions options{parts,         imbalance, seed,   cluster_passes,
                               refine_passes, attempts,  threads};
  spgnn::BigArray<std::int32_t> labels;
  bool given = !initial.is_none();
  if (given) {
    auto array = nb::cast<Array<std::int32_t>>(initial);
    labels = spgnn::BigArray<std::int32_t>(array.size());
    std::copy(array.data(), array.data() + array.size(), labels.begin());
  }
  {
    nb::gil_scoped_release released;
    spgnn::StreamPartitioner partitioner({view(indptr), view(indices)}, view(weights), options,
                                         tick);
    if (given) {
      partitioner.refine(labels);
    } else {
      labels = partitioner.partition();
    }
  }
  std::int32_t* data = labels.data();
  std::size_t size = labels.size();
  return big_to_numpy(std::move(labels), data, size);
}

void libra_add(spgnn::Libra& libra, std::int64_t first, Array<std::int64_t> indptr,
               Array<std::int32_t> columns, Output<std::int32_t> labels) {
  nb::gil_scoped_release released;
  libra.add(first, view(indptr), view(columns), {labels.data(), labels.size()});
}

nb::object lower_degree_labels(Array<std::int64_t> indptr, Array<std::int32_t> indices,
                               Array<std::int32_t> owners, int threads) {
  std::vector<std::int32_t> labels(indices.size());
  {
    nb::gil_scoped_release released;
    spgnn::lower_degree_labels({view(indptr), view(indices)}, view(owners), threads, labels);
  }
  return to_numpy(std::move(labels));
}

nb::tuple count_cut(Array<std::int64_t> indptr, Array<std::int32_t> indices,
                    Array<std::int32_t> labels, nb::object given, std::int64_t parts,
                    std::int64_t most_vertices, int threads) {
  const spgnn::Adjacency adjacency{view(indptr), view(indices)};
  std::vector<std::int32_t> owners;
  if (!given.is_none()) {
    auto array = nb::cast<Array<std::int32_t>>(given);
    owners.assign(array.data(), array.data() + array.size());
  }
  spgnn::CutCount count(0);
  {
    nb::gil_scoped_release released;
    const spgnn::Touching touching(adjacency, view(labels), parts, threads);
    if (owners.empty()) {
      owners = spgnn::Masters(touching, adjacency.vertices(), parts, most_vertices)();
    }
    count = spgnn::count_cut(adjacency, view(labels), owners, touching, parts, threads);
  }
  return nb::make_tuple(to_numpy(std::move(owners)), to_numpy(std::move(count.nonzeros)),
                        to_numpy(std::move(count.touched)), to_numpy(std::move(count.expand_send)),
                        to_numpy(std::move(count.expand_receive)),
                        to_numpy(std::move(count.fold_send)),
                        to_numpy(std::move(count.fold_receive)));
}

nb::tuple count_levels(Array<std::int64_t> indptr, Array<std::int32_t> indices,
                       Array<std::int32_t> labels, std::int64_t parts, std::int64_t parts_per_node,
                       int threads) {
  spgnn::LevelCount count(0, 0);
  {
    nb::gil_scoped_release released;
    count = spgnn::count_levels({view(indptr), view(indices)}, view(labels), parts, parts_per_node,
                                threads);
  }
  return nb::make_tuple(
      to_numpy(std::move(count.flat_send)), to_numpy(std::move(count.flat_receive)),
      to_numpy(std::move(count.once_send)), to_numpy(std::move(count.once_receive)),
      to_numpy(std::move(count.inside_send)), to_numpy(std::move(count.inside_receive)));
}

void parse_labels(nb::bytes text, std::int64_t parts, Output<std::int32_t> labels) {
  spgnn::parse_labels({text.c_str(), text.size()}, parts, {labels.data(), labels.size()});
}

nb::bytes format_labels(Array<std::int32_t> labels) {
  std::string text = spgnn::format_labels(view(labels));
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_partition(nb::module_& m) {
  m.def("count_volumes", &count_volumes, "indptr"_a, "indices"_a, "labels"_a, "parts"_a,
        "threads"_a, "table_bytes"_a, "progress"_a.none(),
        "(column, row, edge_cut); column and row are (send, receive, blocks), int64.");
  m.def("count_minimum_covers", &count_minimum_covers, "indptr"_a, "indices"_a, "labels"_a,
        "parts"_a, "threads"_a, "progress"_a.none(),
        "(send, receive, blocks) under minimum vertex covers.");
  m.def("column_nets", &derived<spgnn::column_nets>, "indptr"_a, "indices"_a,
        "(begin, pins) of the column-net hypergraph.");
  m.def("symmetrize", &derived<spgnn::symmetrize>, "indptr"_a, "indices"_a,
        "(indptr, indices) of A + Aᵀ without the diagonal.");
  m.def("stream_partition", &stream_partition, "indptr"_a, "indices"_a, "weights"_a, "parts"_a,
        "imbalance"_a, "seed"_a, "cluster_passes"_a, "refine_passes"_a, "attempts"_a,
        "initial"_a.none(), "threads"_a, "progress"_a.none(),
        "Labels, int32, in O(vertices) memory.");
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
  m.def("parse_labels", &parse_labels, "text"_a, "parts"_a, "labels"_a,
        "Fill labels from METIS's format; ValueError names the line.");
  m.def("format_labels", &format_labels, "labels"_a, "One label a line, as bytes.");
}
