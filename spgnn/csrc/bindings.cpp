// The other side of a sparse pattern; and numbers that are functions of ids.

#include "arrays.hpp"
#include "inlined.hpp"

namespace nb = nanobind;
using namespace spgnn::python;

namespace {

template <class Index> struct PatternView {
  const i64* indptr;
  const Index* indices;
  i64 rows, cols;
};

// Whether a pattern is its own transpose: by rows, each column's entries come as its row has them.
template <class Index> bool is_symmetric(const PatternView<Index>& a) {
  if (a.rows != a.cols) return false;
  std::vector<i64> next(a.indptr, a.indptr + a.rows);
  for (i64 row = 0; row < a.rows; ++row) {
    for (i64 e = a.indptr[row]; e < a.indptr[row + 1]; ++e) {
      const i64 column = a.indices[e];
      i64& place = next[column];
      if (place == a.indptr[column + 1] || a.indices[place] != row) return false;
      ++place;
    }
  }
  return true;
}

// Counts the entries of each column into t_indptr [cols + 1].
template <class Index> void count_columns(const PatternView<Index>& a, i64* t_indptr) {
  for (i64 column = 0; column <= a.cols; ++column) t_indptr[column] = 0;
  const i64 nonzeros = a.indptr[a.rows];
  for (i64 e = 0; e < nonzeros; ++e) ++t_indptr[a.indices[e] + 1];
  for (i64 column = 0; column < a.cols; ++column) { t_indptr[column + 1] += t_indptr[column]; }
}

// Calls put(place, e, row) for every entry e; rows rise within each column.
template <class Index, class Put>
void for_each_transposed(const PatternView<Index>& a, const i64* t_indptr, const Put& put) {
  std::vector<i64> next(t_indptr, t_indptr + a.cols);
  for (i64 row = 0; row < a.rows; ++row) {
    for (i64 e = a.indptr[row]; e < a.indptr[row + 1]; ++e) { put(next[a.indices[e]]++, e, row); }
  }
}

template <class Index>
PatternView<Index> view(const Array<i64>& indptr, const Array<Index>& indices, i64 cols) {
  return {indptr.data(), indices.data(), std::ssize(indptr) - 1, cols};
}

template <class Index, class Row>
void transpose(const Array<i64>& indptr, const Array<Index>& indices, i64 cols,
               Output<i64> t_indptr, Output<Row> t_indices) {
  nb::gil_scoped_release released;
  const auto a = view(indptr, indices, cols);
  count_columns(a, t_indptr.data());
  Row* rows = t_indices.data();
  for_each_transposed(a, t_indptr.data(),
                      [rows](i64 place, i64, i64 row) { rows[place] = static_cast<Row>(row); });
}

template <class Index, class Position>
void transposed_order(const Array<i64>& indptr, const Array<Index>& indices,
                      const Array<i64>& t_indptr, Output<Position> order) {
  nb::gil_scoped_release released;
  const auto a = view(indptr, indices, std::ssize(t_indptr) - 1);
  Position* positions = order.data();
  for_each_transposed(a, t_indptr.data(), [positions](i64 place, i64 e, i64) {
    positions[place] = static_cast<Position>(e);
  });
}

template <class Index> void define_for(nb::module_& m) {
  m.def("is_symmetric", [](const Array<i64>& indptr, const Array<Index>& indices, i64 cols) {
    return unlocked([&] { return is_symmetric(view(indptr, indices, cols)); });
  });
  m.def("transpose", &transpose<Index, i32>);
  m.def("transpose", &transpose<Index, i64>);
  m.def("transposed_order", &transposed_order<Index, i32>);
  m.def("transposed_order", &transposed_order<Index, i64>);
}

// out[row, c] = mixed(mixed(ids[row] ^ streams[c]) + columns[c]) as in spgnn/hashing.py, in [0, 1).
void uniform_rows(const Array<i64>& ids, const Array<u64>& streams, const Array<u64>& columns,
                  nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out, int threads) {
  constexpr i64 kRows = 4096;
  nb::gil_scoped_release released;
  const auto rows = std::ssize(ids);
  const auto width = std::ssize(columns);
  spgnn::parallel_chunks((rows + kRows - 1) / kRows, threads, [&](i64 chunk, int) {
    for (i64 row = chunk * kRows; row < std::min(rows, (chunk + 1) * kRows); ++row) {
      const auto id = static_cast<u64>(ids.data()[row]);
      for (i64 c = 0; c < width; ++c) {
        const u64 z = spgnn::mixed(spgnn::mixed(id ^ streams.data()[c]) + columns.data()[c]);
        out.data()[row * width + c] = static_cast<float>(static_cast<double>(z >> 11) * 0x1p-53);
      }
    }
  });
}

}  // namespace

void bind_pattern(nb::module_& m) {
  m.def("uniform_rows", &uniform_rows);
  define_for<i32>(m);
  define_for<i64>(m);
}
