// Plain data of attention backward by rows, which drivers and kernels share.
#pragma once

#include <tuple>

#include "attention_types.hpp"

namespace spgnn {

// One more nonzero of some rows, after those of the pattern.
struct AttentionLoops {
  const bool* there;            // [rows], or null: there are none
  const std::int64_t* columns;  // [rows]
};

// What rows send to the sources that they weigh, and the gradients of the rows' own ends.
template <class T>
struct AttentionSent {
  char* sums;  // of sources, rows as they are packed: matrix and, in GAT, numbers of scores
  std::int64_t stride;
  Sum<T>* numbers;  // GAT: [rows, heads], added to
  T* rows;          // GATv2: [rows, heads · width], added to
};

// Nonzeros of some rows, one after another: columns, weights and gradients of scores [nonzeros,
// padded heads]. Those of row rows.begin + i are begins[i] to begins[i + 1].
template <class S>
struct WeighedRows {
  Span rows;
  const std::int64_t* begins;
  std::int64_t* columns;
  S *weights, *changes;
};

// What is asked: to weigh rows; to summarise a long one, and to weigh a piece of it, which is all
// that there is then; to add what was weighed to every source of an owner.
enum class Ask { kRows, kSummary, kPiece, kScatter };
template <class S>
struct WeighingTask {
  Ask ask;
  Span rows;   // of these
  Span piece;  // of the nonzeros of a row
  S* summary;  // of a row: [3, padded heads]
  S* a;        // GATv2: [width][padded heads], added to
  std::uint32_t owner, owners;
};

inline constexpr std::int64_t kWeighed = 1024;  // nonzeros whose products are kept

constexpr std::int64_t weighing_room(std::int64_t padded, std::int64_t width,
                                     std::int64_t bytes_of_sum) {
  const std::int64_t pointers = 8 * (2 * kAttentionTask + kAttentionAhead + kWeighed);
  const std::int64_t numbers = 3 * (kWeighed * padded + 16) + kAttentionChunk * padded + 16;
  const std::int64_t rows = 8 * (packed_columns(padded, width) + 16) + 8 * (padded + 16);
  return 64 * 40 + pointers + bytes_of_sum * (numbers + rows);
}

template <class T>
struct WeighingKernels {
  // GAT's rows, which send to their columns, and GATv2's. `room` is memory to work in.
  void (*weigh[2])(const AttentionOperands<T>&, const AttentionLoops&, const AttentionSent<T>&,
                   const WeighedRows<Sum<T>>&, const WeighingTask<Sum<T>>&, char* room);
};

using WeighingTable = std::tuple<WeighingKernels<float>, WeighingKernels<double>>;

}  // namespace spgnn
