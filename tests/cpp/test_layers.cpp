// What layers do beside products with sparse matrices (updates, dense products, the largest and
// smallest of listed rows, cross-entropy), on exactly sized heap arrays that begin anywhere, so
// that a sanitizer sees every stray access; each against plain loops.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "kernel_table.hpp"
#include "operands.hpp"
#include "spmm.hpp"

namespace {

using spgnn::Act;
using spgnn::Bfloat16;
using spgnn::KernelTable;
using spgnn::narrow;
using spgnn::Sum;
using spgnn::widen;

constexpr std::int64_t kWidths[] = {1, 15, 16, 17, 33, 128, 300};

// A matrix whose rows lie further apart than they are wide, one number behind the beginning of its
// memory, which ends with the last row.
template <class T> struct Rows {
  std::int64_t count, columns, stride;
  std::vector<T> memory;

  Rows(std::int64_t rows, std::int64_t width, std::int64_t gap, std::mt19937_64& rng)
      : count(rows), columns(width), stride(width + gap),
        memory(random_numbers<T>(rows ? 1 + (rows - 1) * (width + gap) + width : 1, rng)) {}

  T* data() { return memory.data() + 1; }
  const T* data() const { return memory.data() + 1; }
  double at(std::int64_t row, std::int64_t c) const {
    return static_cast<double>(widen(data()[row * stride + c]));
  }

  // Whether what is no part of a row is as it was.
  bool keeps_gaps_of(const Rows& before) const {
    bool kept = same_bits<T>({memory[0]}, {before.memory[0]});
    for (std::int64_t i = 0; i + 1 < std::ssize(memory); ++i) {
      if (i % stride >= columns) kept &= same_bits<T>({data()[i]}, {before.data()[i]});
    }
    return kept;
  }
};

// Whether dropout keeps a number, as docs/kernels.md says.
bool is_kept(const spgnn::DropoutRule& rule, std::int64_t id, std::int64_t column) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const std::uint64_t stream = spgnn::mix64(rule.seed + kGolden * (id + 1));
  const std::uint64_t bits = spgnn::mix64(stream + kGolden * (column / 2 + 1));
  return (column % 2 ? bits >> 32 : bits & 0xffffffffu) >= rule.threshold;
}

// To rounding of T, of a number made in few steps from numbers of this size.
template <class T> bool is_near(double actual, double expected, double size) {
  return std::abs(actual - expected) <= tolerance<T>() * (size + 1);
}

// Bias, activation and dropout of some rows, and their gradients.
template <class T>
void test_update(const KernelTable& table, std::int64_t count, std::int64_t columns, Act act,
                 bool drops, std::int64_t gap) {
  std::mt19937_64 rng(count + columns);
  const Rows<T> x(count, columns, gap, rng), g(count, columns, gap, rng);
  const auto bias = random_numbers<Sum<T>>(columns, rng);
  std::vector<std::int64_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int64_t>(rng() >> 20);
  const double alpha = 0.25;
  const spgnn::DropoutRule rule{spgnn::mix64(7), std::uint64_t{1} << 30, drops ? 4.0 / 3 : 1.0};
  const std::int64_t* listed = drops ? ids.data() : nullptr;
  Rows<T> first = x, first_dx = g;
  std::vector<Sum<T>> first_sums;
  for (int threads : {1, 2, 5}) {
    Rows<T> y = x, dx = g;
    spgnn::update_rows<T>(table,
                          {y.data(), y.stride, y.data(), y.stride, columns, count, bias.data(), act,
                           alpha, listed, rule},
                          threads);
    std::vector<Sum<T>> sums(columns);
    spgnn::update_gradients<T>(
        table,
        {g.data(), g.stride, act == Act::kNone ? nullptr : y.data(), y.stride, dx.data(), dx.stride,
         columns, count, act, alpha, act == Act::kRelu ? nullptr : listed, rule},
        sums.data(), threads);
    if (threads == 1) first = y, first_dx = dx, first_sums = sums;
    expect(same_bits(y.memory, first.memory), "updates depend on threads", table, columns);
    expect(same_bits(dx.memory, first_dx.memory), "their gradients do", table, columns);
    expect(same_bits(sums, first_sums), "sums of gradients depend on threads", table, columns);
  }
  expect(first.keeps_gaps_of(x) && first_dx.keeps_gaps_of(g), "gaps", table, columns);
  bool right = true, right_dx = true, right_sums = true;
  for (std::int64_t c = 0; c < columns; ++c) {
    double sum = 0, size = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool kept = !drops || is_kept(rule, ids[i], c);
      const double z = x.at(i, c) + bias[c], y = first.at(i, c), dx = first_dx.at(i, c);
      const double below = act == Act::kRelu        ? 0
                           : act == Act::kLeakyRelu ? alpha * z
                           : act == Act::kElu       ? alpha * std::expm1(z)
                                                    : z;
      right &= is_near<T>(y, kept ? (z < 0 ? below : z) * rule.factor : 0, std::abs(z));
      // The sign is that of the result, which tells it where z was rounded to 0 as well.
      const double slope = act == Act::kNone || y > 0 ? 1
                           : act == Act::kRelu        ? 0
                           : act == Act::kLeakyRelu   ? alpha
                                                      : y / rule.factor + alpha;
      right_dx &= is_near<T>(dx, kept ? g.at(i, c) * rule.factor * slope : 0, std::abs(g.at(i, c)));
      sum += dx, size += std::abs(dx);
    }
    right_sums &= std::abs(static_cast<double>(first_sums[c]) - sum) <= 2e-5 * size;
  }
  expect(right, "updates differ from three steps", table, columns);
  expect(right_dx, "gradients of updates differ", table, columns);
  expect(right_sums, "sums of gradients differ", table, columns);
}

void test_gemm(const KernelTable& table, std::int64_t count, std::int64_t depth,
               std::int64_t columns) {
  std::mt19937_64 rng(count + depth + columns);
  const Rows<float> x(count, depth, 3, rng), g(count, columns, 2, rng);
  const Rows<float> w(columns, depth, 0, rng);
  std::vector<float> z(count * columns), sums(columns * depth), first_z, first_sums;
  for (int threads : {1, 2, 5}) {
    const spgnn::GemmOperand of_x{x.data(), x.stride, depth}, of_g{g.data(), g.stride, columns};
    spgnn::gemm_product(table, {of_x, {}}, {w.data(), nullptr}, {{z.data(), columns}, {}}, count,
                        {}, nullptr, threads);
    spgnn::gemm_gradient(table, {{of_g, {}}, {of_x, {}}, 0, 0, 0}, count, {sums.data(), nullptr},
                         threads);
    if (threads == 1) first_z = z, first_sums = sums;
    expect(same_bits(z, first_z), "products depend on threads", table, columns);
    expect(same_bits(sums, first_sums), "their gradients do", table, columns);
  }
  bool right = true, right_sums = true;
  std::vector<double> totals(columns * depth), sizes(columns * depth);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0, size = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const double term = x.at(i, k) * w.at(j, k), share = g.at(i, j) * x.at(i, k);
        sum += term, size += std::abs(term);
        totals[j * depth + k] += share, sizes[j * depth + k] += std::abs(share);
      }
      right &= is_close(z[i * columns + j], sum, size);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    right_sums &= is_close(sums[i], totals[i], sizes[i]);
  }
  expect(right, "dense products differ", table, columns);
  expect(right_sums, "sums of outer products differ", table, columns);
}

// The first of the largest or smallest of listed numbers; what is no number comes before.
struct Extreme {
  double number = 0;
  std::int64_t place = -1;

  void take(double other, std::int64_t at, bool largest) {
    const bool better = std::isnan(other) ? !std::isnan(number)
                        : largest         ? other > number
                                          : other < number;
    if (place < 0 || better) number = other, place = at;
  }
};

spgnn::Numbers numbers(const std::vector<std::int32_t>& list) { return {list.data(), nullptr}; }
spgnn::Numbers numbers(const std::vector<std::int64_t>& list) { return {nullptr, list.data()}; }

// Two blocks one after the other, and the adjoint of both.
template <class T, class Index>
void test_extremes(const KernelTable& table, std::int64_t columns, bool long_rows, bool largest) {
  std::mt19937_64 rng(columns + largest);
  const auto one = random_matrix<Index>(long_rows, rng), two = random_matrix<Index>(long_rows, rng);
  const std::int64_t rows = one.rows, cols = one.cols + two.cols;
  Rows<T> x(cols, columns, 2, rng);
  for (T& number : x.memory) number = narrow<T>(std::round(widen(number)));  // with ties
  x.data()[3 * x.stride] = narrow<T>(std::numeric_limits<Sum<T>>::quiet_NaN());
  const Rows<T> start(rows, columns, 1, rng), g(rows, columns, 1, rng);
  const Rows<T> before(cols, columns, 0, rng);
  Rows<T> first = start, first_dx = before;
  std::vector<std::int64_t> first_arg;
  for (int threads : {1, 2, 5}) {
    Rows<T> out = start, dx = before;
    std::vector<std::int32_t> narrow_arg(rows * columns);
    std::vector<std::int64_t> arg(rows * columns);
    for (const bool wide : {false, true}) {
      for (const auto* matrix : {&one, &two}) {
        const bool begun = matrix == &two;
        const T* listed = x.data() + (begun ? one.cols * x.stride : 0);
        spgnn::edge_extremes<T>(table,
                                {{matrix->indptr.data(),
                                  {},
                                  numbers(matrix->indices),
                                  rows,
                                  {},
                                  {},
                                  {listed, x.stride},
                                  columns,
                                  1,
                                  {out.data(), out.stride}},
                                 largest,
                                 {wide ? nullptr : narrow_arg.data(), wide ? arg.data() : nullptr},
                                 begun,
                                 begun ? one.cols : 0},
                                spgnn::EdgeOp::kCopy, threads);
      }
      if (threads == 1 && !wide) first = out;
      expect(same_bits(out.memory, first.memory), "extremes depend on threads", table, columns);
    }
    expect(std::equal(arg.begin(), arg.end(), narrow_arg.begin()), "places", table, columns);
    spgnn::extreme_adjoint<T>(table,
                              {g.data(), g.stride, threads == 2 ? nullptr : narrow_arg.data(),
                               threads == 2 ? arg.data() : nullptr, rows, columns, dx.data()},
                              threads);
    if (threads == 1) first_arg = arg, first_dx = dx;
    expect(arg == first_arg, "places of extremes depend on threads", table, columns);
    expect(same_bits(dx.memory, first_dx.memory), "the adjoint does", table, columns);
  }
  bool right = true;
  Rows<T> expected_dx = before;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < columns; ++c) {
      Extreme best;
      for (const auto* matrix : {&one, &two}) {
        const std::int64_t shift = matrix == &two ? one.cols : 0;
        for (std::int64_t e = matrix->indptr[i]; e < matrix->indptr[i + 1]; ++e) {
          const std::int64_t column = shift + matrix->indices[e];
          best.take(x.at(column, c), column, largest);
        }
      }
      const double found = first.at(i, c);
      right &= std::isnan(best.number) ? std::isnan(found) : found == best.number;
      right &= first_arg[i * columns + c] == best.place;
      if (best.place < 0) continue;
      T& sum = expected_dx.data()[best.place * columns + c];
      sum = narrow<T>(widen(sum) + widen(g.data()[i * g.stride + c]));
    }
  }
  expect(right, "extremes differ", table, columns);
  expect(first.keeps_gaps_of(start), "extremes beside their columns", table, columns);
  expect(same_bits(first_dx.memory, expected_dx.memory), "the adjoint differs", table, columns);
}

template <class T>
void test_cross_entropy(const KernelTable& table, std::int64_t count, std::int64_t columns) {
  std::mt19937_64 rng(count + columns);
  const Rows<T> x(count, columns, 3, rng), start(count, columns, 1, rng);
  std::vector<std::int64_t> target(count);
  for (auto& one : target) one = rng() % 4 ? static_cast<std::int64_t>(rng() % columns) : -1;
  const T factor = 3;
  double first_loss = 0;
  Rows<T> first = start;
  for (int threads : {1, 2, 5}) {
    Rows<T> dx = start;
    const spgnn::CrossEntropyOperands<T> a{{x.data(), x.stride}, columns, count,
                                           target.data(),        factor,  {dx.data(), dx.stride}};
    const double loss = spgnn::cross_entropy<T>(table, a, nullptr, threads);
    if (threads == 1) first_loss = loss, first = dx;
    expect(loss == first_loss, "losses depend on threads", table, columns);
    expect(same_bits(dx.memory, first.memory), "their gradients do", table, columns);
  }
  double expected = 0, size = 0;
  bool right = true;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(x.at(i, c));
    for (std::int64_t c = 0; c < columns; ++c) {
      const double share = std::exp(x.at(i, c)) / sum - (c == target[i] ? 1 : 0);
      right &= is_near<T>(first.at(i, c), target[i] < 0 ? 0 : factor * share, 0);
    }
    if (target[i] < 0) continue;
    const double loss = std::log(sum) - x.at(i, target[i]);
    expected += loss, size += std::abs(loss) + 1;
  }
  expect(std::abs(first_loss - expected) <= tolerance<T>() * size, "losses", table, columns);
  expect(right, "gradients of losses differ", table, columns);
  expect(first.keeps_gaps_of(start), "gradients of losses beside their columns", table, columns);
}

template <class T> void test_all(const KernelTable& table) {
  for (std::int64_t columns : kWidths) {
    for (Act act : {Act::kNone, Act::kRelu, Act::kLeakyRelu, Act::kElu}) {
      for (std::int64_t count : {0, 1, 100}) {
        test_update<T>(table, count, columns, act, count != 1, columns % 2);
      }
    }
    test_extremes<T, std::int32_t>(table, columns, false, true);
    test_extremes<T, std::int64_t>(table, columns, false, false);
  }
  test_update<T>(table, 5000, 17, Act::kElu, true, 0);
  test_extremes<T, std::int32_t>(table, 33, true, true);
  if constexpr (sizeof(T) > 2) {
    for (std::int64_t columns : kWidths) {
      for (std::int64_t count : {0, 1, 300}) test_cross_entropy<T>(table, count, columns);
    }
  }
}

}  // namespace

int main() {
  for (const auto isa : spgnn::available_isas()) {
    const KernelTable& table = spgnn::table_of(isa);
    test_all<float>(table);
    test_all<double>(table);
    test_all<Bfloat16>(table);
    for (std::int64_t depth : kWidths) {
      for (std::int64_t columns : kWidths) test_gemm(table, 7, depth, columns);
      test_gemm(table, 0, depth, 15);
      test_gemm(table, 1, depth, 33);
    }
    test_gemm(table, 5000, 33, 17);
    test_gemm(table, 900, 1, 1);
    std::printf("%s, layers: %d failures\n", spgnn::name_of(isa), failures);
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
