#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>

#include "neighbors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = Array<std::int64_t>;

template <class T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), array.size()};
}

template <class T>
const T* data_of(const std::optional<Array<T>>& array) {
  return array ? array->data() : nullptr;
}

template <class T>
nb::object to_numpy(spgnn::Buffer<T>&& values) {
  auto* kept = new spgnn::Buffer<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<spgnn::Buffer<T>*>(p); });
  const auto size = static_cast<std::size_t>(kept->size());
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {size}, owner));
}

spgnn::Draw draw_of(std::uint64_t seed, std::uint64_t epoch, std::uint64_t batch) {
  return {seed, epoch, batch};
}

// Keeps the arrays that it reads.
template <class Index>
class HeldNeighbors : public spgnn::Neighbors<Index> {
 public:
  HeldNeighbors(Ints indptr, Array<Index> indices, std::int64_t cols, std::optional<Ints> ids,
                std::optional<Ints> order)
      : spgnn::Neighbors<Index>({indptr.data(), indices.data(), data_of(ids), data_of(order),
                                 static_cast<std::int64_t>(indptr.size()) - 1, cols}),
        indptr_(indptr),
        indices_(indices),
        ids_(ids),
        order_(order) {}

 private:
  Ints indptr_;
  Array<Index> indices_;
  std::optional<Ints> ids_, order_;
};

nb::tuple sample_to_python(spgnn::Sampled&& sampled, bool edge_ids) {
  nb::list hops;
  for (spgnn::SampledHop& hop : sampled.hops) {
    nb::object ids = edge_ids ? to_numpy(std::move(hop.edge_ids)) : nb::none();
    hops.append(nb::make_tuple(to_numpy(std::move(hop.indptr)), to_numpy(std::move(hop.indices)),
                               ids, hop.sources));
  }
  return nb::make_tuple(to_numpy(std::move(sampled.nodes)), hops);
}

template <class Index>
nb::tuple sample(HeldNeighbors<Index>& neighbors, Ints seeds, Ints fanouts, std::uint64_t seed,
                 std::uint64_t epoch, std::uint64_t batch, bool replace, bool edge_ids,
                 int threads) {
  spgnn::Sampled sampled;
  {
    nb::gil_scoped_release released;
    sampled = neighbors.sample(span_of(seeds), span_of(fanouts), draw_of(seed, epoch, batch),
                               {replace, edge_ids, threads});
  }
  return sample_to_python(std::move(sampled), edge_ids);
}

template <class Index>
nb::tuple sample_hop(const HeldNeighbors<Index>& neighbors, Ints targets, std::int64_t fanout,
                     std::uint64_t hop, std::uint64_t seed, std::uint64_t epoch,
                     std::uint64_t batch, bool replace, bool edge_ids, int threads) {
  spgnn::Entries<Index> entries;
  {
    nb::gil_scoped_release released;
    entries = neighbors.hop(span_of(targets), fanout, hop, draw_of(seed, epoch, batch),
                            {replace, edge_ids, threads});
  }
  return nb::make_tuple(to_numpy(std::move(entries.indptr)), to_numpy(std::move(entries.columns)),
                        edge_ids ? to_numpy(std::move(entries.edge_ids)) : nb::none());
}

template <class Index>
nb::tuple relabel(Ints targets, Array<Index> columns, int threads) {
  spgnn::Buffer<std::int64_t> nodes;
  spgnn::Buffer<std::int32_t> indices;
  {
    nb::gil_scoped_release released;
    std::tie(nodes, indices) = spgnn::relabel(span_of(targets), span_of(columns), threads);
  }
  return nb::make_tuple(to_numpy(std::move(nodes)), to_numpy(std::move(indices)));
}

template <class Index>
void define_for(nb::module_& m, const char* name) {
  using Neighbors = HeldNeighbors<Index>;
  nb::class_<Neighbors>(m, name, "Rows to sample from.")
      .def(nb::init<Ints, Array<Index>, std::int64_t, std::optional<Ints>, std::optional<Ints>>(),
           "indptr"_a, "indices"_a, "cols"_a, "ids"_a.none(), "order"_a.none())
      .def("sample", &sample<Index>, "seeds"_a, "fanouts"_a, "seed"_a, "epoch"_a, "batch"_a,
           "replace"_a, "edge_ids"_a, "threads"_a,
           "(nodes, [(indptr, indices, edge_ids, sources), …])")
      .def("sample_hop", &sample_hop<Index>, "targets"_a, "fanout"_a, "hop"_a, "seed"_a, "epoch"_a,
           "batch"_a, "replace"_a, "edge_ids"_a, "threads"_a, "(indptr, columns, edge_ids)");
  m.def("relabel", &relabel<Index>, "targets"_a, "columns"_a, "threads"_a, "(nodes, indices)");
}

}  // namespace

NB_MODULE(_sampling, m) {
  m.doc() = "Neighbourhoods of a few vertices, on arrays that spgnn/sampling has checked.";
  define_for<std::int32_t>(m, "Neighbors32");
  define_for<std::int64_t>(m, "Neighbors64");
}
