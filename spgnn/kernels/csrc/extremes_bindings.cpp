// The largest and smallest of listed rows for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bindings.hpp"
#include "extremes.hpp"

namespace nb = nanobind;

namespace {

// first element, elements from one row to the next
using Matrix = std::tuple<Address, std::int64_t>;
// rows, columns
using Shape = std::tuple<std::int64_t, std::int64_t>;
// Columns of A, and whether they are 64 bits wide.
using Columns = std::tuple<Address, bool>;

template <class T, class Index>
void extreme_rows(Address indptr, Address indices, const Matrix& x, const Shape& shape,
                  bool largest, bool begun, std::int64_t first_column, const Matrix& out,
                  const Columns& listed, int threads) {
  const auto [address, wide] = listed;
  const spgnn::ExtremeOperands<T, Index> operands{at<std::int64_t>(indptr),
                                                  at<Index>(indices),
                                                  std::get<0>(shape),
                                                  at<T>(std::get<0>(x)),
                                                  std::get<1>(x),
                                                  std::get<1>(shape),
                                                  largest,
                                                  begun,
                                                  first_column,
                                                  at<T>(std::get<0>(out)),
                                                  std::get<1>(out),
                                                  wide ? nullptr : at<std::int32_t>(address),
                                                  wide ? at<std::int64_t>(address) : nullptr};
  nb::gil_scoped_release released;
  spgnn::extreme_rows(spgnn::current_table(), operands, threads);
}

template <class T>
void extreme_adjoint(const Matrix& g, const Columns& listed, const Shape& shape, Address dx,
                     int threads) {
  const auto [address, wide] = listed;
  const spgnn::ExtremeAdjoint<T> operands{at<T>(std::get<0>(g)),
                                          std::get<1>(g),
                                          wide ? nullptr : at<std::int32_t>(address),
                                          wide ? at<std::int64_t>(address) : nullptr,
                                          std::get<0>(shape),
                                          std::get<1>(shape),
                                          at<T>(dx)};
  nb::gil_scoped_release released;
  spgnn::extreme_adjoint(spgnn::current_table(), operands, threads);
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  m.def(("extreme_rows_" + type + "_int32").c_str(), &extreme_rows<T, std::int32_t>);
  m.def(("extreme_rows_" + type + "_int64").c_str(), &extreme_rows<T, std::int64_t>);
  m.def(("extreme_adjoint_" + type).c_str(), &extreme_adjoint<T>);
}

}  // namespace

void define_extremes(nb::module_& m) {
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
  define_for<spgnn::Bfloat16>(m, "bfloat16");
}
