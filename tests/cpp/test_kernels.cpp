// The C++ kernels on exactly sized heap arrays, so that a sanitizer sees every stray access.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "kernel_table.hpp"
#include "operands.hpp"
#include "rows.hpp"
#include "spmm.hpp"

namespace {

using spgnn::Bfloat16;
using spgnn::KernelTable;
using spgnn::Sum;

// Dense matrices [rows, heads, columns]; the heads of X lie further apart than they are wide.
template <class T, class Index>
void test_spmm(const KernelTable& table, std::int64_t columns, bool long_rows, bool scaled,
               std::int64_t heads = 1) {
  std::mt19937_64 rng(columns + 2 * long_rows + scaled);
  const auto matrix = random_matrix<Index>(long_rows, rng);
  const std::int64_t x_head = columns + 2, y_head = columns;
  const std::int64_t x_stride = heads * x_head + 1, y_stride = heads * y_head + 1;
  // The last row of a strided matrix ends with its last column.
  const auto x =
      random_numbers<T>((matrix.cols - 1) * x_stride + (heads - 1) * x_head + columns, rng);
  const auto start = random_numbers<T>((matrix.rows - 1) * y_stride + heads * columns, rng);
  const auto values = random_numbers<Sum<T>>(matrix.indptr.back() * heads, rng);
  const auto row_scale = random_numbers<Sum<T>>(matrix.rows, rng);
  const auto col_scale = random_numbers<Sum<T>>(matrix.cols, rng);
  const bool weighted = scaled || heads > 1;
  for (bool accumulate : {false, true}) {
    std::vector<T> y, first;
    // Both ways to read X.
    const std::vector<std::pair<std::int64_t, int>> ways = {
        {0, 1}, {0, 2}, {0, 5}, {std::int64_t{1} << 40, 1}, {std::int64_t{1} << 40, 5}};
    for (const auto& [near_bytes, threads] : ways) {
      spgnn::near_bytes() = near_bytes;
      y = start;
      spgnn::spmm<T, Index>(
          table,
          {matrix.indptr.data(), matrix.indices.data(), matrix.rows,
           weighted ? values.data() : nullptr, heads, scaled ? row_scale.data() : nullptr,
           scaled ? col_scale.data() : nullptr, x.data(), x_stride, matrix.cols, y.data(), y_stride,
           columns, accumulate},
          {heads, x_head, y_head}, threads);
      if (first.empty()) first = y;
      expect(same_bits(y, first), "spmm depends on threads or on how X is read", table, columns);
    }
    bool close = true, padding_kept = true;
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      for (std::int64_t i = 0; i < heads * columns; ++i) {
        const std::int64_t head = i / columns, c = i % columns;
        double sum = 0, magnitude = 0;
        for (std::int64_t e = matrix.indptr[row]; e < matrix.indptr[row + 1]; ++e) {
          const std::int64_t column = matrix.indices[e];
          double weight = weighted ? double{values[e * heads + head]} : 1.0;
          if (scaled) weight *= double{row_scale[row]} * col_scale[column];
          double term = weight * spgnn::widen(x[column * x_stride + head * x_head + c]);
          sum += term;
          magnitude += std::abs(term);
        }
        const double before = spgnn::widen(start[row * y_stride + i]);
        if (accumulate) sum += before, magnitude += std::abs(before);
        close &= is_close(y[row * y_stride + i], sum, magnitude);
      }
      if (row + 1 < matrix.rows) {
        const std::int64_t gap = row * y_stride + heads * columns;
        padding_kept &= !std::memcmp(&y[gap], &start[gap], sizeof(T));
      }
    }
    expect(close, "spmm differs from the sum over nonzeros", table, columns);
    expect(padding_kept, "spmm wrote between the rows of Y", table, columns);
  }
}

template <class T, class Index>
void test_sddmm(const KernelTable& table, std::int64_t columns, bool long_rows,
                std::int64_t heads = 1) {
  std::mt19937_64 rng(columns + 2 * long_rows);
  const auto matrix = random_matrix<Index>(long_rows, rng);
  const std::int64_t g_head = columns, x_head = columns + 1;
  const std::int64_t g_stride = heads * g_head + 1, x_stride = heads * x_head + 3;
  const auto g = random_numbers<T>((matrix.rows - 1) * g_stride + heads * columns, rng);
  const auto x =
      random_numbers<T>((matrix.cols - 1) * x_stride + (heads - 1) * x_head + columns, rng);
  const auto row_scale = random_numbers<Sum<T>>(matrix.rows, rng);
  const auto col_scale = random_numbers<Sum<T>>(matrix.cols, rng);
  std::vector<Sum<T>> products(matrix.indices.size() * heads), first;
  for (int threads : {1, 2, 5}) {
    spgnn::sddmm<T, Index>(
        table,
        {matrix.indptr.data(), matrix.indices.data(), matrix.rows, row_scale.data(),
         col_scale.data(), g.data(), g_stride, x.data(), x_stride, columns, products.data(), heads},
        {heads, x_head, g_head}, threads);
    if (threads == 1) first = products;
    expect(same_bits(products, first), "sddmm depends on the number of threads", table, columns);
  }
  bool close = true;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t i = matrix.indptr[row] * heads; i < matrix.indptr[row + 1] * heads; ++i) {
      const std::int64_t column = matrix.indices[i / heads], head = i % heads;
      double sum = 0, magnitude = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        const double term = double{row_scale[row]} * col_scale[column] *
                            spgnn::widen(g[row * g_stride + head * g_head + c]) *
                            spgnn::widen(x[column * x_stride + head * x_head + c]);
        sum += term;
        magnitude += std::abs(term);
      }
      close &= is_close(products[i], sum, magnitude);
    }
  }
  expect(close, "sddmm differs from the sum over columns", table, columns);
}

template <class T, class Index> void test_rows(const KernelTable& table, std::int64_t columns) {
  std::mt19937_64 rng(columns);
  const std::int64_t listed = 500, rows = 41;
  std::vector<Index> list(listed);
  for (auto& row : list) row = static_cast<Index>(rng() % rows);
  list.front() = static_cast<Index>(rows - 1);
  const std::vector<std::int64_t> ids(list.begin(), list.end());
  expect(spgnn::in_range(list.data(), listed, rows), "a right list is refused", table, columns);
  expect(!spgnn::in_range(list.data(), listed, rows - 1), "a wrong list is taken", table, columns);
  const auto matrix = random_numbers<T>(rows * columns, rng);
  const auto tall = random_numbers<T>(listed * columns, rng);
  const auto scale = random_numbers<Sum<T>>(listed, rng);
  std::vector<T> gathered, added, dropped;
  for (int threads : {1, 2, 5}) {
    std::vector<T> y(listed * columns), z = matrix, d(listed * columns);
    spgnn::gather_rows<T, Index>(
        table,
        {matrix.data(), columns, y.data(), columns, columns, list.data(), listed, scale.data()},
        threads);
    spgnn::scatter_add_rows<T, Index>(
        table,
        {tall.data(), columns, z.data(), columns, columns, list.data(), listed, scale.data()},
        threads);
    spgnn::dropout_rows<T>(
        table, {tall.data(), columns, d.data(), columns, columns, ids.data(), listed, nullptr},
        {spgnn::mix64(7), std::uint64_t{1} << 31, 2.0}, threads);
    if (threads == 1) gathered = y, added = z, dropped = d;
    expect(same_bits(y, gathered), "gather depends on the number of threads", table, columns);
    expect(same_bits(z, added), "scatter-add depends on the number of threads", table, columns);
    expect(same_bits(d, dropped), "dropout depends on the number of threads", table, columns);
  }
  bool gather_close = true, dropout_exact = true;
  for (std::int64_t i = 0; i < listed; ++i) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const double picked = double{scale[i]} * spgnn::widen(matrix[list[i] * columns + c]);
      gather_close &= is_close(gathered[i * columns + c], picked, std::abs(picked));
      const auto kept = static_cast<double>(spgnn::widen(dropped[i * columns + c]));
      dropout_exact &= kept == 0 || kept == 2.0 * spgnn::widen(tall[i * columns + c]);
    }
  }
  std::vector<Sum<T>> slow(rows * columns);
  for (std::size_t i = 0; i < slow.size(); ++i) slow[i] = spgnn::widen(matrix[i]);
  for (std::int64_t i = 0; i < listed; ++i) {
    for (std::int64_t c = 0; c < columns; ++c) {
      auto& sum = slow[list[i] * columns + c];
      sum += scale[i] * spgnn::widen(tall[i * columns + c]);
      sum = spgnn::widen(spgnn::narrow<T>(sum));
    }
  }
  bool scatter_close = true;
  for (std::size_t i = 0; i < slow.size(); ++i) {
    scatter_close &= is_close(added[i], slow[i], 10.0);
  }
  expect(gather_close, "gather differs", table, columns);
  expect(scatter_close, "scatter-add differs", table, columns);
  expect(dropout_exact, "dropout changed a kept element", table, columns);
}

template <class T> void test_all(const KernelTable& table) {
  for (std::int64_t columns : {1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 129, 272, 300}) {
    for (bool scaled : {false, true}) {
      test_spmm<T, std::int32_t>(table, columns, false, scaled);
      test_spmm<T, std::int64_t>(table, columns, false, scaled);
    }
    test_sddmm<T, std::int32_t>(table, columns, false);
    test_sddmm<T, std::int64_t>(table, columns, columns == 1);
    test_rows<T, std::int32_t>(table, columns);
    test_rows<T, std::int64_t>(table, columns);
  }
  for (std::int64_t columns : {1, 40}) {
    test_spmm<T, std::int32_t>(table, columns, true, false);
    test_spmm<T, std::int32_t>(table, columns, true, true);
    test_spmm<T, std::int32_t>(table, columns, true, true, 3);
    test_spmm<T, std::int64_t>(table, columns, false, false, 3);
    test_sddmm<T, std::int32_t>(table, columns, false, 3);
  }
}

}  // namespace

int main() {
  for (const auto isa : spgnn::available_isas()) {
    const KernelTable& table = spgnn::table_of(isa);
    test_all<float>(table);
    test_all<double>(table);
    test_all<Bfloat16>(table);
    std::printf("%s: %d failures\n", spgnn::name_of(isa), failures);
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
