// The other side of a sparse pattern: columns with the rows they meet.
#pragma once

#include <cstdint>
#include <vector>

namespace spgnn {

template <class Index>
struct PatternView {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows, cols;
};

// Whether a pattern is its own transpose, entry by entry. A walk by rows must meet the entries of
// each column in the order in which the row of that number stores them.
template <class Index>
bool is_symmetric(const PatternView<Index>& a) {
  if (a.rows != a.cols) return false;
  std::vector<std::int64_t> next(a.indptr, a.indptr + a.rows);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t e = a.indptr[row]; e < a.indptr[row + 1]; ++e) {
      const std::int64_t column = a.indices[e];
      std::int64_t& place = next[column];
      if (place == a.indptr[column + 1] || a.indices[place] != row) return false;
      ++place;
    }
  }
  return true;
}

// Counts the entries of each column into t_indptr [cols + 1].
template <class Index>
void count_columns(const PatternView<Index>& a, std::int64_t* t_indptr) {
  for (std::int64_t column = 0; column <= a.cols; ++column) t_indptr[column] = 0;
  const std::int64_t nonzeros = a.indptr[a.rows];
  for (std::int64_t e = 0; e < nonzeros; ++e) ++t_indptr[a.indices[e] + 1];
  for (std::int64_t column = 0; column < a.cols; ++column) {
    t_indptr[column + 1] += t_indptr[column];
  }
}

// Calls put(place, e, row) for every entry e; rows rise within each column.
template <class Index, class Put>
void for_each_transposed(const PatternView<Index>& a, const std::int64_t* t_indptr,
                         const Put& put) {
  std::vector<std::int64_t> next(t_indptr, t_indptr + a.cols);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t e = a.indptr[row]; e < a.indptr[row + 1]; ++e) {
      put(next[a.indices[e]]++, e, row);
    }
  }
}

}  // namespace spgnn
