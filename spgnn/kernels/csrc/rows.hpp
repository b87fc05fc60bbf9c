// Operations on rows, on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "dense.hpp"
#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Whether every number of the list is in [0, limit).
template <class Index>
bool in_range(const Index* rows, std::int64_t count, std::int64_t limit) {
  bool outside = false;
  for (std::int64_t i = 0; i < count; ++i) {
    outside |=
        static_cast<std::uint64_t>(std::int64_t{rows[i]}) >= static_cast<std::uint64_t>(limit);
  }
  return !outside;
}

// Calls work(task, span) for spans of `each` rows. They do not depend on the number of threads, so
// neither do sums that are taken span by span.
template <class Work>
void for_each_span(std::int64_t rows, std::int64_t each, int threads, const Work& work) {
  for_each_task((rows + each - 1) / each, threads, [&](std::int64_t task) {
    work(task, Span{task * each, std::min((task + 1) * each, rows)});
  });
}

// So many rows are about 64 KiB; at least sixteen.
inline std::int64_t rows_of_span(std::int64_t row_bytes) {
  return std::max<std::int64_t>(16,
                                (std::int64_t{64} << 10) / std::max<std::int64_t>(1, row_bytes));
}

template <class T, class Index>
void gather_rows(const KernelTable& table, const RowOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<RowKernels<T, Index>>(table.rows);
  for_each_span(a.count, rows_of_span(a.columns * sizeof(T)), threads,
                [&](std::int64_t, Span listed) { kernels.gather(a, listed); });
}

// Every thread walks the whole list and adds the rows it owns, so each row of Y receives its
// contributions in the order of the list, whatever the number of threads.
template <class T, class Index>
void scatter_add_rows(const KernelTable& table, const RowOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<RowKernels<T, Index>>(table.rows);
  const bool small = a.count * a.columns < 16384;
  const int owners = small ? 1 : std::max(1, threads);
  for_each_task(owners, threads, [&](std::int64_t owner) {
    kernels.scatter_add(a, static_cast<std::uint32_t>(owner), static_cast<std::uint32_t>(owners));
  });
}

template <class T>
void dropout_rows(const KernelTable& table, const RowOperands<T, std::int64_t>& a,
                  const DropoutRule& rule, int threads) {
  const auto& kernel = std::get<DropoutKernel<T>>(table.dropout);
  for_each_span(a.count, rows_of_span(a.columns * sizeof(T)), threads,
                [&](std::int64_t, Span listed) { kernel(a, rule, listed); });
}

template <class T>
void update_rows(const KernelTable& table, const UpdateOperands<T>& a, int threads) {
  const auto& kernels = std::get<UpdateKernels<T>>(*table.update);
  for_each_span(a.count, rows_of_span(a.columns * sizeof(T)), threads,
                [&](std::int64_t, Span rows) { kernels.update(a, rows); });
}

// `sums` [columns], if not null: of dx, by columns.
template <class T>
void update_gradients(const KernelTable& table, const UpdateGradients<T>& a, Sum<T>* sums,
                      int threads) {
  const auto& kernels = std::get<UpdateKernels<T>>(*table.update);
  const std::int64_t each = rows_of_span(a.columns * sizeof(T));
  const std::int64_t tasks = (a.count + each - 1) / each;
  std::vector<Sum<T>> partial(sums ? tasks * a.columns : 0);
  for_each_span(a.count, each, threads, [&](std::int64_t task, Span rows) {
    kernels.gradients(a, rows, sums ? partial.data() + task * a.columns : nullptr);
  });
  for (std::int64_t c = 0; sums && c < a.columns; ++c) {
    double total = 0;
    for (std::int64_t task = 0; task < tasks; ++task) total += partial[task * a.columns + c];
    sums[c] = static_cast<Sum<T>>(total);
  }
}

inline std::int64_t rows_of_entropies(std::int64_t columns) {
  return std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(1, columns));
}

template <class T>
double cross_entropy(const KernelTable& table, const CrossEntropyGradient<T>& a, const bool* mask,
                     int threads) {
  CrossEntropyKernel<T> kernel;
  if constexpr (std::is_same_v<T, float>) {
    kernel = table.cross_entropy->of_float;
  } else {
    kernel = table.cross_entropy->of_double;
  }
  const std::int64_t each = rows_of_entropies(a.of.columns);
  std::vector<double> losses((a.of.count + each - 1) / each);
  for_each_span(a.of.count, each, threads,
                [&](std::int64_t task, Span rows) { losses[task] = kernel(a, mask, rows); });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

// The largest and smallest of listed rows, and their adjoint, on threads.

// Every row is by itself: tasks are neighbouring rows of about as many nonzeros.
template <class T, class Index>
void extreme_rows(const KernelTable& table, const ExtremeOperands<T, Index>& a, int threads) {
  constexpr std::int64_t kTask = 2048;  // nonzeros, and rows
  const auto& kernels = std::get<ExtremeKernels<T, Index>>(*table.extremes);
  // What the rows before one weigh, which grows from row to row.
  const auto weight = [&](std::int64_t row) { return a.indptr[row] + row; };
  const std::int64_t tasks = (weight(a.rows) + kTask - 1) / kTask;
  const auto first_row = [&](std::int64_t task) {
    return first_where(0, a.rows, [&](std::int64_t row) { return weight(row) >= task * kTask; });
  };
  for_each_task(tasks, threads, [&](std::int64_t task) {
    kernels.extremes(a, {first_row(task), first_row(task + 1)});
  });
}

// A task has some columns of all rows, so sums do not depend on the number of threads.
template <class T>
void extreme_adjoint(const KernelTable& table, const ExtremeAdjoint<T>& a, int threads) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const auto& kernels = std::get<ExtremeKernels<T, std::int32_t>>(*table.extremes);
  const std::int64_t each =
      std::max<std::int64_t>(kLine, (a.columns + threads - 1) / threads / kLine * kLine);
  for_each_span(a.columns, each, threads,
                [&](std::int64_t, Span columns) { kernels.adjoint(a, columns); });
}

// Dense products of many rows with a matrix of few, on threads.

inline std::int64_t whole_tiles(std::int64_t count, std::int64_t tile) {
  return (count + tile - 1) / tile * tile;
}

// A result of a dense product [count, columns], without gaps, or a matrix w [columns, depth].
struct GemmMatrix {
  float* first;
  std::int64_t columns;
};

// z = x wᵀ with w [columns, depth]. Of two x and w, the sum of both products; of two w and z, both.
// With y, which is of one z, `totals` [columns] become the sums over rows of what passes.
inline void gemm_product(const KernelTable& table, const GemmOperand (&x)[2],
                         const float* const (&w)[2], const GemmMatrix (&z)[2], std::int64_t count,
                         const GemmPassing& passing, float* totals, int threads) {
  constexpr std::int64_t kRows = 384;
  const auto& kernels = *table.gemm;
  const std::int64_t lanes = kernels.lanes, depth = x[0].columns + x[1].columns;
  std::vector<GemmColumns> columns;
  std::vector<float> packed;
  packed.reserve((z[0].columns + z[1].columns + 2 * lanes) * depth);
  struct Source {
    int result;
    std::int64_t first;
  };
  std::vector<Source> sources;
  for (int result = 0; result < 2; ++result) {
    for (std::int64_t first = 0; first < z[result].columns; first += lanes) {
      const std::int64_t some = std::min(lanes, z[result].columns - first);
      columns.push_back({z[result].first + first, z[result].columns, static_cast<int>(some)});
      sources.push_back({result, first});
    }
  }
  packed.resize(sources.size() * lanes * depth);
  const auto vectors = static_cast<std::int64_t>(sources.size());
  for (std::int64_t v = 0; v < vectors; ++v) {
    const std::int64_t before = v / kGemmVectors * kGemmVectors;
    const std::int64_t width = std::min(kGemmVectors, vectors - before) * lanes;
    float* to = packed.data() + before * lanes * depth + (v - before) * lanes;
    const auto& [result, first] = sources[v];
    for (int term = 0; term < 2; ++term) {
      const float* from = w[std::max(term, result)] + first * x[term].columns;
      for (int j = 0; j < columns[v].lanes; ++j) {
        for (std::int64_t k = 0; k < x[term].columns; ++k) {
          to[k * width + j] = from[j * x[term].columns + k];
        }
      }
      to += x[term].columns * width;
    }
  }
  const GemmProduct a{{x[0], x[1]}, packed.data(), columns.data(), vectors};
  const std::int64_t width = passing.y ? vectors * lanes : 0;
  std::vector<float> sums((count + kRows - 1) / kRows * width);
  for_each_span(count, kRows, threads, [&](std::int64_t task, Span rows) {
    kernels.product(a, passing, rows, sums.data() + task * width);
  });
  if (!passing.y) return;
  std::vector<double> total(width);
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % width] += sums[i];
  std::copy_n(total.begin(), z[0].columns, totals);
}

// sums = gᵀ x [columns of g, columns of x], for each of two g or of two x. Tasks depend on the
// shapes alone, and so do the bits.
inline void gemm_gradient(const KernelTable& table, GemmGradient a, std::int64_t count,
                          float* const (&sums)[2], int threads) {
  constexpr std::int64_t kRows = 2048, kMostTasks = 64, kFewestTasks = 8;
  constexpr std::int64_t kPartialFloats = 1 << 22, kPanelFloats = 1 << 16, kMostInPanel = 128;
  const auto& kernels = *table.gemm;
  const std::int64_t columns = a.columns(), lanes = kernels.lanes;
  a.sums_height = whole_tiles(columns, 4);
  a.sums_stride = whole_tiles(a.x[0].columns, lanes) + whole_tiles(a.x[1].columns, lanes);
  const std::int64_t size = a.sums_height * a.sums_stride, width = a.sums_height + a.sums_stride;
  a.panel = std::clamp<std::int64_t>(kPanelFloats / width, 32, kMostInPanel);
  const auto most = std::clamp(kPartialFloats / size, kFewestTasks, kMostTasks);
  const std::int64_t rows = std::max(kRows, (count + most - 1) / most);
  const std::int64_t tasks = (count + rows - 1) / rows;
  std::vector<float> partial(tasks * size);
  for_each_span(count, rows, threads, [&](std::int64_t task, Span some) {
    std::vector<float> room(a.panel * width);
    kernels.gradient(a, some, room.data(), partial.data() + task * size);
  });
  for_each_task(columns, size * tasks < 1 << 16 ? 1 : threads, [&](std::int64_t j) {
    std::vector<double> total(a.sums_stride);
    for (std::int64_t task = 0; task < tasks; ++task) {
      const float* row = partial.data() + task * size + j * a.sums_stride;
      for (std::int64_t k = 0; k < a.sums_stride; ++k) total[k] += row[k];
    }
    const bool second = j >= a.g[0].columns;
    const std::int64_t row = second ? j - a.g[0].columns : j, depth = a.x[0].columns;
    std::copy(total.begin(), total.begin() + depth, sums[second] + row * depth);
    if (const std::int64_t other = a.x[1].columns) {
      const auto begin = total.begin() + whole_tiles(depth, lanes);
      std::copy(begin, begin + other, sums[1] + row * other);
    }
  });
}

// Rows in few bits, on threads.

inline std::int64_t packed_row_bytes(std::int64_t columns, int bits) {
  return bits == 16 ? 2 * columns : 4 + (columns * bits + 7) / 8;
}

template <class Operands>
std::int64_t rows_of_packing(const Operands& a, std::int64_t bytes_of_one) {
  return rows_of_span(a.columns * bytes_of_one + 1) / 16 * 16;
}

// Adds what was lost of every span, in their order, to `lost` unless it is null.
template <class T>
void quantise_rows(const KernelTable& table, const QuantiseOperands<T>& a, double* lost,
                   int threads) {
  const auto& kernel = std::get<QuantiseKernels<T>>(*table.quantise).quantise;
  const std::int64_t bytes = packed_row_bytes(a.columns, a.bits);
  std::vector<Lost> of_spans(lost ? (a.count + 15) / 16 : 0);
  for_each_span(a.count, rows_of_packing(a, sizeof(T)), threads, [&](std::int64_t i, Span rows) {
    kernel(a, rows, a.packed + rows.begin * bytes, lost ? &of_spans[i] : nullptr);
  });
  for (const Lost& one : of_spans) {
    lost[0] += one.error;
    lost[1] += one.size;
  }
}

template <class T>
void dequantise_rows(const KernelTable& table, const DequantiseOperands<T>& a, int threads) {
  const auto& kernel = std::get<QuantiseKernels<T>>(*table.quantise).dequantise;
  const std::int64_t bytes = packed_row_bytes(a.columns, a.bits);
  for_each_span(a.count, rows_of_packing(a, sizeof(T)), threads,
                [&](std::int64_t, Span rows) { kernel(a, rows, a.packed + rows.begin * bytes); });
}

}  // namespace spgnn
