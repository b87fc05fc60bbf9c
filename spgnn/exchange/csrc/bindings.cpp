#include <nanobind/stl/optional.h>

#include "arrays.hpp"
#include "demand.hpp"
#include "minimum_cover.hpp"

namespace nb = nanobind;
using spgnn::python::Array, spgnn::python::Output, spgnn::python::span_of, spgnn::python::to_numpy,
    spgnn::python::to_tuple, spgnn::python::unlocked;

namespace spgnn {

// Agents: through which rank of a node each thing crosses that two nodes exchange.

// Things to carry, each of one block (a pair of nodes), and the ranks that could carry them.
struct Cargo {
  std::span<const i64> block;      // of each thing
  std::span<const i64> home;       // the rank that carries it for nothing
  std::span<const i64> begin;      // of its other candidates; things + 1 entries
  std::span<const i64> candidate;  // ranks; may repeat
};

// The agent of each thing. Within a block no home carries more than an even share; what is above
// that goes to the candidate that has least to carry, if it has less than the home. Deterministic.
inline std::vector<i64> choose_agents(const Cargo& cargo, i64 blocks, i64 ranks) {
  const auto things = std::ssize(cargo.block);
  std::vector<i64> share(blocks, 0), load(blocks * ranks, 0);
  for (const i64 block : cargo.block) ++share[block];
  for (auto& of_block : share) of_block = (of_block + ranks - 1) / ranks;
  std::vector<i64> agent(cargo.home.begin(), cargo.home.end()), waiting;
  for (i64 thing = 0; thing < things; ++thing) {
    auto& at_home = load[cargo.block[thing] * ranks + cargo.home[thing]];
    if (at_home < share[cargo.block[thing]]) {
      ++at_home;
    } else {
      waiting.push_back(thing);
    }
  }
  for (const i64 thing : waiting) {
    auto* carries = &load[cargo.block[thing] * ranks];
    for (i64 i = cargo.begin[thing]; i < cargo.begin[thing + 1]; ++i) {
      const i64 rank = cargo.candidate[i];
      if (carries[rank] < carries[agent[thing]]) agent[thing] = rank;
    }
    ++carries[agent[thing]];
  }
  return agent;
}

}  // namespace spgnn

namespace {

template <class Position> nb::tuple block_tuple(spgnn::SplitBlock<Position>&& block) {
  return to_tuple(std::move(block.indptr), std::move(block.indices), std::move(block.sources));
}

template <class Index, class Position>
nb::tuple inspect(const spgnn::Rows<Index>& rows, const spgnn::Owners& owners, i64 own_first,
                  i64 own_last, spgnn::Cover cover, bool weighted) {
  auto found = unlocked([&] {
    return spgnn::Inspector<Index, Position>(rows, owners, own_first, own_last, weighted)
        .run(cover);
  });
  auto& demand = found.demand;
  return nb::make_tuple(
      block_tuple(std::move(found.L)), block_tuple(std::move(found.R)),
      to_tuple(std::move(demand.rows_by_peer), std::move(demand.entries_by_peer),
               std::move(demand.lengths), std::move(demand.columns), std::move(demand.sources)));
}

template <class Index>
nb::tuple demand(Array<i64> indptr, Array<Index> indices, Array<i64> offsets, Array<i64> members,
                 i64 me, int cover, bool weighted) {
  const auto parts = std::ssize(offsets) - 1;
  const spgnn::Owners owners(offsets.data(), parts, members.data(), std::ssize(members));
  const spgnn::Rows<Index> rows{indptr.data(), indices.data(), std::ssize(indptr) - 1};
  const i64 part = members.data()[me];
  const i64 first = offsets.data()[part], last = offsets.data()[part + 1];
  const auto chosen = static_cast<spgnn::Cover>(cover);
  if (rows.nonzeros() <= std::numeric_limits<i32>::max()) {
    return inspect<Index, i32>(rows, owners, first, last, chosen, weighted);
  }
  return inspect<Index, i64>(rows, owners, first, last, chosen, weighted);
}

template <class Id>
nb::tuple halo_edges(Array<Id> from, Array<Id> to, Array<i64> source_offsets,
                     std::optional<Array<i32>> source_numbers, Array<i64> target_offsets,
                     std::optional<Array<i32>> target_numbers, i64 me, Output<i64> rows,
                     Output<i64> ends) {
  const auto parts = std::ssize(source_offsets) - 1;
  const spgnn::OwnedIds sources{source_offsets.data(), parts, span_of(source_numbers)};
  const spgnn::OwnedIds targets{target_offsets.data(), parts, span_of(target_numbers)};
  auto found = unlocked([&] {
    return spgnn::HaloInspector<Id>(sources, targets, me)
        .run(span_of(from), span_of(to), rows.data(), ends.data());
  });
  return to_tuple(std::move(found.rows_by_peer), std::move(found.columns));
}

nb::tuple minimum_vertex_cover(Array<i64> begin, Array<i64> columns, i64 num_columns) {
  std::vector<u8> row_cover, column_cover;
  unlocked([&] {
    const spgnn::BipartiteGraph<i64> graph{span_of(begin), span_of(columns), num_columns};
    spgnn::MinimumVertexCover<i64>()(graph, row_cover, column_cover);
  });
  return to_tuple(std::move(row_cover), std::move(column_cover));
}

nb::object choose_agents(Array<i64> block, Array<i64> home, Array<i64> begin, Array<i64> candidate,
                         i64 blocks, i64 ranks) {
  return to_numpy(spgnn::choose_agents(
      {span_of(block), span_of(home), span_of(begin), span_of(candidate)}, blocks, ranks));
}

}  // namespace

void bind_exchange(nb::module_& m) {
  const char* doc =
      "(L, R, demand) of some rows: L and R as (indptr, indices, sources), the demand as "
      "(rows by peer, entries by peer, lengths, columns, sources). Covers: 0 column, 1 row, 2 "
      "minimum.";
  m.def("demand", &demand<i32>, doc);
  m.def("demand", &demand<i64>, doc);
  const char* halo =
      "Writes edges in the numbers of a rank's halo; (rows by peer, columns) that it needs of its "
      "peers. Raises InputError for edges that do not end at its own ids.";
  m.def("halo_edges", &halo_edges<i32>, halo);
  m.def("halo_edges", &halo_edges<i64>, halo);
  m.def("minimum_vertex_cover", &minimum_vertex_cover, nb::arg("begin"), nb::arg("columns"),
        nb::arg("num_columns"), "Masks (rows, columns), uint8, of one minimum vertex cover.");
  m.def("choose_agents", &choose_agents, nb::arg("block"), nb::arg("home"), nb::arg("begin"),
        nb::arg("candidate"), nb::arg("blocks"), nb::arg("ranks"),
        "The rank of a node through which each thing crosses, int64 [things].");
}
