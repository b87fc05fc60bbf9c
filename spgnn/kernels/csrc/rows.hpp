// Operations on rows, on threads.
#pragma once

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

// Whether every number of the list is in [0, limit).
template <class Index> bool in_range(const Index* rows, i64 count, i64 limit) {
  bool outside = false;
  for (i64 i = 0; i < count; ++i) {
    outside |= static_cast<u64>(i64{rows[i]}) >= static_cast<u64>(limit);
  }
  return !outside;
}

// Calls work(task, span) for spans of `each` rows, whatever the number of threads.
template <class Work> void for_each_span(i64 rows, i64 each, int threads, const Work& work) {
  for_each_task((rows + each - 1) / each, threads, [&](i64 task) {
    work(task, Span{task * each, std::min((task + 1) * each, rows)});
  });
}

// So many rows are about 64 KiB; at least sixteen.
inline i64 rows_of_span(i64 row_bytes) {
  return std::max<i64>(16, (i64{64} << 10) / std::max<i64>(1, row_bytes));
}

template <class T, class Index>
void gather_rows(const KernelTable& table, const RowOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<RowKernels<T, Index>>(table.rows);
  for_each_span(a.count, rows_of_span(a.columns * sizeof(T)), threads,
                [&](i64, Span listed) { kernels.gather(a, listed); });
}

// Every thread walks the whole list and adds the rows it owns, in the order of the list.
template <class T, class Index>
void scatter_add_rows(const KernelTable& table, const RowOperands<T, Index>& a, int threads) {
  const auto& kernels = std::get<RowKernels<T, Index>>(table.rows);
  const bool small = a.count * a.columns < 16384;
  const int owners = small ? 1 : std::max(1, threads);
  for_each_task(owners, threads, [&](i64 owner) {
    kernels.scatter_add(a, static_cast<u32>(owner), static_cast<u32>(owners));
  });
}

template <class T>
void dropout_rows(const KernelTable& table, const RowOperands<T, i64>& a, const DropoutRule& rule,
                  int threads) {
  const auto& kernel = std::get<DropoutKernel<T>>(table.dropout);
  for_each_span(a.count, rows_of_span(a.columns * sizeof(T)), threads,
                [&](i64, Span listed) { kernel(a, rule, listed); });
}

template <class T>
void update_rows(const KernelTable& table, const UpdateOperands<T>& a, int threads) {
  const auto& kernels = std::get<UpdateKernels<T>>(*table.update);
  for_each_span(a.count, rows_of_span(a.columns * sizeof(T)), threads,
                [&](i64, Span rows) { kernels.update(a, rows); });
}

// `sums` [columns], if not null: of dx, by columns.
template <class T>
void update_gradients(const KernelTable& table, const UpdateGradients<T>& a, Sum<T>* sums,
                      int threads) {
  const auto& kernels = std::get<UpdateKernels<T>>(*table.update);
  const i64 each = rows_of_span(a.columns * sizeof(T));
  const i64 tasks = (a.count + each - 1) / each;
  std::vector<Sum<T>> partial(sums ? tasks * a.columns : 0);
  for_each_span(a.count, each, threads, [&](i64 task, Span rows) {
    kernels.gradients(a, rows, sums ? partial.data() + task * a.columns : nullptr);
  });
  for (i64 c = 0; sums && c < a.columns; ++c) {
    double total = 0;
    for (i64 task = 0; task < tasks; ++task) total += partial[task * a.columns + c];
    sums[c] = static_cast<Sum<T>>(total);
  }
}

inline i64 rows_of_entropies(i64 columns) {
  return std::max<i64>(16, 16384 / std::max<i64>(1, columns));
}

template <class T>
double cross_entropy(const KernelTable& table, const CrossEntropyOperands<T>& a, const bool* mask,
                     int threads) {
  const auto kernel = std::get<CrossEntropyKernel<T>>(*table.cross_entropy);
  const i64 each = rows_of_entropies(a.columns);
  std::vector<double> losses((a.count + each - 1) / each);
  for_each_span(a.count, each, threads,
                [&](i64 task, Span rows) { losses[task] = kernel(a, mask, rows); });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

// Dense products of many rows with a matrix of few, on threads.

inline i64 whole_tiles(i64 count, i64 tile) { return (count + tile - 1) / tile * tile; }

// A result of a dense product [count, columns], without gaps, or a matrix w [columns, depth].
struct GemmMatrix {
  float* first;
  i64 columns;
};

// z = x wᵀ with w [columns, depth]. Of two x and w, the sum of both products; of two w and z, both.
// With y, which is of one z, `totals` [columns] become the sums over rows of what passes.
inline void gemm_product(const KernelTable& table, const GemmOperand (&x)[2],
                         const float* const (&w)[2], const GemmMatrix (&z)[2], i64 count,
                         const GemmPassing& passing, float* totals, int threads) {
  constexpr i64 kRows = 384;
  const auto& kernels = *table.gemm;
  const i64 lanes = kernels.lanes, depth = x[0].columns + x[1].columns;
  std::vector<GemmColumns> columns;
  std::vector<float> packed;
  packed.reserve((z[0].columns + z[1].columns + 2 * lanes) * depth);
  for (const GemmMatrix& result : z) {
    for (i64 first = 0; first < result.columns; first += lanes) {
      const i64 some = std::min(lanes, result.columns - first);
      columns.push_back({result.first + first, result.columns, static_cast<int>(some)});
    }
  }
  const i64 vectors = std::ssize(columns), of_first = (z[0].columns + lanes - 1) / lanes;
  packed.resize(vectors * lanes * depth);
  for (i64 v = 0; v < vectors; ++v) {
    const i64 before = v / kGemmVectors * kGemmVectors;
    const i64 width = std::min(kGemmVectors, vectors - before) * lanes;
    float* to = packed.data() + before * lanes * depth + (v - before) * lanes;
    const int result = v >= of_first;
    const i64 first = (v - result * of_first) * lanes;
    for (int term = 0; term < 2; ++term) {
      const float* from = w[std::max(term, result)] + first * x[term].columns;
      for (int j = 0; j < columns[v].lanes; ++j) {
        for (i64 k = 0; k < x[term].columns; ++k) {
          to[k * width + j] = from[j * x[term].columns + k];
        }
      }
      to += x[term].columns * width;
    }
  }
  const GemmProduct a{{x[0], x[1]}, packed.data(), columns.data(), vectors};
  const i64 width = passing.y ? vectors * lanes : 0;
  std::vector<float> sums((count + kRows - 1) / kRows * width);
  for_each_span(count, kRows, threads, [&](i64 task, Span rows) {
    kernels.product(a, passing, rows, sums.data() + task * width);
  });
  if (!passing.y) return;
  std::vector<double> total(width);
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % width] += sums[i];
  std::copy_n(total.begin(), z[0].columns, totals);
}

// sums = gᵀ x, for each of two g or of two x. Tasks, and so bits, depend on the shapes alone.
inline void gemm_gradient(const KernelTable& table, GemmGradient a, i64 count,
                          float* const (&sums)[2], int threads) {
  constexpr i64 kRows = 2048, kMostTasks = 64, kFewestTasks = 8;
  constexpr i64 kPartialFloats = 1 << 22, kPanelFloats = 1 << 16, kMostInPanel = 120;
  const auto& kernels = *table.gemm;
  const i64 columns = a.columns(), lanes = kernels.lanes;
  a.sums_height = whole_tiles(columns, 4);
  a.sums_stride = whole_tiles(a.x[0].columns, lanes) + whole_tiles(a.x[1].columns, lanes);
  const i64 size = a.sums_height * a.sums_stride, width = a.sums_height + a.sums_stride;
  a.panel = std::clamp<i64>(kPanelFloats / width, 32, kMostInPanel);
  const auto most = std::clamp(kPartialFloats / size, kFewestTasks, kMostTasks);
  const i64 rows = std::max(kRows, (count + most - 1) / most);
  const i64 tasks = (count + rows - 1) / rows;
  std::vector<float> partial(tasks * size);
  for_each_span(count, rows, threads, [&](i64 task, Span some) {
    std::vector<float> room(a.panel * width);
    kernels.gradient(a, some, room.data(), partial.data() + task * size);
  });
  for_each_task(columns, size * tasks < 1 << 16 ? 1 : threads, [&](i64 j) {
    std::vector<double> total(a.sums_stride);
    for (i64 task = 0; task < tasks; ++task) {
      const float* row = partial.data() + task * size + j * a.sums_stride;
      for (i64 k = 0; k < a.sums_stride; ++k) total[k] += row[k];
    }
    const bool second = j >= a.g[0].columns;
    const i64 row = second ? j - a.g[0].columns : j, depth = a.x[0].columns;
    std::copy(total.begin(), total.begin() + depth, sums[second] + row * depth);
    if (const i64 other = a.x[1].columns) {
      const auto begin = total.begin() + whole_tiles(depth, lanes);
      std::copy(begin, begin + other, sums[1] + row * other);
    }
  });
}

// Rows in few bits, on threads.

inline i64 packed_row_bytes(i64 columns, int bits) {
  return bits == 16 ? 2 * columns : 4 + (columns * bits + 7) / 8;
}

template <class Operands> i64 rows_of_packing(const Operands& a, i64 bytes_of_one) {
  return rows_of_span(a.columns * bytes_of_one + 1) / 16 * 16;
}

// Adds what was lost of every span, in their order, to `lost` unless it is null.
template <class T>
void quantise_rows(const KernelTable& table, const QuantiseOperands<T>& a, double* lost,
                   int threads) {
  const auto& kernel = std::get<QuantiseKernels<T>>(*table.quantise).quantise;
  const i64 bytes = packed_row_bytes(a.columns, a.bits);
  std::vector<Lost> of_spans(lost ? (a.count + 15) / 16 : 0);
  for_each_span(a.count, rows_of_packing(a, sizeof(T)), threads, [&](i64 i, Span rows) {
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
  const i64 bytes = packed_row_bytes(a.columns, a.bits);
  for_each_span(a.count, rows_of_packing(a, sizeof(T)), threads,
                [&](i64, Span rows) { kernel(a, rows, a.packed + rows.begin * bytes); });
}

}  // namespace spgnn
