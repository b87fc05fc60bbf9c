// Rows in few bits for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bindings.hpp"
#include "quantise.hpp"

namespace nb = nanobind;

namespace {

// A list of row numbers, and whether they are 64 bits wide; address 0: row i is row i.
using List = std::tuple<Address, bool>;
// of all rows, of each
using Bits = std::tuple<int, Address>;
// first element, elements from one row to the next
using Matrix = std::tuple<Address, std::int64_t>;

spgnn::RowList row_list(const List& list) {
  const auto [address, wide] = list;
  return {wide ? nullptr : at<std::int32_t>(address), wide ? at<std::int64_t>(address) : nullptr};
}

spgnn::RowBits row_bits(const Bits& bits) {
  return {std::get<0>(bits), at<std::uint8_t>(std::get<1>(bits))};
}

template <class T>
void quantise_rows(const Matrix& x, std::int64_t columns, std::int64_t count, const List& rows,
                   const Bits& bits, Address ids, std::uint64_t seed, bool stochastic,
                   const Matrix& residual, Address lost, Address packed, int threads) {
  const spgnn::QuantiseOperands<T> operands{at<T>(std::get<0>(x)),
                                            std::get<1>(x),
                                            columns,
                                            count,
                                            row_list(rows),
                                            row_bits(bits),
                                            at<std::int64_t>(ids),
                                            seed,
                                            stochastic,
                                            at<T>(std::get<0>(residual)),
                                            std::get<1>(residual),
                                            at<std::uint8_t>(packed)};
  nb::gil_scoped_release released;
  spgnn::quantise_rows(spgnn::current_table(), operands, at<double>(lost), threads);
}

template <class T>
void dequantise_rows(Address packed, std::int64_t columns, std::int64_t count, const List& rows,
                     const Bits& bits, const Matrix& y, int threads) {
  const spgnn::DequantiseOperands<T> operands{
      at<std::uint8_t>(packed), columns,       count, row_list(rows), row_bits(bits),
      at<T>(std::get<0>(y)),    std::get<1>(y)};
  nb::gil_scoped_release released;
  spgnn::dequantise_rows(spgnn::current_table(), operands, threads);
}

std::int64_t packed_size(Address bits, std::int64_t count, std::int64_t columns) {
  return spgnn::packed_size(at<std::uint8_t>(bits), count, columns);
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  m.def(("quantise_rows_" + type).c_str(), &quantise_rows<T>);
  m.def(("dequantise_rows_" + type).c_str(), &dequantise_rows<T>);
}

}  // namespace

void define_quantise(nb::module_& m) {
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
  define_for<spgnn::Bfloat16>(m, "bfloat16");
  m.def("packed_size", &packed_size,
        "Bytes of packed rows; -1 - b where some bits b are none of 16, 8, 4, 2 and 1.");
}
