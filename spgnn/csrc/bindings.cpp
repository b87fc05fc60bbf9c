// The other side of a sparse pattern, columns with the rows they meet; and numbers that are
// functions of ids.
#include <algorithm>
#include <vector>

#include "arrays.hpp"
#include "inlined.hpp"

namespace nb = nanobind;
using namespace spgnn::python;

namespace {

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

template <class Index>
PatternView<Index> view(const Array<std::int64_t>& indptr, const Array<Index>& indices,
                        std::int64_t cols) {
  return {indptr.data(), indices.data(), static_cast<std::int64_t>(indptr.size()) - 1, cols};
}

template <class Index, class Row>
void transpose(const Array<std::int64_t>& indptr, const Array<Index>& indices, std::int64_t cols,
               Output<std::int64_t> t_indptr, Output<Row> t_indices) {
  nb::gil_scoped_release released;
  const auto a = view(indptr, indices, cols);
  count_columns(a, t_indptr.data());
  Row* rows = t_indices.data();
  for_each_transposed(a, t_indptr.data(),
                      [rows](std::int64_t place, std::int64_t, std::int64_t row) {
                        rows[place] = static_cast<Row>(row);
                      });
}

template <class Index, class Position>
void transposed_order(const Array<std::int64_t>& indptr, const Array<Index>& indices,
                      const Array<std::int64_t>& t_indptr, Output<Position> order) {
  nb::gil_scoped_release released;
  const auto a = view(indptr, indices, static_cast<std::int64_t>(t_indptr.size()) - 1);
  Position* positions = order.data();
  for_each_transposed(a, t_indptr.data(),
                      [positions](std::int64_t place, std::int64_t e, std::int64_t) {
                        positions[place] = static_cast<Position>(e);
                      });
}

template <class Index>
void define_for(nb::module_& m) {
  m.def("is_symmetric",
        [](const Array<std::int64_t>& indptr, const Array<Index>& indices, std::int64_t cols) {
          return unlocked([&] { return is_symmetric(view(indptr, indices, cols)); });
        });
  m.def("transpose", &transpose<Index, std::int32_t>);
  m.def("transpose", &transpose<Index, std::int64_t>);
  m.def("transposed_order", &transposed_order<Index, std::int32_t>);
  m.def("transposed_order", &transposed_order<Index, std::int64_t>);
}

// out[row, c] = mixed(mixed(ids[row] ^ streams[c]) + columns[c]) as a float in [0, 1), as
// spgnn/hashing.py has it.
void uniform_rows(const Array<std::int64_t>& ids, const Array<std::uint64_t>& streams,
                  const Array<std::uint64_t>& columns,
                  nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out, int threads) {
  constexpr std::int64_t kRows = 4096;
  nb::gil_scoped_release released;
  const auto rows = static_cast<std::int64_t>(ids.size());
  const auto width = static_cast<std::int64_t>(columns.size());
  spgnn::parallel_chunks((rows + kRows - 1) / kRows, threads, [&](std::int64_t chunk, int) {
    for (std::int64_t row = chunk * kRows; row < std::min(rows, (chunk + 1) * kRows); ++row) {
      const auto id = static_cast<std::uint64_t>(ids.data()[row]);
      for (std::int64_t c = 0; c < width; ++c) {
        const std::uint64_t z =
            spgnn::mixed(spgnn::mixed(id ^ streams.data()[c]) + columns.data()[c]);
        out.data()[row * width + c] = static_cast<float>(static_cast<double>(z >> 11) * 0x1p-53);
      }
    }
  });
}

}  // namespace

void bind_pattern(nb::module_& m) {
  m.def("uniform_rows", &uniform_rows);
  define_for<std::int32_t>(m);
  define_for<std::int64_t>(m);
}
