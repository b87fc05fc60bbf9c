// Dense products of many rows with a matrix of few for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.hpp"
#include "gemm.hpp"

namespace nb = nanobind;

namespace {

// first element, elements from one row to the next
using Matrix = std::tuple<Address, std::int64_t>;
// rows of x, columns of x, rows of w
using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

void gemm_product(const Matrix& x, Address w, const Sizes& sizes, Address z, int threads) {
  const auto [count, depth, columns] = sizes;
  const spgnn::GemmProduct operands{
      at<float>(std::get<0>(x)), std::get<1>(x), count, depth, nullptr, 0, at<float>(z), columns};
  nb::gil_scoped_release released;
  spgnn::gemm_product(spgnn::current_table(), operands, at<float>(w), threads);
}

void gemm_gradient(const Matrix& g, const Matrix& x, const Sizes& sizes, Address sums,
                   int threads) {
  const auto [count, depth, columns] = sizes;
  const spgnn::GemmGradient operands{at<float>(std::get<0>(g)),
                                     std::get<1>(g),
                                     at<float>(std::get<0>(x)),
                                     std::get<1>(x),
                                     count,
                                     columns,
                                     depth,
                                     0,
                                     0,
                                     0};
  nb::gil_scoped_release released;
  spgnn::gemm_gradient(spgnn::current_table(), operands, at<float>(sums), threads);
}

}  // namespace

void define_gemm(nb::module_& m) {
  m.def("gemm_product", &gemm_product);
  m.def("gemm_gradient", &gemm_gradient);
}
