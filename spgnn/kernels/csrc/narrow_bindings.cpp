// Dense products with a matrix of few rows for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.hpp"
#include "narrow.hpp"

namespace nb = nanobind;

namespace {

// first element, elements from one row to the next
using Matrix = std::tuple<Address, std::int64_t>;
// rows of x, columns of x, rows of w
using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

void narrow_product(const Matrix& x, Address w, const Sizes& sizes, Address z, int threads) {
  const auto [count, depth, columns] = sizes;
  const spgnn::NarrowProduct operands{
      at<float>(std::get<0>(x)), std::get<1>(x), count, depth, nullptr, 0, at<float>(z), columns};
  nb::gil_scoped_release released;
  spgnn::narrow_product(*current_table(), operands, at<float>(w), threads);
}

void narrow_gradient(const Matrix& g, const Matrix& x, const Sizes& sizes, Address sums,
                     int threads) {
  const auto [count, depth, columns] = sizes;
  const spgnn::NarrowGradient operands{at<float>(std::get<0>(g)),
                                       std::get<1>(g),
                                       at<float>(std::get<0>(x)),
                                       std::get<1>(x),
                                       count,
                                       columns,
                                       depth};
  nb::gil_scoped_release released;
  spgnn::narrow_gradient(*current_table(), operands, at<float>(sums), threads);
}

}  // namespace

void define_narrow(nb::module_& m) {
  m.def("narrow_product", &narrow_product);
  m.def("narrow_gradient", &narrow_gradient);
}
