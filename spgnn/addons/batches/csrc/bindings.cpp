#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "negatives.hpp"
#include "neighbors.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace spgnn::python;

namespace {

using Ints = Array<i64>;
using Keys = nb::ndarray<const u64, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;

template <class T> const T* data_of(const std::optional<Array<T>>& array) {
  return array ? array->data() : nullptr;
}

template <class T> nb::object to_numpy_if(bool there, spgnn::Buffer<T>&& values) {
  return there ? to_numpy(std::move(values)) : nb::none();
}

spgnn::Draw draw_of(const Keys& keys, std::size_t i) {
  return {keys(i, 0), keys(i, 1), keys(i, 2)};
}

nb::tuple to_python(spgnn::Sampled&& sampled, bool edge_ids) {
  nb::list hops;
  for (spgnn::SampledHop& hop : sampled.hops) {
    hops.append(nb::make_tuple(to_numpy(std::move(hop.indptr)), to_numpy(std::move(hop.indices)),
                               to_numpy_if(edge_ids, std::move(hop.edge_ids)),
                               to_numpy_if(hop.weighted, std::move(hop.weights)), hop.sources));
  }
  nb::list nodes, roots;
  for (auto& of_type : sampled.nodes) nodes.append(to_numpy(std::move(of_type)));
  for (auto& of_type : sampled.roots) roots.append(to_numpy(std::move(of_type)));
  return nb::make_tuple(nodes, hops, roots);
}

// Samples of some batches: one with all threads, or many with one each.
template <class SampleOne>
nb::list sample_all(std::size_t batches, int threads, bool edge_ids, const SampleOne& sample) {
  std::vector<spgnn::Sampled> sampled(batches);
  {
    nb::gil_scoped_release released;
    if (batches == 1) {
      sampled[0] = sample(0, threads);
    } else {
      spgnn::parallel_chunks(batches, threads, [&](i64 b, int) { sampled[b] = sample(b, 1); });
    }
  }
  nb::list samples;
  for (spgnn::Sampled& one : sampled) samples.append(to_python(std::move(one), edge_ids));
  return samples;
}

// Rows to sample from; keeps the arrays that it reads, and makes tables of the weights.
template <class Index> class Graph {
 public:
  Graph(Ints indptr, Array<Index> indices, i64 cols, std::optional<Ints> ids,
        std::optional<Ints> column_ids, std::optional<Ints> order, std::optional<Ints> times,
        std::optional<Array<double>> weights, bool first_entries, int threads)
      : indptr_(indptr), indices_(indices), ids_(ids), column_ids_(column_ids), order_(order),
        times_(times), tables_(cols) {
    const i64 rows = std::ssize(indptr) - 1;
    if (weights) {
      nb::gil_scoped_release released;
      if (first_entries) sums_ = spgnn::row_sums(indptr.data(), rows, weights->data(), threads);
      if (!times) {
        buckets_ =
            spgnn::alias_tables(indptr.data(), indices.data(), rows, weights->data(), threads);
      }
    }
    view_ = {indptr.data(),  indices.data(),
             data_of(ids),   data_of(column_ids),
             data_of(order), data_of(times),
             sums_.data(),   buckets_.data(),
             rows,           cols};
  }

  nb::list neighbors(const std::vector<Ints>& seeds, const std::vector<Ints>& limits, Ints fanouts,
                     Keys draws, int strategy, bool replace, bool disjoint, bool directed,
                     bool resample, bool edge_ids, int threads) {
    const spgnn::HopOptions options{{}, replace, disjoint, directed, resample, edge_ids};
    const spgnn::Relation<Index> square[]{{&view_}};
    const spgnn::Strategy strategies[]{static_cast<spgnn::Strategy>(strategy)};
    spgnn::Tables* const types[]{&tables_};
    return sample_all(seeds.size(), threads, edge_ids, [&](std::size_t b, int own) {
      const auto latest = limits.empty() ? std::span<const i64>() : span_of(limits[b]);
      const std::span<const i64> of_type[]{span_of(seeds[b])};
      return spgnn::sample_neighbors<Index>(square, strategies, types, of_type, latest,
                                            span_of(fanouts), draw_of(draws, b), options, own);
    });
  }

  nb::tuple hop(Ints targets, std::optional<Ints> roots, std::optional<Ints> limits, i64 fanout,
                u64 hop, Keys draw, int strategy, bool replace, bool edge_ids, int threads) const {
    const spgnn::HopOptions options{
        static_cast<spgnn::Strategy>(strategy), replace, false, true, true, edge_ids};
    auto entries = unlocked([&] {
      return spgnn::sample_hop(view_, span_of(targets), span_of(roots), span_of(limits), fanout,
                               hop, draw_of(draw, 0), options, threads);
    });
    return nb::make_tuple(to_numpy(std::move(entries.indptr)), to_numpy(std::move(entries.columns)),
                          to_numpy_if(edge_ids, std::move(entries.edge_ids)),
                          to_numpy_if(entries.weighted, std::move(entries.weights)));
  }

  nb::list labor(const std::vector<Ints>& seeds, Ints fanouts, Keys draws, i64 first_hop,
                 int iterations, bool same_every_hop, bool edge_ids, int threads) {
    const spgnn::LaborOptions options{iterations, same_every_hop, edge_ids};
    return sample_all(seeds.size(), threads, edge_ids, [&](std::size_t b, int own) {
      const auto hop = [&](i64 k, const spgnn::Targets<Index>& targets, auto*) {
        const spgnn::HopDraws hashes(draw_of(draws, b), same_every_hop ? 0 : first_hop + k);
        return spgnn::LaborHop<Index>(view_, tables_, targets, fanouts(k), hashes, options, own)
            .run();
      };
      return spgnn::sample_layers(view_, tables_, span_of(seeds[b]), fanouts.size(), own, hop);
    });
  }

  nb::list ladies(const std::vector<Ints>& seeds, Ints counts, Keys draws, i64 first_hop,
                  Array<double> squares, bool edge_ids, int threads) {
    return sample_all(seeds.size(), threads, edge_ids, [&](std::size_t b, int own) {
      const auto hop = [&](i64 k, const spgnn::Targets<Index>& targets, auto*) {
        const spgnn::HopDraws hashes(draw_of(draws, b), first_hop + k);
        return spgnn::ladies_hop(view_, tables_, targets, squares.data(), counts(k), hashes,
                                 edge_ids, own);
      };
      return spgnn::sample_layers(view_, tables_, span_of(seeds[b]), counts.size(), own, hop);
    });
  }

  nb::list fastgcn(const std::vector<Ints>& seeds, Ints counts, Keys draws, i64 first_hop,
                   const Graph& vertices, bool edge_ids, int threads) {
    return sample_all(seeds.size(), threads, edge_ids, [&](std::size_t b, int own) {
      const auto hop = [&](i64 k, const spgnn::Targets<Index>& targets, auto*) {
        const spgnn::HopDraws hashes(draw_of(draws, b), first_hop + k);
        return spgnn::fastgcn_hop(view_, vertices.view_, tables_, targets, counts(k), hashes,
                                  edge_ids, own);
      };
      return spgnn::sample_layers(view_, tables_, span_of(seeds[b]), counts.size(), own, hop);
    });
  }

  // All entries between some vertices, as a hop of no draws that leads to no new ones.
  nb::list induced(const std::vector<Ints>& vertices, bool edge_ids, int threads) {
    return sample_all(vertices.size(), threads, edge_ids, [&](std::size_t b, int own) {
      return spgnn::induced_sample(view_, tables_, span_of(vertices[b]), edge_ids, own);
    });
  }

  const spgnn::Rows<Index>& view() const { return view_; }

  nb::object walks(Ints starts, i64 length, Keys draw, int threads) const {
    return to_numpy(unlocked([&] {
      return spgnn::random_walks(view_, span_of(starts), length, draw_of(draw, 0), threads);
    }));
  }

  nb::object negatives(Ints sources, i64 count, const Graph& vertices, bool by_weight,
                       bool excluded, Keys draw, int threads) const {
    return to_numpy(unlocked([&] {
      const spgnn::Negatives<Index> negatives(view_, vertices.view_, by_weight, excluded);
      return negatives.draw(span_of(sources), count, draw_of(draw, 0), threads);
    }));
  }

 private:
  Ints indptr_;
  Array<Index> indices_;
  std::optional<Ints> ids_, column_ids_, order_, times_;
  spgnn::Tables tables_;
  spgnn::Buffer<double> sums_;
  spgnn::BigArray<spgnn::Bucket<Index>> buckets_;
  spgnn::Rows<Index> view_;
};

// Relations between vertices of several types; graphs are rows of a target type.
template <class Index> class Relations {
 public:
  Relations(const std::vector<Graph<Index>*>& graphs, const std::vector<int>& sources,
            const std::vector<int>& targets, const std::vector<int>& strategies,
            const std::vector<i64>& sizes) {
    for (std::size_t r = 0; r < graphs.size(); ++r) {
      graphs_.append(nb::find(graphs[r]));
      relations_.push_back({&graphs[r]->view(), sources[r], targets[r]});
      strategies_.push_back(static_cast<spgnn::Strategy>(strategies[r]));
    }
    for (const i64 size : sizes) {
      tables_.push_back(std::make_unique<spgnn::Tables>(size));
      types_.push_back(tables_.back().get());
    }
  }

  Relations(const Relations&) = delete;
  Relations& operator=(const Relations&) = delete;

  // Seeds of each batch and type.
  nb::list neighbors(const std::vector<std::vector<Ints>>& seeds, const std::vector<Ints>& limits,
                     Ints fanouts, Keys draws, bool replace, bool disjoint, bool directed,
                     bool resample, bool edge_ids, int threads) {
    const spgnn::HopOptions options{{}, replace, disjoint, directed, resample, edge_ids};
    return sample_all(seeds.size(), threads, edge_ids, [&](std::size_t b, int own) {
      const auto latest = limits.empty() ? std::span<const i64>() : span_of(limits[b]);
      std::vector<std::span<const i64>> of_types;
      for (const Ints& of_type : seeds[b]) of_types.push_back(span_of(of_type));
      return spgnn::sample_neighbors<Index>(relations_, strategies_, types_, of_types, latest,
                                            span_of(fanouts), draw_of(draws, b), options, own);
    });
  }

 private:
  nb::list graphs_;  // whose rows these are
  std::vector<spgnn::Relation<Index>> relations_;
  std::vector<spgnn::Strategy> strategies_;
  std::vector<std::unique_ptr<spgnn::Tables>> tables_;
  std::vector<spgnn::Tables*> types_;
};

template <class Index> nb::tuple relabel(Ints targets, Array<Index> columns) {
  auto [nodes, indices] =
      unlocked([&] { return spgnn::relabel(span_of(targets), span_of(columns)); });
  return to_tuple(std::move(nodes), std::move(indices));
}

template <class Index>
nb::object row_order(Ints indptr, Array<Index> indices, std::optional<Ints> ids,
                     std::optional<Ints> times, int threads) {
  auto order = unlocked([&] {
    return spgnn::row_order(span_of(indptr), indices.data(), data_of(ids), data_of(times), threads);
  });
  const bool moved = order.data() != nullptr;
  return to_numpy_if(moved, std::move(order));
}

template <class Index> void define_for(nb::module_& m, const char* name, const char* relations) {
  using G = Graph<Index>;
  nb::class_<G>(m, name, "Rows to sample from.")
      .def(nb::init<Ints, Array<Index>, i64, std::optional<Ints>, std::optional<Ints>,
                    std::optional<Ints>, std::optional<Ints>, std::optional<Array<double>>, bool,
                    int>(),
           "indptr"_a, "indices"_a, "cols"_a, "ids"_a.none(), "column_ids"_a.none(),
           "order"_a.none(), "times"_a.none(), "weights"_a.none(), "first_entries"_a, "threads"_a)
      .def("neighbors", &G::neighbors, "seeds"_a, "limits"_a, "fanouts"_a, "draws"_a, "strategy"_a,
           "replace"_a, "disjoint"_a, "directed"_a, "resample"_a, "edge_ids"_a, "threads"_a)
      .def("hop", &G::hop, "targets"_a, "roots"_a.none(), "limits"_a.none(), "fanout"_a, "hop"_a,
           "draw"_a, "strategy"_a, "replace"_a, "edge_ids"_a, "threads"_a)
      .def("labor", &G::labor, "seeds"_a, "fanouts"_a, "draws"_a, "first_hop"_a, "iterations"_a,
           "same_every_hop"_a, "edge_ids"_a, "threads"_a)
      .def("ladies", &G::ladies, "seeds"_a, "counts"_a, "draws"_a, "first_hop"_a, "squares"_a,
           "edge_ids"_a, "threads"_a)
      .def("fastgcn", &G::fastgcn, "seeds"_a, "counts"_a, "draws"_a, "first_hop"_a, "vertices"_a,
           "edge_ids"_a, "threads"_a)
      .def("induced", &G::induced, "vertices"_a, "edge_ids"_a, "threads"_a)
      .def("walks", &G::walks, "starts"_a, "length"_a, "draw"_a, "threads"_a)
      .def("negatives", &G::negatives, "sources"_a, "count"_a, "vertices"_a, "by_weight"_a,
           "excluded"_a, "draw"_a, "threads"_a);
  using R = Relations<Index>;
  nb::class_<R>(m, relations, "Relations to sample from.")
      .def(nb::init<const std::vector<G*>&, const std::vector<int>&, const std::vector<int>&,
                    const std::vector<int>&, const std::vector<i64>&>(),
           "graphs"_a, "sources"_a, "targets"_a, "strategies"_a, "sizes"_a)
      .def("neighbors", &R::neighbors, "seeds"_a, "limits"_a, "fanouts"_a, "draws"_a, "replace"_a,
           "disjoint"_a, "directed"_a, "resample"_a, "edge_ids"_a, "threads"_a);
  m.def("row_order", &row_order<Index>, "indptr"_a, "indices"_a, "ids"_a.none(), "times"_a.none(),
        "threads"_a);
  m.def("relabel", &relabel<Index>, "targets"_a, "columns"_a, "(nodes, indices)");
}

}  // namespace

void bind_sampling(nb::module_& m) {
  define_for<i32>(m, "Graph32", "Relations32");
  define_for<i64>(m, "Graph64", "Relations64");
}
