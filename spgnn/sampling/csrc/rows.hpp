// The rows that are sampled from.
#pragma once

#include <cstdint>

namespace spgnn {

// Columns of each row in a canonical order, so that what is drawn depends on the graph alone.
template <class Index>
struct Rows {
  const std::int64_t* indptr;
  const Index* indices;
  const std::int64_t* ids;    // original id of each row; null: its number
  const std::int64_t* order;  // where an entry stands in the caller's pattern; null: where it is
  std::int64_t rows;
  std::int64_t cols;

  std::uint64_t id(std::int64_t row) const { return ids ? ids[row] : row; }
};

}  // namespace spgnn
