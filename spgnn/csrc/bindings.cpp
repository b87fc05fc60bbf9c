#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "transpose.hpp"
#include "uniform_rows.hpp"

namespace nb = nanobind;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Index>
spgnn::PatternView<Index> view(const Array<std::int64_t>& indptr, const Array<Index>& indices,
                               std::int64_t cols) {
  return {indptr.data(), indices.data(), static_cast<std::int64_t>(indptr.size()) - 1, cols};
}

template <class Index>
bool is_symmetric(const Array<std::int64_t>& indptr, const Array<Index>& indices,
                  std::int64_t cols) {
  nb::gil_scoped_release released;
  return spgnn::is_symmetric(view(indptr, indices, cols));
}

template <class Index, class Row>
void transpose(const Array<std::int64_t>& indptr, const Array<Index>& indices, std::int64_t cols,
               Output<std::int64_t> t_indptr, Output<Row> t_indices) {
  nb::gil_scoped_release released;
  const auto a = view(indptr, indices, cols);
  spgnn::count_columns(a, t_indptr.data());
  Row* rows = t_indices.data();
  spgnn::for_each_transposed(a, t_indptr.data(),
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
  spgnn::for_each_transposed(a, t_indptr.data(),
                             [positions](std::int64_t place, std::int64_t e, std::int64_t) {
                               positions[place] = static_cast<Position>(e);
                             });
}

template <class Index>
void define_for(nb::module_& m) {
  m.def("is_symmetric", &is_symmetric<Index>);
  m.def("transpose", &transpose<Index, std::int32_t>);
  m.def("transpose", &transpose<Index, std::int64_t>);
  m.def("transposed_order", &transposed_order<Index, std::int32_t>);
  m.def("transposed_order", &transposed_order<Index, std::int64_t>);
}

void uniform_rows(const Array<std::int64_t>& ids, const Array<std::uint64_t>& streams,
                  const Array<std::uint64_t>& columns,
                  nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out, int threads) {
  nb::gil_scoped_release released;
  spgnn::uniform_rows(ids.data(), static_cast<std::int64_t>(ids.size()), streams.data(),
                      columns.data(), static_cast<std::int64_t>(columns.size()), out.data(),
                      threads);
}

}  // namespace

void bind_pattern(nb::module_& m) {
  m.def("uniform_rows", &uniform_rows);
  define_for<std::int32_t>(m);
  define_for<std::int64_t>(m);
}
