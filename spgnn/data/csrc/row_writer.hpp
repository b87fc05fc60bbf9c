// Rows of a random graph, a range at a time: each pass draws all edges again and keeps its own.
#pragma once

#include <array>
#include <atomic>
#include <numeric>
#include <span>
#include <vector>

#include "big_array.hpp"
#include "parallel.hpp"
#include "random_graphs.hpp"

namespace spgnn {

struct RowRange {
  std::vector<std::int32_t> lengths;
  BigArray<std::int32_t> columns;  // rows one after another; longer than needed
  std::int64_t nonzeros = 0;
};

// Draws edges [0, edges) and hands those that are no self-loops to visit, a batch at a time, so
// that it can ask for all the memory it will touch before it touches any.
template <class Model, class Visit>
void for_each_batch(const Model& model, std::uint64_t edges, int threads, const Tick& tick,
                    const Visit& visit) {
  constexpr std::uint64_t kChunk = 1 << 18, kBatch = 256;
  parallel_chunks(
      static_cast<std::int64_t>((edges + kChunk - 1) / kChunk), threads,
      [&](std::int64_t chunk, int) {
        std::array<Edge, kBatch> batch;
        std::uint64_t begin = chunk * kChunk, end = std::min(begin + kChunk, edges);
        for (std::uint64_t i = begin; i < end;) {
          std::size_t size = 0;
          for (; i < end && size < kBatch; ++i) {
            batch[size] = model(i);
            size += batch[size].first != batch[size].second;
          }
          visit(std::span(batch.data(), size));
        }
      },
      tick);
}

// Entries of each row, both directions of an edge counted, duplicates included.
template <class Model>
BigArray<std::int32_t> count_degrees(const Model& model, std::uint64_t vertices,
                                     std::uint64_t edges, int threads, const Tick& tick) {
  BigArray<std::int32_t> degrees(vertices);
  for_each_batch(model, edges, threads, tick, [&](std::span<const Edge> batch) {
    for (auto [u, v] : batch) {
      __builtin_prefetch(&degrees[u], 1);
      __builtin_prefetch(&degrees[v], 1);
    }
    for (auto [u, v] : batch) {
      std::atomic_ref(degrees[u]).fetch_add(1, std::memory_order_relaxed);
      std::atomic_ref(degrees[v]).fetch_add(1, std::memory_order_relaxed);
    }
  });
  return degrees;
}

// Puts all entries of rows [first, first + rows) in their rows, in no order; next[r] is where row
// r begins, and where it ends afterwards.
template <class Model>
void scatter_entries(const Model& model, std::uint64_t first, BigArray<std::int64_t>& next,
                     BigArray<std::int32_t>& columns, std::uint64_t edges, int threads,
                     const Tick& tick) {
  for_each_batch(model, edges, threads, tick, [&](std::span<const Edge> batch) {
    struct Entry {
      std::uint64_t row, column;
    };
    std::array<Entry, 512> entries;
    std::array<std::int64_t, 512> place;
    std::size_t count = 0;
    auto add = [&](std::uint64_t row, std::uint64_t column) {
      if (row - first >= next.size()) return;
      entries[count++] = {row - first, column};
      __builtin_prefetch(&next[row - first], 1);
    };
    for (auto [u, v] : batch) {
      add(u, v);
      add(v, u);
    }
    for (std::size_t i = 0; i < count; ++i) {
      place[i] = std::atomic_ref(next[entries[i].row]).fetch_add(1, std::memory_order_relaxed);
      __builtin_prefetch(&columns[place[i]], 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      columns[place[i]] = static_cast<std::int32_t>(entries[i].column);
    }
  });
}

// Rows [first, first + degrees.size()), sorted and without duplicates.
template <class Model>
RowRange draw_rows(const Model& model, std::uint64_t first, std::span<const std::int32_t> degrees,
                   std::uint64_t edges, int threads, const Tick& tick) {
  std::uint64_t rows = degrees.size();
  BigArray<std::int64_t> next(rows);
  std::exclusive_scan(degrees.begin(), degrees.end(), next.begin(), std::int64_t{0});
  std::int64_t entries = rows ? next[rows - 1] + degrees[rows - 1] : 0;
  RowRange range{std::vector<std::int32_t>(rows), BigArray<std::int32_t>(entries)};
  scatter_entries(model, first, next, range.columns, edges, threads, tick);
  constexpr std::int64_t kRows = 1 << 14;
  parallel_chunks((rows + kRows - 1) / kRows, threads, [&](std::int64_t chunk, int) {
    std::int64_t end = std::min<std::int64_t>((chunk + 1) * kRows, rows);
    for (std::int64_t v = chunk * kRows; v < end; ++v) {
      std::int32_t* end_of_row = range.columns.data() + next[v];
      std::int32_t* row = end_of_row - degrees[v];
      std::sort(row, end_of_row);
      range.lengths[v] = static_cast<std::int32_t>(std::unique(row, end_of_row) - row);
    }
  });
  for (std::uint64_t v = 0; v < rows; ++v) {
    const std::int32_t* row = range.columns.data() + next[v] - degrees[v];
    std::copy(row, row + range.lengths[v], range.columns.data() + range.nonzeros);
    range.nonzeros += range.lengths[v];
  }
  return range;
}

}  // namespace spgnn
