// Python sees addresses of arrays that the operations of spgnn/kernels have checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

#include <optional>
#include <stdexcept>
#include <string>

#include "access.hpp"
#include "bindings.hpp"
#include "dispatch.hpp"
#include "roofline.hpp"
#include "rows.hpp"
#include "sddmm.hpp"
#include "segments.hpp"
#include "spmm.hpp"

namespace nb = nanobind;

namespace {

// What tests and benchmarks ask for in place of what the processor and X suggest.
std::optional<spgnn::Access>& wanted_access() {
  static std::optional<spgnn::Access> access;
  return access;
}

spgnn::Access access_to(std::int64_t x_rows, const spgnn::Shape& x, std::int64_t bytes_of_one,
                        std::int64_t nonzeros) {
  static const auto processor = spgnn::Processor::read();
  if (!wanted_access()) {
    return spgnn::choose_access(processor, x_rows, x, bytes_of_one, nonzeros);
  }
  auto access = *wanted_access();
  if (access.block == 0) access.block = x.columns;
  return access;
}

template <class T, class Index>
void spmm(Address indptr, Address indices, std::int64_t rows, Address values,
          std::int64_t value_stride, Address row_scale, Address col_scale, Address x,
          std::int64_t x_rows, std::int64_t x_stride, Address y, std::int64_t y_stride,
          std::int64_t columns, bool accumulate, std::int64_t heads, std::int64_t x_head_stride,
          std::int64_t y_head_stride, int threads) {
  using S = spgnn::Sum<T>;
  const spgnn::SpmmOperands<T, Index> operands{at<std::int64_t>(indptr),
                                               at<Index>(indices),
                                               rows,
                                               at<S>(values),
                                               value_stride,
                                               at<S>(row_scale),
                                               at<S>(col_scale),
                                               at<T>(x),
                                               x_rows,
                                               x_stride,
                                               at<T>(y),
                                               y_stride,
                                               columns,
                                               accumulate};
  nb::gil_scoped_release released;
  const auto access = access_to(x_rows, {heads, columns}, sizeof(T), operands.indptr[rows]);
  spgnn::spmm(spgnn::current_table(), operands, {heads, x_head_stride, y_head_stride}, access, threads);
}

template <class T, class Index>
void sddmm(Address indptr, Address indices, std::int64_t rows, Address row_scale, Address col_scale,
           Address g, std::int64_t g_stride, Address x, std::int64_t x_stride, std::int64_t columns,
           Address products, std::int64_t heads, std::int64_t x_head_stride,
           std::int64_t g_head_stride, int threads) {
  using S = spgnn::Sum<T>;
  const spgnn::SddmmOperands<T, Index> operands{at<std::int64_t>(indptr),
                                                at<Index>(indices),
                                                rows,
                                                at<S>(row_scale),
                                                at<S>(col_scale),
                                                at<T>(g),
                                                g_stride,
                                                at<T>(x),
                                                x_stride,
                                                columns,
                                                at<S>(products),
                                                heads};
  nb::gil_scoped_release released;
  spgnn::sddmm(spgnn::current_table(), operands, {heads, x_head_stride, g_head_stride}, threads);
}

template <class T>
void edge_softmax(Address indptr, std::int64_t rows, std::int64_t heads, Address scores,
                  Address softmax, int threads) {
  nb::gil_scoped_release released;
  spgnn::softmax(spgnn::current_table(), at<const std::int64_t>(indptr), rows, heads, at<const T>(scores),
                 at<T>(softmax), threads);
}

template <class T>
void row_sums(Address indptr, std::int64_t rows, std::int64_t heads, Address a, Address b,
              Address sums, int threads) {
  nb::gil_scoped_release released;
  spgnn::row_sums(spgnn::current_table(), at<const std::int64_t>(indptr), rows, heads, at<const T>(a),
                  at<const T>(b), at<T>(sums), threads);
}

// Asks for huge pages under a fresh allocation. Gathers from it later miss the TLB less, and its
// first writes fault less often. A hint: where it is refused or unknown, nothing is lost.
void advise_huge_pages([[maybe_unused]] Address address, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const Address begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const Address end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(at<void>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// The roofline of a float32 product: the same rows of X read, nothing computed.
std::uint32_t touch_rows(Address indptr, Address indices, std::int64_t rows, Address x,
                         std::int64_t x_stride, std::int64_t columns, int threads) {
  spgnn::SpmmOperands<float, std::int32_t> operands{};
  operands.indptr = at<std::int64_t>(indptr);
  operands.indices = at<std::int32_t>(indices);
  operands.rows = rows;
  operands.x = at<float>(x);
  operands.x_stride = x_stride;
  operands.columns = columns;
  nb::gil_scoped_release released;
  return spgnn::touch_rows(spgnn::current_table(), operands, threads);
}

// STREAM's triad y = y + 3 x on arrays of floats.
void triad(Address y, Address x, std::int64_t count, int threads) {
  nb::gil_scoped_release released;
  spgnn::triad(at<float>(y), at<float>(x), count, threads);
}

template <class T, class Index>
spgnn::RowOperands<T, Index> row_operands(Address x, std::int64_t x_stride, Address y,
                                          std::int64_t y_stride, std::int64_t columns, Address rows,
                                          std::int64_t count, Address scale) {
  return {at<T>(x), x_stride,        at<T>(y), y_stride,
          columns,  at<Index>(rows), count,    at<spgnn::Sum<T>>(scale)};
}

template <class T, class Index>
void gather_rows(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride,
                 std::int64_t columns, Address rows, std::int64_t count, Address scale,
                 int threads) {
  auto operands = row_operands<T, Index>(x, x_stride, y, y_stride, columns, rows, count, scale);
  nb::gil_scoped_release released;
  spgnn::gather_rows(spgnn::current_table(), operands, threads);
}

template <class T, class Index>
void scatter_add_rows(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride,
                      std::int64_t columns, Address rows, std::int64_t count, Address scale,
                      int threads) {
  auto operands = row_operands<T, Index>(x, x_stride, y, y_stride, columns, rows, count, scale);
  nb::gil_scoped_release released;
  spgnn::scatter_add_rows(spgnn::current_table(), operands, threads);
}

template <class T>
void dropout_rows(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride,
                  std::int64_t columns, Address vertex_ids, std::int64_t count, std::uint64_t seed,
                  std::uint64_t threshold, double factor, int threads) {
  auto operands =
      row_operands<T, std::int64_t>(x, x_stride, y, y_stride, columns, vertex_ids, count, 0);
  nb::gil_scoped_release released;
  spgnn::dropout_rows(spgnn::current_table(), operands, {seed, threshold, factor}, threads);
}

template <class Index>
bool in_range(Address rows, std::int64_t count, std::int64_t limit) {
  nb::gil_scoped_release released;
  return spgnn::in_range(at<Index>(rows), count, limit);
}

template <class T, class Index>
void define_for(nb::module_& m, const std::string& types) {
  m.def(("spmm_" + types).c_str(), &spmm<T, Index>);
  m.def(("sddmm_" + types).c_str(), &sddmm<T, Index>);
  m.def(("gather_rows_" + types).c_str(), &gather_rows<T, Index>);
  m.def(("scatter_add_rows_" + types).c_str(), &scatter_add_rows<T, Index>);
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  define_for<T, std::int32_t>(m, type + "_int32");
  define_for<T, std::int64_t>(m, type + "_int64");
  m.def(("dropout_rows_" + type).c_str(), &dropout_rows<T>);
  m.def(("edge_softmax_" + type).c_str(), &edge_softmax<T>);
  m.def(("row_sums_" + type).c_str(), &row_sums<T>);
}

}  // namespace

void bind_kernels(nb::module_& m) {
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
  define_for<spgnn::Bfloat16>(m, "bfloat16");
  define_attention(m);
  define_quantise(m);
  define_update(m);
  define_extremes(m);
  define_gemm(m);
  define_cross_entropy(m);
  m.def("advise_huge_pages", &advise_huge_pages);
  m.def("touch_rows", &touch_rows, "Roofline: reads the rows of X that a product reads.");
  m.def("triad", &triad, "Roofline: y += 3 x.");
  m.def("in_range_int32", &in_range<std::int32_t>);
  m.def("in_range_int64", &in_range<std::int64_t>);
  m.def("mix64", &spgnn::mix64, "The finalizer of SplitMix64.");
  m.def("is_intel", [] { return spgnn::Processor::read().maker == spgnn::Maker::kIntel; });
  m.def(
      "use_access",
      [](const std::string& name, std::int64_t block) {
        if (name != "chosen" && name != "far" && name != "near") {
          throw std::invalid_argument("no access " + name);
        }
        wanted_access().reset();
        if (name != "chosen") wanted_access() = {name == "near", block};
      },
      nb::arg("name"), nb::arg("block") = 0,
      "How products read X: chosen, far (fetched ahead) or near, then in blocks of columns.");
}
