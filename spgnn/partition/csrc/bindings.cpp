#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "stream.hpp"
#include "vertex_cut.hpp"
#include "volume.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace spgnn::python;

namespace spgnn {

// METIS's partition format: one label a line.

// The beginning of a field for one line of a message: what is no printable ASCII as \xHH.
inline std::string quoted(std::string_view field) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown = "'";
  for (const char c : field.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return shown + "'";
}

// Fills `labels`; throws std::invalid_argument "line N: what is wrong" (line 1 is the first).
inline void parse_labels(std::string_view text, i64 lowest, i64 parts, std::span<i32> labels) {
  auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  auto wrong = [](std::size_t line, const std::string& what) {
    throw std::invalid_argument("line " + std::to_string(line) + ": " + what);
  };
  while (!text.empty() && (is_space(text.back()) || text.back() == '\n')) text.remove_suffix(1);
  std::size_t count = 0;
  while (!text.empty()) {
    std::size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
    while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
    if (count == labels.size()) {
      wrong(count + 1,
            "one label too many; the graph has " + std::to_string(labels.size()) + " vertices");
    }
    i64 label = 0;
    auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), label);
    if (error != std::errc() || end != line.data() + line.size()) {
      wrong(count + 1, quoted(line) + " is not a label (an integer)");
    }
    if (label < lowest || label >= parts) {
      wrong(count + 1, "label " + std::to_string(label) + " is outside [" + std::to_string(lowest) +
                           ", " + std::to_string(parts) + ")");
    }
    labels[count++] = static_cast<i32>(label);
  }
  if (count < labels.size()) {
    wrong(count + 1, "the file ends after " + std::to_string(count) + " labels; the graph has " +
                         std::to_string(labels.size()) + " vertices");
  }
}

inline std::string format_labels(std::span<const i32> labels) {
  std::string text;
  text.reserve(labels.size() * 4);
  char digits[12];
  for (i32 label : labels) {
    char* end = std::to_chars(digits, digits + sizeof digits, label).ptr;
    *end++ = '\n';
    text.append(digits, end);
  }
  return text;
}

}  // namespace spgnn

namespace {

using Pattern = Array<i64>;
using Indices = Array<i32>;

spgnn::Adjacency adjacency_of(const Pattern& indptr, const Indices& indices) {
  return {span_of(indptr), span_of(indices)};
}

nb::tuple volume_tuple(spgnn::CoverVolume&& volume) {
  return to_tuple(std::move(volume.send), std::move(volume.receive), std::move(volume.blocks));
}

nb::tuple count_volumes(Pattern indptr, Indices indices, Indices labels, i64 parts, int threads,
                        i64 table_bytes, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  auto count = unlocked([&] {
    return spgnn::VolumeCounter(adjacency_of(indptr, indices), span_of(labels), parts, threads,
                                table_bytes, tick)();
  });
  return nb::make_tuple(volume_tuple(std::move(count.column)), volume_tuple(std::move(count.row)),
                        count.edge_cut);
}

nb::tuple count_minimum_covers(Pattern indptr, Indices indices, Indices labels, i64 parts,
                               i64 parts_per_node, int threads, nb::object progress) {
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
  return to_tuple(std::move(graph.indptr), std::move(graph.indices));
}

nb::object stream_partition(Pattern indptr, Indices indices, Pattern column_indptr,
                            Indices column_indices, Array<i64> weights, std::vector<i64> max_weight,
                            std::optional<Indices> fixed, bool receive, u64 seed,
                            int cluster_passes, int refine_passes, std::optional<Indices> initial,
                            int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::StreamOptions options{
      std::ssize(max_weight), std::move(max_weight), span_of(fixed), seed,
      cluster_passes,         refine_passes,         threads,        receive};
  return to_numpy(unlocked([&] {
    spgnn::StreamPartitioner partitioner(adjacency_of(indptr, indices),
                                         adjacency_of(column_indptr, column_indices),
                                         span_of(weights), options, tick);
    if (!initial) return partitioner.partition();
    spgnn::BigArray<i32> labels(initial->size());
    std::copy_n(initial->data(), initial->size(), labels.begin());
    partitioner.refine(labels);
    return labels;
  }));
}

void libra_add(spgnn::Libra& libra, i64 first, Pattern indptr, Indices columns,
               Output<i32> labels) {
  unlocked([&] { libra.add(first, span_of(indptr), span_of(columns), span_of(labels)); });
}

nb::object lower_degree_labels(Pattern indptr, Indices indices, Indices owners, int threads) {
  return to_numpy(unlocked([&] {
    std::vector<i32> labels(indices.size());
    spgnn::lower_degree_labels(adjacency_of(indptr, indices), span_of(owners), threads, labels);
    return labels;
  }));
}

nb::tuple count_cut(Pattern indptr, Indices indices, Indices labels, std::optional<Indices> given,
                    i64 parts, i64 most_vertices, int threads) {
  const spgnn::Adjacency adjacency = adjacency_of(indptr, indices);
  std::vector<i32> owners;
  auto count = unlocked([&] {
    const spgnn::Touching touching(adjacency, span_of(labels), parts, threads);
    const auto known = span_of(given);
    owners.assign(known.begin(), known.end());
    if (owners.empty()) {
      owners = spgnn::Masters(touching, adjacency.vertices(), parts, most_vertices)();
    }
    return spgnn::count_cut(adjacency, span_of(labels), owners, touching, parts, threads);
  });
  return to_tuple(std::move(owners), std::move(count.nonzeros), std::move(count.touched),
                  std::move(count.expand_send), std::move(count.expand_receive),
                  std::move(count.fold_send), std::move(count.fold_receive));
}

nb::tuple count_levels(Pattern indptr, Indices indices, Indices labels, i64 parts,
                       i64 parts_per_node, int threads) {
  auto count = unlocked([&] {
    return spgnn::count_levels(adjacency_of(indptr, indices), span_of(labels), parts,
                               parts_per_node, threads);
  });
  return to_tuple(std::move(count.flat_send), std::move(count.flat_receive),
                  std::move(count.once_send), std::move(count.once_receive),
                  std::move(count.inside_send), std::move(count.inside_receive));
}

void parse_labels(nb::bytes text, i64 lowest, i64 parts, Output<i32> labels) {
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
      .def(nb::init<i64, i64, i64, u64>(), "vertices"_a, "parts"_a, "limit"_a, "seed"_a)
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
