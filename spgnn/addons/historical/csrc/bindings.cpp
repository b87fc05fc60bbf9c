// Stale rows for Python, as spgnn/addons/historical/stale.py calls them.
#include <nanobind/nanobind.h>

#include "parallel.hpp"
#include "std.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace spgnn {

// The historical embedding cache of DistGNN-MB (Vasimuddin et al. 2022, section 3.2): which
// vertex's row lies in which slot of a table; slots form a list by when they were last written.

struct CacheHits {
  i64 found = 0, ages = 0;
};

class EmbeddingCache {
 public:
  using Vertices = std::span<const i64>;

  EmbeddingCache(i64 vertices, i64 capacity) : slot_(vertices, kNone), lines_(capacity) {}

  i64 used() const { return used_; }
  bool knows(Vertices vertices) const {
    const auto limit = static_cast<u64>(slot_.size());
    return std::all_of(vertices.begin(), vertices.end(),
                       [&](i64 v) { return static_cast<u64>(v) < limit; });
  }

  // HECSearch: the slot of each row, −1: none, or made over `life` iterations before `now`.
  CacheHits search(Vertices vertices, i64 now, i64 life, i64* slots, int threads) const {
    std::atomic<i64> found{0}, ages{0};
    in_spans(vertices.size(), threads, [&](std::size_t first, std::size_t last) {
      CacheHits hits;
      for (std::size_t i = first; i < last; ++i) {
        const i32 slot = slot_[vertices[i]];
        const i64 age = slot == kNone ? 0 : now - lines_[slot].made;
        const bool is_hit = slot != kNone && age <= life;
        slots[i] = is_hit ? slot : kNone;
        hits.found += is_hit;
        hits.ages += is_hit ? age : 0;
      }
      found += hits.found;
      ages += hits.ages;
    });
    return {found, ages};
  }

  // Vertex, iteration and slot of each row, from the one that was written longest ago on.
  void list(i64* vertices, i64* made, i64* slots) const {
    for (i32 slot = oldest_; slot != kNone; slot = lines_[slot].newer) {
      *vertices++ = lines_[slot].vertex;
      *made++ = lines_[slot].made;
      *slots++ = slot;
    }
  }

  // HECStore: each row replaces that of its vertex, takes a slot never used, or evicts the oldest.
  void store(Vertices vertices, i64 made, const char* rows, char* table, std::size_t row_bytes,
             int threads) {
    if (lines_.empty()) return;
    written_.resize(vertices.size());
    for (std::size_t i = 0; i < vertices.size(); ++i) {
      i32& slot = slot_[vertices[i]];
      if (slot != kNone) {
        take_out(slot);
      } else if (used_ < std::ssize(lines_)) {
        slot = static_cast<i32>(used_++);
      } else {
        const i32 oldest = oldest_;
        take_out(oldest);
        slot_[lines_[oldest].vertex] = kNone;
        slot = oldest;
      }
      append(slot);
      Line& line = lines_[slot];
      line.vertex = static_cast<i32>(vertices[i]);
      line.made = made;
      line.writer = i;
      written_[i] = slot;
    }
    // Of rows that went to one slot, the last alone is copied, so no two threads write it.
    in_spans(vertices.size(), threads, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        const auto slot = static_cast<std::size_t>(written_[i]);
        if (lines_[slot].writer == i) {
          std::memcpy(table + slot * row_bytes, rows + i * row_bytes, row_bytes);
        }
      }
    });
  }

 private:
  static constexpr i32 kNone = -1;
  struct Line {
    i64 made = 0;
    std::size_t writer = 0;  // position in the last call of store that wrote it
    i32 vertex = kNone, older = kNone, newer = kNone;
  };

  template <class Body> static void in_spans(std::size_t count, int threads, const Body& body) {
    constexpr std::size_t kSpan = 512;
    const auto tasks = static_cast<i64>((count + kSpan - 1) / kSpan);
    for_each_task(tasks, threads, [&](i64 task) {
      const std::size_t first = static_cast<std::size_t>(task) * kSpan;
      body(first, std::min(first + kSpan, count));
    });
  }

  void take_out(i32 slot) {
    const auto [older, newer] = std::pair(lines_[slot].older, lines_[slot].newer);
    (older == kNone ? oldest_ : lines_[older].newer) = newer;
    (newer == kNone ? newest_ : lines_[newer].older) = older;
  }
  void append(i32 slot) {
    lines_[slot].older = newest_;
    lines_[slot].newer = kNone;
    (newest_ == kNone ? oldest_ : lines_[newest_].newer) = slot;
    newest_ = slot;
  }

  std::vector<i32> slot_;    // of each vertex
  std::vector<Line> lines_;  // of each slot
  std::vector<i32> written_;
  i32 oldest_ = kNone, newest_ = kNone;
  i64 used_ = 0;
};

}  // namespace spgnn

namespace {

using spgnn::Dense, spgnn::EmbeddingCache, spgnn::Tensor;

EmbeddingCache::Vertices checked(const EmbeddingCache& cache, const Dense& vertices) {
  const EmbeddingCache::Vertices listed(vertices.as<i64>(), vertices.rows());
  if (!cache.knows(listed)) throw spgnn::InputError("vertices: a number outside the halo");
  return listed;
}

nb::tuple search(const EmbeddingCache& cache, const Dense& vertices, i64 now, i64 life,
                 const Tensor& slots) {
  const int threads = spgnn::threads_for(vertices.rows());
  spgnn::CacheHits hits;
  {
    const auto listed = checked(cache, vertices);
    nb::gil_scoped_release released;
    hits = cache.search(listed, now, life, slots.as<i64>(), threads);
  }
  return nb::make_tuple(hits.found, hits.ages);
}

void store(EmbeddingCache& cache, const Dense& vertices, i64 made, const Dense& rows,
           const Tensor& table) {
  const auto bytes = static_cast<std::size_t>(table.columns());
  const int threads = spgnn::threads_for(rows.count() / 4);
  const auto listed = checked(cache, vertices);
  nb::gil_scoped_release released;
  cache.store(listed, made, rows.as<char>(), table.as<char>(), bytes, threads);
}

void list(const EmbeddingCache& cache, const Tensor& vertices, const Tensor& made,
          const Tensor& slots) {
  cache.list(vertices.as<i64>(), made.as<i64>(), slots.as<i64>());
}

}  // namespace

void bind_stale(nb::module_& m) {
  nb::class_<EmbeddingCache>(m, "EmbeddingCache", "Which vertices' rows lie in which slots.")
      .def(nb::init<i64, i64>(), "vertices"_a, "capacity"_a)
      .def_prop_ro("used", &EmbeddingCache::used, "Slots that hold a row.")
      .def("search", &search, "vertices"_a, "now"_a, "life"_a, "slots"_a,
           "Writes the slots of vertices' rows; (rows found, sum of their ages).")
      .def("list", &list, "vertices"_a, "made"_a, "slots"_a,
           "Writes vertex, iteration and slot of each row, the oldest first, int64 [used].")
      .def("store", &store, "vertices"_a, "made"_a, "rows"_a, "table"_a,
           "Writes rows of bytes to a table of bytes; the oldest are evicted.");
}
