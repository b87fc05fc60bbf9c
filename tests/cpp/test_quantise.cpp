// Rows in few bits on exactly sized heap arrays, so that a sanitizer sees every stray access.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernel_table.hpp"
#include "operands.hpp"
#include "rows.hpp"
#include "types.hpp"

namespace {

using spgnn::Bfloat16;
using spgnn::KernelTable;
using spgnn::Sum;

// What packing and unpacking leave behind.
template <class T> struct Outcome {
  std::vector<std::uint8_t> packed;
  std::vector<T> residual, y;
  double lost[2] = {0, 0};

  bool operator==(const Outcome& other) const {
    return packed == other.packed &&
           !std::memcmp(residual.data(), other.residual.data(), residual.size() * sizeof(T)) &&
           !std::memcmp(y.data(), other.y.data(), y.size() * sizeof(T)) &&
           lost[0] == other.lost[0] && lost[1] == other.lost[1];
  }
};

template <class T>
Outcome<T> outcome(const KernelTable& table, const std::vector<T>& x, std::int64_t columns,
                   const std::vector<std::int32_t>& listed, int bits, int threads) {
  const auto count = static_cast<std::int64_t>(listed.size());
  const std::vector<std::int64_t> ids(listed.begin(), listed.end());
  Outcome<T> found;
  found.packed.resize(count * spgnn::packed_row_bytes(columns, bits));
  found.residual = std::vector<T>(count * columns);
  found.y = std::vector<T>(count * columns);
  spgnn::quantise_rows<T>(table,
                          {x.data(),
                           columns,
                           columns,
                           count,
                           {listed.data(), nullptr},
                           bits,
                           ids.data(),
                           5,
                           true,
                           found.residual.data(),
                           columns,
                           found.packed.data()},
                          found.lost, threads);
  spgnn::dequantise_rows<T>(
      table,
      {found.packed.data(), columns, count, {nullptr, nullptr}, bits, found.y.data(), columns},
      threads);
  return found;
}

template <class T> void test(const KernelTable& table, std::int64_t columns, int bits) {
  const std::int64_t rows = 41, count = 300;
  std::mt19937_64 rng(columns);
  const auto x = random_numbers<T>(rows * columns, rng);
  std::vector<std::int32_t> listed(count);
  for (auto& row : listed) row = static_cast<std::int32_t>(rng() % rows);
  listed.back() = static_cast<std::int32_t>(rows - 1);
  const auto found = outcome<T>(table, x, columns, listed, bits, 1);
  for (int threads : {2, 5}) {
    const auto other = outcome<T>(table, x, columns, listed, bits, threads);
    expect(found == other, "rows in few bits depend on the number of threads", table, columns);
  }
  double error = 0;
  bool whole = true;
  for (std::int64_t i = 0; i < count * columns; ++i) {
    const auto exact =
        static_cast<double>(spgnn::widen(x[listed[i / columns] * columns + i % columns]));
    const auto arrived = static_cast<double>(spgnn::widen(found.y[i]));
    error += (arrived - exact) * (arrived - exact);
    whole &= std::abs(arrived + spgnn::widen(found.residual[i]) - exact) <=
             0.02 * (1 + std::abs(arrived));
  }
  expect(whole, "what arrives and what does not are not the row", table, columns);
  expect(std::abs(found.lost[0] - error) <= 1e-9 * error, "what is lost differs", table, columns);
}

template <class T> void test_all(const KernelTable& table) {
  for (std::int64_t columns : {1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 129, 300}) {
    for (int bits : {1, 2, 4, 8, 16}) test<T>(table, columns, bits);
  }
}

}  // namespace

int main() {
  for (const auto isa : spgnn::available_isas()) {
    const KernelTable& table = spgnn::table_of(isa);
    test_all<float>(table);
    test_all<double>(table);
    test_all<Bfloat16>(table);
    std::printf("%s, few bits: %d failures\n", spgnn::name_of(isa), failures);
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
