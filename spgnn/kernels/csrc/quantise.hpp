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

// Bytes of packed rows, or −1 − b where some bits b are none of 16, 8, 4, 2 and 1.
inline std::int64_t packed_size(const std::uint8_t* bits, std::int64_t count,
                                std::int64_t columns) {
  std::int64_t of_bits[256] = {};
  for (std::int64_t i = 0; i < count; ++i) ++of_bits[bits[i]];
  std::int64_t bytes = 0;
  for (int b = 0; b < 256; ++b) {
    if (of_bits[b] == 0) continue;
    if (b != 16 && b != 8 && b != 4 && b != 2 && b != 1) return -1 - b;
    bytes += of_bits[b] * packed_row_bytes(columns, b);
  }
  return bytes;
}

// Calls work(number of a span, span, its first packed byte) for spans of about 64 KiB of unpacked
// rows; spans do not depend on the number of threads.
struct PackedSpans {
  std::int64_t rows_each, count;
  std::vector<std::int64_t> begins;

  PackedSpans(std::int64_t rows, std::int64_t columns, std::int64_t bytes_of_one,
              const RowBits& bits) {
    const std::int64_t row_bytes = columns * bytes_of_one + 1;
    rows_each = std::max<std::int64_t>(16, (std::int64_t{64} << 10) / row_bytes / 16 * 16);
    count = rows;
    begins.reserve(size());
    std::int64_t begin = 0;
    for (std::int64_t row = 0; row < rows;) {
      begins.push_back(begin);
      const std::int64_t end = std::min(row + rows_each, rows);
      if (!bits.each) {
        begin += (end - row) * packed_row_bytes(columns, bits.all);
        row = end;
      }
      for (; row < end; ++row) begin += packed_row_bytes(columns, bits.each[row]);
    }
  }

  std::int64_t size() const { return (count + rows_each - 1) / rows_each; }

  template <class Work>
  void for_each(int threads, const Work& work) const {
    for_each_task(size(), threads, [&](std::int64_t i) {
      work(i, Span{i * rows_each, std::min((i + 1) * rows_each, count)}, begins[i]);
    });
  }
};

// Adds what was lost of every span, in their order, to `lost` unless it is null.
template <class T>
void quantise_rows(const KernelTable& table, const QuantiseOperands<T>& a, double* lost,
                   int threads) {
  const auto& kernel = std::get<QuantiseKernels<T>>(*table.quantise).quantise;
  const PackedSpans spans(a.count, a.columns, sizeof(T), a.bits);
  std::vector<Lost> of_spans(lost ? spans.size() : 0);
  spans.for_each(threads, [&](std::int64_t i, Span rows, std::int64_t begin) {
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
  const PackedSpans spans(a.count, a.columns, sizeof(T), a.bits);
  spans.for_each(threads, [&](std::int64_t, Span rows, std::int64_t begin) {
    kernel(a, rows, a.packed + begin);
  });
}

}  // namespace spgnn
