// The rows that are sampled from, and what is drawn of them.
#pragma once

#include <cstdint>

#include "buffer.hpp"
#include "hash.hpp"

namespace spgnn {

// Three entries of a row, with what an alias table (Walker, 1977) says of them together: the bucket
// stands for itself with a chance of keep / 2^32, else for the row's bucket `other`. Columns and
// shares of the row's weights come along, so that mostly one line of the cache says everything. A
// row's first bucket has the places at its beginning empty that are left over; row i's begins at
// (indptr[i] + 2 i) / 3, which leaves room enough for all.
template <class Index>
struct alignas(sizeof(Index) == 4 ? 32 : 16) Bucket {
  static constexpr std::int64_t kPlaces = 3;

  std::uint32_t keep, other;
  Index columns[kPlaces];
  float shares[kPlaces];

  static constexpr std::int64_t of(std::int64_t entries) {
    return (entries + kPlaces - 1) / kPlaces;
  }
  static constexpr std::int64_t begin(std::int64_t row, std::int64_t start) {
    return (start + (kPlaces - 1) * row) / kPlaces;
  }
};

// Columns of each row in a canonical order, so that what is drawn depends on the graph alone.
// Pointers but the first two may be null.
template <class Index>
struct Rows {
  const std::int64_t* indptr;
  const Index* indices;
  const std::int64_t* ids;         // original id of each row; null: its number
  const std::int64_t* column_ids;  // and of each column
  const std::int64_t* order;  // where an entry stands in the caller's pattern; null: where it is
  const std::int64_t* times;  // of each entry, rising in a row
  const double* sums;         // of the weights of a row up to an entry
  const Bucket<Index>* buckets;
  std::int64_t rows;
  std::int64_t cols;

  std::uint64_t id(std::int64_t row) const { return ids ? ids[row] : row; }
  std::uint64_t column_id(std::int64_t column) const {
    return column_ids ? column_ids[column] : column;
  }
};

// Rows that entries are drawn for.
template <class Index>
struct Targets {
  const Index* rows;
  std::int64_t count;
  const std::int32_t* roots = nullptr;   // trees of different roots draw by themselves
  const std::int64_t* limits = nullptr;  // entries may not be later

  template <class Draws>
  VertexDraws draws(const Draws& hop, std::uint64_t id, std::int64_t i) const {
    return roots ? hop.of(id, roots[i]) : hop.of(id);
  }
};

// What a hop drew, target by target.
template <class Index>
struct Entries {
  Buffer<std::int64_t> indptr;
  Buffer<Index> columns;
  Buffer<std::int64_t> edge_ids;  // where asked for
  Buffer<float> weights;          // where entries stand for unequally many
  bool weighted = false;

  void resize(std::int64_t count, bool with_ids, bool with_weights) {
    columns = Buffer<Index>(count);
    if (with_ids) edge_ids = Buffer<std::int64_t>(count);
    if (with_weights) weights = Buffer<float>(count);
    weighted = with_weights;
  }
};

// Who takes the entries of a hop while others are still drawn.
template <class Index>
class Sink {
 public:
  // Before any is drawn: there is room for all of them. May throw.
  virtual void begin(const Entries<Index>& entries) = 0;
  // Those of targets [first, end) are there; called in order, one call after the other.
  virtual void take(const Entries<Index>& entries, std::int64_t first, std::int64_t end) = 0;

 protected:
  ~Sink() = default;
};

}  // namespace spgnn
