// Stale rows for Python, as spgnn/addons/historical/stale.py calls them.
#include <nanobind/nanobind.h>

#include "embedding_cache.hpp"
#include "input_error.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using spgnn::Dense, spgnn::EmbeddingCache, spgnn::Tensor;

EmbeddingCache::Vertices checked(const EmbeddingCache& cache, const Dense& vertices) {
  const EmbeddingCache::Vertices listed(vertices.as<std::int64_t>(), vertices.rows());
  if (!cache.knows(listed)) throw spgnn::InputError("vertices: a number outside the halo");
  return listed;
}

nb::tuple search(const EmbeddingCache& cache, const Dense& vertices, std::int64_t now,
                 std::int64_t life, const Tensor& slots) {
  const int threads = spgnn::threads_for(vertices.rows());
  spgnn::CacheHits hits;
  {
    const auto listed = checked(cache, vertices);
    nb::gil_scoped_release released;
    hits = cache.search(listed, now, life, slots.as<std::int64_t>(), threads);
  }
  return nb::make_tuple(hits.found, hits.ages);
}

void store(EmbeddingCache& cache, const Dense& vertices, std::int64_t made, const Dense& rows,
           const Tensor& table) {
  const auto bytes = static_cast<std::size_t>(table.columns());
  const int threads = spgnn::threads_for(rows.count() / 4);
  const auto listed = checked(cache, vertices);
  nb::gil_scoped_release released;
  cache.store(listed, made, rows.as<char>(), table.as<char>(), bytes, threads);
}

void list(const EmbeddingCache& cache, const Tensor& vertices, const Tensor& made,
          const Tensor& slots) {
  cache.list(vertices.as<std::int64_t>(), made.as<std::int64_t>(), slots.as<std::int64_t>());
}

}  // namespace

void bind_stale(nb::module_& m) {
  nb::class_<EmbeddingCache>(m, "EmbeddingCache", "Which vertices' rows lie in which slots.")
      .def(nb::init<std::int64_t, std::int64_t>(), "vertices"_a, "capacity"_a)
      .def_prop_ro("used", &EmbeddingCache::used, "Slots that hold a row.")
      .def("search", &search, "vertices"_a, "now"_a, "life"_a, "slots"_a,
           "Writes the slots of vertices' rows; (rows found, sum of their ages).")
      .def("list", &list, "vertices"_a, "made"_a, "slots"_a,
           "Writes vertex, iteration and slot of each row, the oldest first, int64 [used].")
      .def("store", &store, "vertices"_a, "made"_a, "rows"_a, "table"_a,
           "Writes rows of bytes to a table of bytes; the oldest are evicted.");
}
