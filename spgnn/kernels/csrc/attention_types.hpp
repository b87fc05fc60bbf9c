// Plain data of attention, which drivers and kernels share.
#pragma once

#include "types.hpp"

namespace spgnn {

// Rows that are gathered, at byte data + i · stride: matrices [width][padded heads], filled up with
// zeros to packed_columns(…), then numbers [padded heads].
struct PackedRows {
  const char* data;
  std::int64_t stride;
};

constexpr std::int64_t packed_columns(std::int64_t padded, std::int64_t width) {
  return (padded * width + 15) / 16 * 16;
}

// Which weights are dropped: a hash of the edge's ends.
struct EdgeDropout {
  const std::int64_t *own_ids, *other_ids;  // null: none is
  bool by_column;                           // whether the rows of the operands are sources
  std::uint64_t seed, threshold;            // as in DropoutRule
  double factor;
};

// One side of an attention: own rows, and for each of their nonzeros a row of the other side.
template <class T>
struct AttentionOperands {
  const std::int64_t* indptr;
  std::int64_t rows;
  Numbers indices;
  Numbers order;  // of each nonzero, among the numbers of edges
  std::int64_t heads, padded, width;
  Sum<T> slope;
  PackedRows others;
  const T* own[2];  // plain rows [heads][width]
  std::int64_t own_stride[2];
  const Sum<T>* own_numbers[2];  // plain [rows, heads]
  const Sum<T>* a;               // GATv2: [heads, width]
  const Sum<T>* edge_scores;     // [nonzeros, heads], or null
  const T* edge_features;        // GATv2: [nonzeros, heads · width], or null
  EdgeDropout dropout;
};

// Running triples of rows, plain.
template <class S>
struct Triples {
  S *m, *n, *o;
  S *p, *pi;  // or null
};

enum class Ending { kStored, kMerged, kFinished };

// Where triples go. Finished ones are normalised: sums to `out`, m + log n to `lse`, and p and pi.
template <class T>
struct AttentionTarget {
  Triples<Sum<T>> triples;
  Ending ending;
  T* out;
  Sum<T>* lse;
};

// Gradients in what own rows hold.
template <class T>
struct AttentionGradients {
  T* rows;              // [rows, heads · width]
  Sum<T>* numbers;      // GAT: [rows, heads]
  Sum<T>* sums;         // if not null, both go here instead, as sums: [rows, heads · width + heads]
  Sum<T>* a;            // GATv2, by row: [width][padded heads], added to
  Sum<T>* edge_scores;  // as those of the operands
  T* edge_features;
};

// What is packed: matrices and numbers beside each other.
template <class T>
struct PackOperands {
  std::int64_t heads, padded, width;
  const T* matrices[2];
  std::int64_t strides[2];
  const Sum<T>* numbers[3];
  char* packed;
  std::int64_t stride;
};

inline constexpr std::int64_t kAttentionTask = 2048;  // most nonzeros of a row, or a piece of one
inline constexpr std::int64_t kAttentionChunk = 128;  // nonzeros whose weights are made at a time
inline constexpr std::int64_t kAttentionAhead = 16;   // rows to have on their way

// Bytes that a kernel works in.
constexpr std::int64_t attention_room(std::int64_t padded, std::int64_t width,
                                      std::int64_t bytes_of_sum) {
  const std::int64_t pointers = 8 * (2 * kAttentionTask + kAttentionAhead);
  const std::int64_t scores = kAttentionTask * padded + 16;
  const std::int64_t chunks = 6 * (kAttentionChunk * padded + 16);
  const std::int64_t rows = 12 * (packed_columns(padded, width) + 16) + 16 * (padded + 16);
  return 64 * 40 + pointers + bytes_of_sum * (scores + chunks + rows);
}

}  // namespace spgnn
