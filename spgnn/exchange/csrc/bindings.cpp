#include <nanobind/stl/optional.h>

#include "agents.hpp"
#include "arrays.hpp"
#include "demand.hpp"
#include "halo_edges.hpp"
#include "minimum_cover.hpp"

namespace nb = nanobind;
using spgnn::python::Array, spgnn::python::Output, spgnn::python::span_of, spgnn::python::to_numpy,
    spgnn::python::unlocked;

namespace {

template <class Position>
nb::tuple block_tuple(spgnn::SplitBlock<Position>&& block) {
  return nb::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices)),
                        to_numpy(std::move(block.sources)));
}

template <class Index, class Position>
nb::tuple inspect(const spgnn::Rows<Index>& rows, const spgnn::Owners& owners,
                  std::int64_t own_first, std::int64_t own_last, spgnn::Cover cover,
                  bool weighted) {
  auto found = unlocked([&] {
    return spgnn::Inspector<Index, Position>(rows, owners, own_first, own_last, weighted)
        .run(cover);
  });
  auto& demand = found.demand;
  return nb::make_tuple(
      block_tuple(std::move(found.L)), block_tuple(std::move(found.R)),
      nb::make_tuple(to_numpy(std::move(demand.rows_by_peer)),
                     to_numpy(std::move(demand.entries_by_peer)),
                     to_numpy(std::move(demand.lengths)), to_numpy(std::move(demand.columns)),
                     to_numpy(std::move(demand.sources))));
}

template <class Index>
nb::tuple demand(Array<std::int64_t> indptr, Array<Index> indices, Array<std::int64_t> offsets,
                 Array<std::int64_t> members, std::int64_t me, int cover, bool weighted) {
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

template <class Id>
nb::tuple halo_edges(Array<Id> from, Array<Id> to, Array<std::int64_t> source_offsets,
                     std::optional<Array<std::int32_t>> source_numbers,
                     Array<std::int64_t> target_offsets,
                     std::optional<Array<std::int32_t>> target_numbers, std::int64_t me,
                     Output<std::int64_t> rows, Output<std::int64_t> ends) {
  const auto parts = static_cast<std::int64_t>(source_offsets.size()) - 1;
  const spgnn::OwnedIds sources{source_offsets.data(), parts, span_of(source_numbers)};
  const spgnn::OwnedIds targets{target_offsets.data(), parts, span_of(target_numbers)};
  auto found = unlocked([&] {
    return spgnn::HaloInspector<Id>(sources, targets, me)
        .run(span_of(from), span_of(to), rows.data(), ends.data());
  });
  return nb::make_tuple(to_numpy(std::move(found.rows_by_peer)),
                        to_numpy(std::move(found.columns)));
}

nb::tuple minimum_vertex_cover(Array<std::int64_t> begin, Array<std::int64_t> columns,
                               std::int64_t num_columns) {
  std::vector<std::uint8_t> row_cover, column_cover;
  unlocked([&] {
    const spgnn::BipartiteGraph<std::int64_t> graph{span_of(begin), span_of(columns), num_columns};
    spgnn::MinimumVertexCover<std::int64_t>()(graph, row_cover, column_cover);
  });
  return nb::make_tuple(to_numpy(std::move(row_cover)), to_numpy(std::move(column_cover)));
}

nb::object choose_agents(Array<std::int64_t> block, Array<std::int64_t> home,
                         Array<std::int64_t> begin, Array<std::int64_t> candidate,
                         std::int64_t blocks, std::int64_t ranks) {
  return to_numpy(spgnn::choose_agents(
      {span_of(block), span_of(home), span_of(begin), span_of(candidate)}, blocks, ranks));
}

}  // namespace

void bind_exchange(nb::module_& m) {
  const char* doc =
      "(L, R, demand) of some rows: L and R as (indptr, indices, sources), the demand as "
      "(rows by peer, entries by peer, lengths, columns, sources). Covers: 0 column, 1 row, 2 "
      "minimum.";
  m.def("demand", &demand<std::int32_t>, doc);
  m.def("demand", &demand<std::int64_t>, doc);
  const char* halo =
      "Writes edges in the numbers of a rank's halo; (rows by peer, columns) that it needs of its "
      "peers. Raises InputError for edges that do not end at its own ids.";
  m.def("halo_edges", &halo_edges<std::int32_t>, halo);
  m.def("halo_edges", &halo_edges<std::int64_t>, halo);
  m.def("minimum_vertex_cover", &minimum_vertex_cover, nb::arg("begin"), nb::arg("columns"),
        nb::arg("num_columns"), "Masks (rows, columns), uint8, of one minimum vertex cover.");
  m.def("choose_agents", &choose_agents, nb::arg("block"), nb::arg("home"), nb::arg("begin"),
        nb::arg("candidate"), nb::arg("blocks"), nb::arg("ranks"),
        "The rank of a node through which each thing crosses, int64 [things].");
}
