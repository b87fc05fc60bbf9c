// Softmax cross-entropy for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bindings.hpp"
#include "cross_entropy.hpp"

namespace nb = nanobind;

namespace {

// first element, elements from one row to the next
using Matrix = std::tuple<Address, std::int64_t>;
// rows, columns
using Shape = std::tuple<std::int64_t, std::int64_t>;

template <class T>
spgnn::CrossEntropyOperands<T> operands_of(const Matrix& x, const Shape& shape, Address target) {
  return {at<T>(std::get<0>(x)), std::get<1>(x), std::get<1>(shape), std::get<0>(shape),
          at<std::int64_t>(target)};
}

template <class T>
double cross_entropy(const Matrix& x, const Shape& shape, Address target, int threads) {
  const auto operands = operands_of<T>(x, shape, target);
  nb::gil_scoped_release released;
  return spgnn::cross_entropy(spgnn::current_table(), operands, threads);
}

template <class T>
void cross_entropy_gradient(const Matrix& x, const Shape& shape, Address target, double factor,
                            const Matrix& dx, int threads) {
  const spgnn::CrossEntropyGradient<T> operands{operands_of<T>(x, shape, target),
                                                static_cast<T>(factor), at<T>(std::get<0>(dx)),
                                                std::get<1>(dx)};
  nb::gil_scoped_release released;
  spgnn::cross_entropy_gradient(spgnn::current_table(), operands, threads);
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  m.def(("cross_entropy_" + type).c_str(), &cross_entropy<T>);
  m.def(("cross_entropy_gradient_" + type).c_str(), &cross_entropy_gradient<T>);
}

}  // namespace

void define_cross_entropy(nb::module_& m) {
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
}
