// What C++ tests of kernels share: random operands, and failures that are counted.
#pragma once

#include <cstdio>
#include <random>
#include <vector>

#include "bfloat16.hpp"
#include "dispatch.hpp"

namespace {

int failures = 0;

void expect(bool condition, const char* what, const spgnn::KernelTable& table,
            std::int64_t columns) {
  if (condition) return;
  std::fprintf(stderr, "FAILED on %s with %lld columns: %s\n", table.name,
               static_cast<long long>(columns), what);
  ++failures;
}

template <class T>
std::vector<T> random_numbers(std::int64_t count, std::mt19937_64& rng) {
  std::normal_distribution<double> normal;
  std::vector<T> numbers(count);
  for (T& x : numbers) x = spgnn::narrow<T>(static_cast<spgnn::Sum<T>>(normal(rng)));
  return numbers;
}

}  // namespace
