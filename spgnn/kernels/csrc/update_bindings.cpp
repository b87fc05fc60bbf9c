// Bias, activation and dropout for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bindings.hpp"
#include "update.hpp"

namespace nb = nanobind;

namespace {

// first element, elements from one row to the next
using Matrix = std::tuple<Address, std::int64_t>;
// rows, columns
using Shape = std::tuple<std::int64_t, std::int64_t>;
// which one (see update_types.hpp), its number
using Activation = std::tuple<int, double>;
// vertex ids or 0, mix64(key), threshold, factor
using Dropout = std::tuple<Address, std::uint64_t, std::uint64_t, double>;

spgnn::DropoutRule rule_of(const Dropout& dropout) {
  return {std::get<1>(dropout), std::get<2>(dropout), std::get<3>(dropout)};
}

template <class T>
void update_rows(const Matrix& x, const Matrix& y, const Shape& shape, Address bias,
                 const Activation& activation, const Dropout& dropout, int threads) {
  const spgnn::UpdateOperands<T> operands{
      at<T>(std::get<0>(x)),   std::get<1>(x),
      at<T>(std::get<0>(y)),   std::get<1>(y),
      std::get<1>(shape),      std::get<0>(shape),
      at<spgnn::Sum<T>>(bias), static_cast<spgnn::Act>(std::get<0>(activation)),
      std::get<1>(activation), at<std::int64_t>(std::get<0>(dropout)),
      rule_of(dropout)};
  nb::gil_scoped_release released;
  spgnn::update_rows(spgnn::current_table(), operands, threads);
}

template <class T>
void update_gradients(const Matrix& g, const Matrix& y, const Matrix& dx, const Shape& shape,
                      const Activation& activation, const Dropout& dropout, Address sums,
                      int threads) {
  const spgnn::UpdateGradients<T> operands{at<T>(std::get<0>(g)),
                                           std::get<1>(g),
                                           at<T>(std::get<0>(y)),
                                           std::get<1>(y),
                                           at<T>(std::get<0>(dx)),
                                           std::get<1>(dx),
                                           std::get<1>(shape),
                                           std::get<0>(shape),
                                           static_cast<spgnn::Act>(std::get<0>(activation)),
                                           std::get<1>(activation),
                                           at<std::int64_t>(std::get<0>(dropout)),
                                           rule_of(dropout)};
  nb::gil_scoped_release released;
  spgnn::update_gradients(spgnn::current_table(), operands, at<spgnn::Sum<T>>(sums), threads);
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  m.def(("update_rows_" + type).c_str(), &update_rows<T>);
  m.def(("update_gradients_" + type).c_str(), &update_gradients<T>);
}

}  // namespace

void define_update(nb::module_& m) {
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
  define_for<spgnn::Bfloat16>(m, "bfloat16");
}
