#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "agents.hpp"
#include "demand.hpp"
#include "minimum_cover.hpp"

namespace nb = nanobind;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Output<T> to_numpy(spgnn::Array<T>&& array) {
  const auto size = static_cast<std::size_t>(array.size());
  T* data = array.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Output<T>(data, {size}, owner);
}

template <class Position>
nb::tuple to_numpy(spgnn::SplitBlock<Position>&& block) {
  return nb::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices)),
                        to_numpy(std::move(block.sources)));
}

template <class Index, class Position>
nb::tuple inspect(const spgnn::Rows<Index>& rows, const spgnn::Owners& owners,
                  std::int64_t own_first, std::int64_t own_last, spgnn::Cover cover,
                  bool weighted) {
  spgnn::Inspected<Position> found;
  {
    nb::gil_scoped_release released;
    found =
        spgnn::Inspector<Index, Position>(rows, owners, own_first, own_last, weighted).run(cover);
  }
  auto& demand = found.demand;
  return nb::make_tuple(
      to_numpy(std::move(found.L)), to_numpy(std::move(found.R)),
      nb::make_tuple(to_numpy(std::move(demand.rows_by_peer)),
                     to_numpy(std::move(demand.entries_by_peer)),
                     to_numpy(std::move(demand.lengths)), to_numpy(std::move(demand.columns)),
                     to_numpy(std::move(demand.sources))));
}

template <class Index>
nb::tuple demand(Input<std::int64_t> indptr, Input<Index> indices, Input<std::int64_t> offsets,
                 Input<std::int64_t> members, std::int64_t me, int cover, bool weighted) {
  const auto parts = static_cast<std::int64_t>(offsets.size()) - 1;
  const spgnn::Owners owners(offsets.data(), parts, members.data(),
                             static_cast<std::int64_t>(members.size()));
  const spgnn::Rows<Index> rows{indptr.data(), indices.data(),
                                static_cast<std::int64_t>(indptr.size()) - 1};
  const std::int64_t part = members.data()[me];
  const std::int64_t first = offsets.data()[part], last = offsets.data()[part + 1];
  const auto chosen = static_cast<spgnn::Cover>(cover);
  if (rows.nonzeros() <= std::numeric_limits<std::int32_t>::max()) {
    return inspect<Index, std::int32_t>(rows, owners, first, last, chosen, weighted);
  }
  return inspect<Index, std::int64_t>(rows, owners, first, last, chosen, weighted);
}

nb::tuple minimum_vertex_cover(Input<std::int64_t> begin, Input<std::int64_t> columns,
                               std::int64_t num_columns) {
  std::vector<std::uint8_t> row_cover, column_cover;
  {
    nb::gil_scoped_release released;
    const spgnn::BipartiteGraph<std::int64_t> graph{
        {begin.data(), begin.size()}, {columns.data(), columns.size()}, num_columns};
    spgnn::MinimumVertexCover<std::int64_t>()(graph, row_cover, column_cover);
  }
  const auto mask = [](const std::vector<std::uint8_t>& cover) {
    spgnn::Array<std::uint8_t> copy(static_cast<std::int64_t>(cover.size()));
    std::copy(cover.begin(), cover.end(), copy.data());
    return to_numpy(std::move(copy));
  };
  return nb::make_tuple(mask(row_cover), mask(column_cover));
}

Output<std::int64_t> choose_agents(Input<std::int64_t> block, Input<std::int64_t> home,
                                   Input<std::int64_t> begin, Input<std::int64_t> candidate,
                                   std::int64_t blocks, std::int64_t ranks) {
  const auto agents = spgnn::choose_agents({{block.data(), block.size()},
                                            {home.data(), home.size()},
                                            {begin.data(), begin.size()},
                                            {candidate.data(), candidate.size()}},
                                           blocks, ranks);
  spgnn::Array<std::int64_t> copy(static_cast<std::int64_t>(agents.size()));
  std::copy(agents.begin(), agents.end(), copy.data());
  return to_numpy(std::move(copy));
}

}  // namespace

void bind_exchange(nb::module_& m) {
  const char* doc =
      "(L, R, demand) of some rows: L and R as (indptr, indices, sources), the demand as "
      "(rows by peer, entries by peer, lengths, columns, sources). Covers: 0 column, 1 row, 2 "
      "minimum.";
  m.def("demand", &demand<std::int32_t>, doc);
  m.def("demand", &demand<std::int64_t>, doc);
  m.def("minimum_vertex_cover", &minimum_vertex_cover, nb::arg("begin"), nb::arg("columns"),
        nb::arg("num_columns"), "Masks (rows, columns), uint8, of one minimum vertex cover.");
  m.def("choose_agents", &choose_agents, nb::arg("block"), nb::arg("home"), nb::arg("begin"),
        nb::arg("candidate"), nb::arg("blocks"), nb::arg("ranks"),
        "The rank of a node through which each thing crosses, int64 [things].");
}
