// What C++ tests of kernels share: random operands, comparisons, and failures that are counted.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernel_table.hpp"
#include "spmm.hpp"
#include "types.hpp"

namespace {

int failures = 0;

void expect(bool condition, const char* what, const spgnn::KernelTable& table,
            std::int64_t columns) {
  if (condition) return;
  const char* set = "some instruction set";
  for (const auto isa : spgnn::available_isas()) {
    if (&table == &spgnn::table_of(isa)) set = spgnn::name_of(isa);
  }
  std::fprintf(stderr, "FAILED on %s with %lld columns: %s\n", set, static_cast<long long>(columns),
               what);
  ++failures;
}

template <class T> std::vector<T> random_numbers(std::int64_t count, std::mt19937_64& rng) {
  std::normal_distribution<double> normal;
  std::vector<T> numbers(count);
  for (T& x : numbers) x = spgnn::narrow<T>(static_cast<spgnn::Sum<T>>(normal(rng)));
  return numbers;
}

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(T)));
}

template <class T> double tolerance() {
  return sizeof(T) == 2 ? 2e-2 : sizeof(T) == 4 ? 2e-5 : 1e-13;
}

// Relative to the sum of absolute terms.
template <class T> bool is_close(T actual, double expected, double magnitude) {
  return std::abs(static_cast<double>(spgnn::widen(actual)) - expected) <=
         tolerance<T>() * magnitude + 1e-30;
}

template <class Index> struct Matrix {
  std::int64_t rows, cols;
  std::vector<std::int64_t> indptr{0};
  std::vector<Index> indices;
};

// Short, empty and (where asked) longer rows than a task; the last column is always used.
template <class Index> Matrix<Index> random_matrix(bool with_long_rows, std::mt19937_64& rng) {
  Matrix<Index> matrix{with_long_rows ? 600 : 37, 53, {0}, {}};
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    std::int64_t length = static_cast<std::int64_t>(rng() % 12);
    if (with_long_rows && row % 150 == 149) length = spgnn::kTaskSize * 2 + row % 3 - 1;
    for (std::int64_t e = 0; e < length; ++e) {
      matrix.indices.push_back(static_cast<Index>(e == 0 ? matrix.cols - 1 : rng() % matrix.cols));
    }
    matrix.indptr.push_back(static_cast<std::int64_t>(matrix.indices.size()));
  }
  return matrix;
}

}  // namespace
