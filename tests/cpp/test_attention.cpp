// Softmax over the nonzeros of rows, and attention, on exactly sized heap arrays, so that a
// sanitizer sees every stray access.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "kernel_table.hpp"
#include "operands.hpp"
#include "spmm.hpp"

namespace {

using spgnn::Bfloat16;
using spgnn::KernelTable;
using spgnn::Sum;

// `columns` numbers for each nonzero: softmax and sums over the nonzeros of each row.
template <class T>
void test_segments(const KernelTable& table, std::int64_t heads, bool long_rows) {
  std::mt19937_64 rng(heads);
  const auto matrix = random_matrix<std::int32_t>(long_rows, rng);
  const std::int64_t* indptr = matrix.indptr.data();
  auto scores = random_numbers<T>(indptr[matrix.rows] * heads, rng);
  const auto factors = random_numbers<T>(indptr[matrix.rows] * heads, rng);
  const auto minus_infinity = spgnn::narrow<T>(-std::numeric_limits<Sum<T>>::infinity());
  for (std::size_t i = 0; i < scores.size(); i += 5) scores[i] = minus_infinity;
  const std::int64_t masked = matrix.rows / 2;  // all of a row
  for (std::int64_t i = indptr[masked] * heads; i < indptr[masked + 1] * heads; ++i) {
    scores[i] = minus_infinity;
  }
  std::vector<T> softmax(scores.size()), sums(scores.size()), products(scores.size());
  std::vector<T> first_softmax, first_sums;
  for (int threads : {1, 2, 5}) {
    spgnn::softmax(table, indptr, matrix.rows, heads, scores.data(), softmax.data(), threads);
    spgnn::row_sums<T>(table, indptr, matrix.rows, heads, factors.data(), nullptr, sums.data(),
                       threads);
    spgnn::row_sums(table, indptr, matrix.rows, heads, softmax.data(), factors.data(),
                    products.data(), threads);
    if (threads == 1) first_softmax = softmax, first_sums = sums;
    expect(same_bits(softmax, first_softmax), "softmax depends on threads", table, heads);
    expect(same_bits(sums, first_sums), "row sums depend on threads", table, heads);
  }
  bool softmax_close = true, sums_close = true;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      double sum = 0, total = 0, magnitude = 0, product = 0, product_magnitude = 0;
      for (std::int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
        const std::int64_t i = e * heads + head;
        const double factor = spgnn::widen(factors[i]);
        sum += std::exp(static_cast<double>(spgnn::widen(scores[i])));
        total += factor, magnitude += std::abs(factor);
        const double term = factor * spgnn::widen(softmax[i]);
        product += term, product_magnitude += std::abs(term);
      }
      for (std::int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
        const std::int64_t i = e * heads + head;
        const double power = std::exp(static_cast<double>(spgnn::widen(scores[i])));
        const double expected = sum > 0 ? power / sum : 0;
        softmax_close &= is_close(softmax[i], expected, 10 * expected);
        sums_close &= is_close(sums[i], total, magnitude);
        sums_close &= is_close(products[i], product, product_magnitude);
      }
    }
  }
  expect(softmax_close, "softmax differs", table, heads);
  expect(sums_close, "sums of rows differ", table, heads);
}

// Gradients of attention over a matrix's rows taken as sources, after a pass forward: the same bits
// on any threads, and no access outside of exactly sized arrays.
template <class T>
void test_attention(const KernelTable& table, std::int64_t heads, std::int64_t width) {
  using S = Sum<T>;
  std::mt19937_64 rng(7);
  const auto matrix = random_matrix<std::int32_t>(true, rng);
  const std::int64_t padded = heads == 3 ? 4 : heads, columns = heads * width;
  const std::int64_t packed = spgnn::packed_columns(padded, width);
  const std::int64_t used = packed * static_cast<std::int64_t>(sizeof(T)) +
                            3 * padded * static_cast<std::int64_t>(sizeof(S));
  const std::int64_t stride = (used + 63) / 64 * 64;
  const auto others = random_numbers<T>(matrix.cols * columns, rng);
  const auto own = random_numbers<T>(matrix.rows * columns, rng);
  const auto numbers = random_numbers<S>(matrix.cols * heads, rng);
  const auto own_numbers = random_numbers<S>(matrix.rows * heads, rng);
  std::vector<char> rows(matrix.cols * stride);
  const auto& kernels = std::get<spgnn::AttentionKernels<T>>(*table.attention);
  kernels.pack({heads,
                padded,
                width,
                {{others.data(), columns}, {}},
                {numbers.data(), numbers.data(), numbers.data()},
                rows.data(),
                stride},
               {0, matrix.cols});
  std::vector<std::int64_t> own_ids(matrix.rows, 5), other_ids(matrix.cols, 9);
  const spgnn::AttentionOperands<T> a{matrix.indptr.data(),
                                      matrix.rows,
                                      {matrix.indices.data(), nullptr},
                                      {},
                                      heads,
                                      padded,
                                      width,
                                      S(0.2),
                                      {rows.data(), stride},
                                      {{own.data(), columns}, {}},
                                      {own_numbers.data(), nullptr},
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      {own_ids.data(), other_ids.data(), false, 1, 1u << 30, 2.0}};
  std::vector<T> outs[2], gradients[2];
  for (int i = 0; i < 2; ++i) {
    std::vector<S> lse(matrix.rows * heads), p(matrix.rows * columns), pi(matrix.rows * heads);
    outs[i].resize(matrix.rows * columns);
    gradients[i].resize(matrix.rows * columns);
    spgnn::attend<T>(table, a,
                     {{nullptr, nullptr, nullptr, p.data(), pi.data()},
                      spgnn::Ending::kFinished,
                      outs[i].data(),
                      lse.data()},
                     false, 1 + 2 * i);
    spgnn::attend_backward<T>(table, a,
                              {gradients[i].data(), pi.data(), nullptr, nullptr, nullptr, nullptr},
                              0, 1 + 2 * i);
  }
  expect(same_bits(outs[0], outs[1]), "attention on any threads", table, columns);
  expect(same_bits(gradients[0], gradients[1]), "its gradients on any threads", table, columns);
}

template <class T> void test_all(const KernelTable& table, std::int64_t width) {
  for (std::int64_t heads : {1, 3, 8, 16}) test_attention<T>(table, heads, width);
  for (std::int64_t heads : {1, 2, 3, 8, 15, 16, 17, 40}) test_segments<T>(table, heads, heads < 4);
}

}  // namespace

int main() {
  for (const auto isa : spgnn::available_isas()) {
    const KernelTable& table = spgnn::table_of(isa);
    test_all<float>(table, 5);
    test_all<double>(table, 8);
    test_all<Bfloat16>(table, 3);
    std::printf("%s, attention: %d failures\n", spgnn::name_of(isa), failures);
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
