#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "minimum_cover.hpp"

namespace nb = nanobind;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Mask to_numpy(std::vector<std::uint8_t>&& mask) {
  auto* kept = new std::vector<std::uint8_t>(std::move(mask));
  nb::capsule owner(kept,
                    [](void* p) noexcept { delete static_cast<std::vector<std::uint8_t>*>(p); });
  return Mask(kept->data(), {kept->size()}, owner);
}

nb::tuple minimum_vertex_cover(Array<std::int64_t> begin, Array<std::int64_t> columns,
                               std::int64_t num_columns) {
  std::vector<std::uint8_t> row_cover, column_cover;
  {
    nb::gil_scoped_release released;
    spgnn::BipartiteGraph<std::int64_t> graph{
        {begin.data(), begin.size()}, {columns.data(), columns.size()}, num_columns};
    spgnn::MinimumVertexCover<std::int64_t>()(graph, row_cover, column_cover);
  }
  return nb::make_tuple(to_numpy(std::move(row_cover)), to_numpy(std::move(column_cover)));
}

}  // namespace

NB_MODULE(_cover, m) {
  m.doc() = "Minimum vertex cover of a sparse block (Hopcroft-Karp, König).";
  m.def("minimum_vertex_cover", &minimum_vertex_cover, nb::arg("begin"), nb::arg("columns"),
        nb::arg("num_columns"), "Masks (rows, columns), uint8, of one minimum vertex cover.");
}
