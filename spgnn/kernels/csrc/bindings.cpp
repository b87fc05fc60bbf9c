// Python sees addresses of arrays that spgnn/kernels/ops.py has checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

#include <stdexcept>
#include <string>

#include "dispatch.hpp"
#include "reorder.hpp"
#include "roofline.hpp"
#include "rows.hpp"
#include "sddmm.hpp"
#include "spmm.hpp"

namespace nb = nanobind;

namespace {

using Address = std::uintptr_t;

const spgnn::KernelTable*& current_table() {
  static const spgnn::KernelTable* table = &spgnn::best_table();
  return table;
}

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

template <class T, class Index>
void spmm(Address indptr, Address indices, std::int64_t rows, Address values, Address row_scale,
          Address col_scale, Address row_order, Address x, std::int64_t x_stride, Address y,
          std::int64_t y_stride, std::int64_t columns, bool accumulate, int threads) {
  using S = spgnn::Sum<T>;
  spgnn::SpmmOperands<T, Index> operands{at<std::int64_t>(indptr),
                                         at<Index>(indices),
                                         rows,
                                         at<S>(values),
                                         at<S>(row_scale),
                                         at<S>(col_scale),
                                         at<std::int32_t>(row_order),
                                         at<T>(x),
                                         x_stride,
                                         at<T>(y),
                                         y_stride,
                                         columns,
                                         accumulate};
  nb::gil_scoped_release released;
  spgnn::spmm(*current_table(), operands, threads);
}

template <class T, class Index>
void sddmm(Address indptr, Address indices, std::int64_t rows, Address row_scale, Address col_scale,
           Address g, std::int64_t g_stride, Address x, std::int64_t x_stride, std::int64_t columns,
           Address products, int threads) {
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
                                                at<S>(products)};
  nb::gil_scoped_release released;
  spgnn::sddmm(*current_table(), operands, threads);
}

template <class Index>
std::int64_t count_far(Address indptr, Address indices, std::int64_t rows, std::int64_t cols,
                       Address order, std::int64_t window) {
  nb::gil_scoped_release released;
  return spgnn::count_far(at<const std::int64_t>(indptr), at<const Index>(indices), rows, cols,
                          at<const std::int32_t>(order), window);
}

template <class Index>
void cluster_order(Address indptr, Address indices, std::int64_t rows, std::int64_t largest,
                   int sweeps, Address order) {
  nb::gil_scoped_release released;
  spgnn::LabelPropagation<Index> clusters(at<const std::int64_t>(indptr), at<const Index>(indices),
                                          rows, largest);
  spgnn::order_by_label(clusters.run(sweeps), at<std::int32_t>(order));
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
  return spgnn::touch_rows(*current_table(), operands, threads);
}

// STREAM's triad y = y + 3 x on arrays of floats.
void triad(Address y, Address x, std::int64_t count, int threads) {
  nb::gil_scoped_release released;
  spgnn::triad(at<float>(y), at<float>(x), count, threads);
}

template <class T>
spgnn::RowOperands<T> row_operands(Address x, std::int64_t x_stride, Address y,
                                   std::int64_t y_stride, std::int64_t columns, Address rows,
                                   std::int64_t count, Address scale) {
  return {at<T>(x), x_stride,
          at<T>(y), y_stride,
          columns,  at<std::int64_t>(rows),
          count,    at<spgnn::Sum<T>>(scale)};
}

template <class T>
void gather_rows(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride,
                 std::int64_t columns, Address rows, std::int64_t count, Address scale,
                 int threads) {
  auto operands = row_operands<T>(x, x_stride, y, y_stride, columns, rows, count, scale);
  nb::gil_scoped_release released;
  spgnn::gather_rows(*current_table(), operands, threads);
}

template <class T>
void scatter_add_rows(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride,
                      std::int64_t columns, Address rows, std::int64_t count, Address scale,
                      int threads) {
  auto operands = row_operands<T>(x, x_stride, y, y_stride, columns, rows, count, scale);
  nb::gil_scoped_release released;
  spgnn::scatter_add_rows(*current_table(), operands, threads);
}

template <class T>
void dropout_rows(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride,
                  std::int64_t columns, Address vertex_ids, std::int64_t count, std::uint64_t seed,
                  std::uint64_t threshold, double factor, int threads) {
  auto operands = row_operands<T>(x, x_stride, y, y_stride, columns, vertex_ids, count, 0);
  nb::gil_scoped_release released;
  spgnn::dropout_rows(*current_table(), operands, {seed, threshold, factor}, threads);
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  m.def(("spmm_" + type + "_int32").c_str(), &spmm<T, std::int32_t>);
  m.def(("spmm_" + type + "_int64").c_str(), &spmm<T, std::int64_t>);
  m.def(("sddmm_" + type + "_int32").c_str(), &sddmm<T, std::int32_t>);
  m.def(("sddmm_" + type + "_int64").c_str(), &sddmm<T, std::int64_t>);
  m.def(("gather_rows_" + type).c_str(), &gather_rows<T>);
  m.def(("scatter_add_rows_" + type).c_str(), &scatter_add_rows<T>);
  m.def(("dropout_rows_" + type).c_str(), &dropout_rows<T>);
}

}  // namespace

NB_MODULE(_kernels, m) {
  m.doc() = "spgnn native kernels, on addresses of checked arrays.";
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
  define_for<spgnn::Bfloat16>(m, "bfloat16");
  m.def("count_far_int32", &count_far<std::int32_t>);
  m.def("count_far_int64", &count_far<std::int64_t>);
  m.def("cluster_order_int32", &cluster_order<std::int32_t>);
  m.def("cluster_order_int64", &cluster_order<std::int64_t>);
  m.def("advise_huge_pages", &advise_huge_pages);
  m.def("touch_rows", &touch_rows, "Roofline: reads the rows of X that a product reads.");
  m.def("triad", &triad, "Roofline: y += 3 x.");
  m.def("in_range", [](Address rows, std::int64_t count, std::int64_t limit) {
    nb::gil_scoped_release released;
    return spgnn::in_range(at<std::int64_t>(rows), count, limit);
  });
  m.def("mix64", &spgnn::mix64, "The finalizer of SplitMix64.");
  m.def(
      "instruction_sets",
      [] {
        std::vector<std::string> names;
        for (const auto* table : spgnn::available_tables()) names.emplace_back(table->name);
        return names;
      },
      "Instruction sets that this build and this machine have, the widest first.");
  m.def("instruction_set", [] { return std::string(current_table()->name); });
  m.def("use_instruction_set", [](const std::string& name) {
    const spgnn::KernelTable* table = spgnn::find_table(name);
    if (!table) throw std::invalid_argument("no instruction set " + name + " here");
    current_table() = table;
  });
}
