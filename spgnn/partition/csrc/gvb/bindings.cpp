#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "cover.hpp"
#include "multilevel.hpp"

namespace nb = nanobind;
using namespace spgnn::gvb;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Numpy = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Numpy<T> to_numpy(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Numpy<T>(kept->data(), {kept->size()}, owner);
}

template <class Index>
std::vector<Part> run(const Pattern<Index>& pattern, const std::vector<std::int64_t>& weights,
                      const Options& options, bool cover, const std::vector<Part>* initial) {
  if (cover) {
    CoverPartitioner<Index> partitioner(pattern, weights, options);
    return initial ? partitioner.improve(*initial) : partitioner();
  }
  Hypergraph h = column_nets(pattern);
  h.constraints = static_cast<int>(options.max_weight.size());
  h.vertex_weight = weights;
  Multilevel multilevel(h, options);
  return initial ? multilevel.improve(*initial) : multilevel();
}

template <class Index>
Numpy<Part> partition(Array<std::int64_t> begin, Array<Index> columns, Array<std::int64_t> weights,
                      const Options& options, bool cover, std::optional<Array<Part>> initial,
                      nb::object progress) {
  std::vector<Part> labels;
  Options watched = options;
  watched.progress = [&](const char* stage, double fraction) {
    nb::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(stage, fraction);
  };
  {
    nb::gil_scoped_release released;
    const Pattern<Index> pattern{{begin.data(), begin.size()}, {columns.data(), columns.size()}};
    std::vector<Part> start;
    if (initial) start.assign(initial->data(), initial->data() + initial->size());
    labels = run(pattern, {weights.data(), weights.data() + weights.size()}, watched, cover,
                 initial ? &start : nullptr);
  }
  return to_numpy(std::move(labels));
}

template <class Index>
bool canonical(Array<std::int64_t> begin, Array<Index> columns) {
  return Pattern<Index>{{begin.data(), begin.size()}, {columns.data(), columns.size()}}.canonical();
}

// For tests: makes moves one by one and returns (total, send, receive) as kept up to date on the
// way, and by how much the predicted gains missed the real change of the total.
template <class Index>
nb::tuple replay(Array<std::int64_t> begin, Array<Index> columns, Array<std::uint8_t> split,
                 Array<Part> labels, Part parts, Array<Vertex> vertices, Array<Part> targets) {
  const Pattern<Index> pattern{{begin.data(), begin.size()}, {columns.data(), columns.size()}};
  Hypergraph h = split_nets(pattern, Split(split.data(), split.data() + split.size()));
  h.vertex_weight.assign(h.num_vertices, 1);
  const std::vector<std::int64_t> max_weight{h.num_vertices};
  VolumeState state(h, {labels.data(), labels.data() + labels.size()}, parts);
  MoveFinder finder(state, max_weight);
  double error = 0;
  for (std::size_t i = 0; i < vertices.size(); ++i) {
    if (state.part(vertices(i)) == targets(i)) continue;
    const double expected = state.cost() - finder.gain(vertices(i), targets(i));
    state.move(vertices(i), targets(i));
    error = std::max(error, std::abs(state.cost() - expected));
  }
  return nb::make_tuple(state.total(), to_numpy(std::vector(state.send())),
                        to_numpy(std::vector(state.receive())), error);
}

// Rows that each part sends under minimum vertex covers.
template <class Index>
Numpy<std::int64_t> cover_send(Array<std::int64_t> begin, Array<Index> columns, Array<Part> labels,
                               Part parts) {
  const Pattern<Index> pattern{{begin.data(), begin.size()}, {columns.data(), columns.size()}};
  const std::vector<Part> part(labels.data(), labels.data() + labels.size());
  BlockCovers<Index> covers(pattern, part, parts);
  Split split(columns.size(), 0);
  covers.assign(split);
  return to_numpy(std::vector(covers.send()));
}

template <class Index>
void bind(nb::module_& m) {
  m.def("partition", &partition<Index>, nb::arg("begin"), nb::arg("columns"), nb::arg("weights"),
        nb::arg("options"), nb::arg("cover"), nb::arg("initial").none(),
        nb::arg("progress").none());
  m.def("canonical", &canonical<Index>, nb::arg("begin"), nb::arg("columns"));
  m.def("replay", &replay<Index>, nb::arg("begin"), nb::arg("columns"), nb::arg("split"),
        nb::arg("labels"), nb::arg("parts"), nb::arg("vertices"), nb::arg("targets"));
  m.def("cover_send", &cover_send<Index>, nb::arg("begin"), nb::arg("columns"), nb::arg("labels"),
        nb::arg("parts"));
}

}  // namespace

NB_MODULE(_gvb, m) {
  m.doc() = "gvb: multilevel partitioning for total and maximum volume.";
  nb::class_<Options>(m, "Options")
      .def(nb::init<>())
      .def_rw("parts", &Options::parts)
      .def_rw("max_weight", &Options::max_weight)
      .def_rw("seed", &Options::seed)
      .def_rw("receive", &Options::receive)
      .def_rw("threads", &Options::threads)
      .def_rw("starts", &Options::starts)
      .def_rw("cycles", &Options::cycles)
      .def_rw("greedy_rounds", &Options::greedy_rounds)
      .def_rw("peak_rounds", &Options::peak_rounds)
      .def_rw("search_passes", &Options::search_passes)
      .def_rw("search_budget", &Options::search_budget)
      .def_rw("patience", &Options::patience);
  bind<std::int32_t>(m);
  bind<std::int64_t>(m);
}
