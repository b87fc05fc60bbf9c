// Plain data that the drivers and the instruction-set-specific kernels share. No functions but
// constant expressions and those that are always inlined (inlined.hpp says why).
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "inlined.hpp"

namespace spgnn {

// Storage only; arithmetic on it happens in float.
struct Bfloat16 {
  std::uint16_t bits;
};

template <class T>  // the type in which sums of T are taken
using Sum = std::conditional_t<std::is_same_v<T, Bfloat16>, float, T>;

template <class T>
[[gnu::always_inline]] inline Sum<T> widen(T x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return __builtin_bit_cast(float, std::uint32_t{x.bits} << 16);
  } else {
    return x;
  }
}

// Rounds to nearest, ties to even; every NaN becomes the one that torch writes.
template <class T>
[[gnu::always_inline]] inline T narrow(Sum<T> x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    if (x != x) return {0x7fc0};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  } else {
    return x;
  }
}

// Y = diag(row_scale) B diag(col_scale) X, or Y += the same. Null means all ones.
template <class T, class Index>
struct SpmmOperands {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  const Sum<T>* values;
  std::int64_t value_stride;  // from the value of a nonzero to that of the next
  const Sum<T>* row_scale;
  const Sum<T>* col_scale;
  const T* x;
  std::int64_t x_rows;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  bool accumulate;
  bool near = false;  // whether X is read without fetching ahead (see spmm.hpp)
};

// products[e] = row_scale[i] · col_scale[j] · <g[i], x[j]> for nonzero e in row i and column j.
template <class T, class Index>
struct SddmmOperands {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  const Sum<T>* row_scale;
  const Sum<T>* col_scale;
  const T* g;
  std::int64_t g_stride;
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  Sum<T>* products;
  std::int64_t product_stride;  // as value_stride
};

// Matrices beside each other that share a pattern: those of x are x_stride elements apart, those of
// the other dense matrix y_stride; their values, or products, are neighbours.
struct Heads {
  std::int64_t count, x_stride, y_stride;
};

// A list of numbers of one of two widths; without either, number i is i.
struct Numbers {
  const std::int32_t* narrow;
  const std::int64_t* wide;
  [[gnu::always_inline]] std::int64_t operator[](std::int64_t i) const {
    return narrow ? narrow[i] : wide ? wide[i] : i;
  }
};

// Some rows, nonzeros or columns.
struct Span {
  std::int64_t begin, end;
};

// Index: of the list of row numbers (gather, scatter) or vertex ids (dropout).
template <class T, class Index>
struct RowOperands {
  const T* x;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  const Index* rows;
  std::int64_t count;
  const Sum<T>* scale;  // one factor per listed row, or null
};

struct DropoutRule {
  std::uint64_t seed;       // mix64(key)
  std::uint64_t threshold;  // dropped where the 32-bit hash is below it
  double factor;            // 1 / (1 - p)
};

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

template <class T>
struct QuantiseOperands {
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  std::int64_t count;  // of packed rows
  Numbers rows;        // of x
  int bits;            // 16, 8, 4, 2 or 1
  const std::int64_t* ids;
  std::uint64_t seed;  // mix64(key)
  bool stochastic;
  T* residual;  // or null
  std::int64_t residual_stride;
  std::uint8_t* packed;
};

template <class T>
struct DequantiseOperands {
  const std::uint8_t* packed;
  std::int64_t columns;
  std::int64_t count;
  Numbers rows;  // of y
  int bits;
  T* y;
  std::int64_t y_stride;
};

// Sum of (arrived − x)², sum of x².
struct Lost {
  double error, size;
};

// What is made of a number x. Where it is not positive: 0, alpha · x, alpha · (exp(x) − 1).
enum class Act : int { kNone, kRelu, kLeakyRelu, kElu };

// y = dropout(act(x + bias)), each step rounded to T; y may be x.
template <class T>
struct UpdateOperands {
  const T* x;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  std::int64_t count;  // of rows
  const Sum<T>* bias;  // or null
  Act act;
  double alpha;
  const std::int64_t* vertex_ids;  // or null: nothing is dropped
  DropoutRule rule;
};

// dx = g · factor · act′ where it was kept, else 0; and the sums of its columns.
template <class T>
struct UpdateGradients {
  const T* g;
  std::int64_t g_stride;
  const T* y;  // the result; or null, without an activation
  std::int64_t y_stride;
  T* dx;
  std::int64_t dx_stride;
  std::int64_t columns;
  std::int64_t count;
  Act act;
  double alpha;
  const std::int64_t* vertex_ids;  // or null: nothing is dropped, or a ReLU's y says what was
  DropoutRule rule;                // of which the factor counts with y as well
};

// out[i, c] = max or min of x[j, c] over the nonzeros (i, j), arg[i, c] = first_column + the first
// j that has it. What is no number comes before all that are; rows without nonzeros have 0 and −1.
template <class T, class Index>
struct ExtremeOperands {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  bool largest;
  bool begun;  // whether out and arg are those of blocks before this one
  std::int64_t first_column;
  T* out;
  std::int64_t out_stride;
  std::int32_t* narrow_arg;  // [rows, columns], or null:
  std::int64_t* wide_arg;
};

// dx[arg[i, c], c] += g[i, c] in the order of i, where arg is not negative.
template <class T>
struct ExtremeAdjoint {
  const T* g;
  std::int64_t g_stride;
  const std::int32_t* narrow_arg;
  const std::int64_t* wide_arg;
  std::int64_t rows;
  std::int64_t columns;
  T* dx;  // [columns of A, columns]
};

// What becomes of x of a nonzero's column and v of the nonzero: x · v, x + v, x − v, x / v, v,
// max(x + v, 0); and its adjoint in x, where the row's own w and v say whether x counts: w + v > 0.
enum class EdgeOp : int { kMul, kAdd, kSub, kDiv, kCopy, kAddRelu, kGate };

// Nonzeros and rows of v, one each: nonzero e has row order[e]. One number of v serves so many
// neighbouring columns: 1, or all of a head.
template <class T>
struct EdgeOperands {
  const std::int64_t* indptr;
  Numbers indices, order;
  std::int64_t rows;
  const T* x;  // null: kCopy
  std::int64_t x_stride;
  const T* w;  // of own rows; null but for kGate
  std::int64_t w_stride;
  const T* v;
  std::int64_t v_stride;
  std::int64_t columns;
  std::int64_t width;
  T* out;
  std::int64_t out_stride;
};

// out[e] = g[i] · x[j] (kMul), g[i] where x[j] + v[e] > 0 (kGate), or g[i] + x[j] + v[e] of those
// that are not null (kAdd), for nonzero e in row i and column j.
template <class T>
struct EdgeProducts {
  const std::int64_t* indptr;
  Numbers indices;
  std::int64_t rows;
  const T* g;
  std::int64_t g_stride;
  const T* x;
  std::int64_t x_stride;
  const T* v;
  std::int64_t v_stride;
  std::int64_t columns;
  T* out;  // [nonzeros, columns]
};

// out[i, c] = max or min over the nonzeros e of row i, arg[i, c] = the first e that has it; a
// number that is none comes before all that are. Empty rows have 0 and −1.
template <class T>
struct EdgeExtremes {
  EdgeOperands<T> of;
  bool largest;
  std::int32_t* narrow_arg;  // [rows, columns], or null:
  std::int64_t* wide_arg;
};

// A matrix whose rows lie `stride` numbers apart; without columns where there is none.
struct GemmOperand {
  const float* rows;
  std::int64_t stride;
  std::int64_t columns;
};

// Neighbouring columns of a result, as many as a vector has lanes or fewer.
struct GemmColumns {
  float* z;
  std::int64_t stride;
  int lanes;
};

// Rows of z = Σ_t x[t] w[t]: w lies in panels of kGemmVectors vectors of columns, the last of which
// may be narrower. A panel has the rows of w[0], then those of w[1].
struct GemmProduct {
  GemmOperand x[2];
  const float* w;
  const GemmColumns* z;
  std::int64_t vectors;
};
inline constexpr std::int64_t kGemmVectors = 2;

// The sums over rows i of g[i, j] x[i, k], with the columns of two g, or of two x, side by side.
struct GemmGradient {
  GemmOperand g[2], x[2];
  std::int64_t panel;        // rows that are summed up at a time
  std::int64_t sums_height;  // a multiple of four
  std::int64_t sums_stride;  // whole vectors of each x

  std::int64_t columns() const { return g[0].columns + g[1].columns; }
};

// Of the rows whose target is not negative: Σ log Σ_c exp(x[i, c]) − x[i, target[i]].
template <class T>
struct CrossEntropyOperands {
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  std::int64_t count;  // of rows
  const std::int64_t* target;
};

// dx[i, c] = factor (softmax(x[i])[c] − [c = target[i]]), 0 where the target is negative.
template <class T>
struct CrossEntropyGradient {
  CrossEntropyOperands<T> of;
  T factor;
  T* dx;
  std::int64_t dx_stride;
};

}  // namespace spgnn
