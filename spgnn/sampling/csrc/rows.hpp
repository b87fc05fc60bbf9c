// The rows that are sampled from, and what is drawn of them.
#pragma once

#include <cstdint>

#include "buffer.hpp"
#include "hash.hpp"

namespace spgnn {

// One entry of an alias table (Walker, 1977): it stands for itself with a chance of keep / 2^32,
// else for the row's entry `other`. Its column and its share of the row's weights come along, so
// that mostly one line of the cache says everything.
template <class Index>
struct alignas(sizeof(Index) == 4 ? 16 : 8) Alias {
  std::uint32_t keep, other;
  Index column;
  float share;
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
  const Alias<Index>* aliases;
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

}  // namespace spgnn
