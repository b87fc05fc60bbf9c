// Rows in few bits, on threads.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

inline std::int64_t packed_row_bytes(std::int64_t columns, int bits) {
  return bits == 16 ? 2 * columns : 4 + (columns * bits + 7) / 8;
}

// Calls work(number of a span, span, its first packed byte) for spans of about 64 KiB of unpacked
// rows, at least sixteen; spans do not depend on the number of threads.
template <class Work>
void for_each_span(std::int64_t rows, std::int64_t columns, std::int64_t bytes_of_one, int bits,
                   int threads, const Work& work) {
  const std::int64_t row_bytes = columns * bytes_of_one + 1;
  const std::int64_t each =
      std::max<std::int64_t>(16, (std::int64_t{64} << 10) / row_bytes / 16 * 16);
  for_each_task((rows + each - 1) / each, threads, [&](std::int64_t i) {
    work(i, Span{i * each, std::min((i + 1) * each, rows)},
         i * each * packed_row_bytes(columns, bits));
  });
}

// Adds what was lost of every span, in their order, to `lost` unless it is null.
template <class T>
void quantise_rows(const KernelTable& table, const QuantiseOperands<T>& a, double* lost,
                   int threads) {
  const auto& kernel = std::get<QuantiseKernels<T>>(*table.quantise).quantise;
  std::vector<Lost> of_spans(lost ? (a.count + 15) / 16 : 0);
  for_each_span(a.count, a.columns, sizeof(T), a.bits, threads,
                [&](std::int64_t i, Span rows, std::int64_t begin) {
                  kernel(a, rows, a.packed + begin, lost ? &of_spans[i] : nullptr);
                });
  for (const Lost& one : of_spans) {
    lost[0] += one.error;
    lost[1] += one.size;
  }
}

template <class T>
void dequantise_rows(const KernelTable& table, const DequantiseOperands<T>& a, int threads) {
  const auto& kernel = std::get<QuantiseKernels<T>>(*table.quantise).dequantise;
  for_each_span(
      a.count, a.columns, sizeof(T), a.bits, threads,
      [&](std::int64_t, Span rows, std::int64_t begin) { kernel(a, rows, a.packed + begin); });
}

}  // namespace spgnn
