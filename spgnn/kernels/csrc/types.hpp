// Plain data of drivers and kernels. No functions but constant or always inlined ones.
#pragma once

#include <tuple>
#include <type_traits>

#include "inlined.hpp"

namespace spgnn {

// Storage only; arithmetic on it happens in float.
struct Bfloat16 {
  u16 bits;
};

template <class T>  // the type in which sums of T are taken
using Sum = std::conditional_t<std::is_same_v<T, Bfloat16>, float, T>;

template <class T> [[gnu::always_inline]] inline Sum<T> widen(T x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return __builtin_bit_cast(float, u32{x.bits} << 16);
  } else {
    return x;
  }
}

// Rounds to nearest, ties to even; every NaN becomes the one that torch writes.
template <class T> [[gnu::always_inline]] inline T narrow(Sum<T> x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const auto bits = __builtin_bit_cast(u32, x);
    if (x != x) return {0x7fc0};
    return {static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  } else {
    return x;
  }
}

// Rows of a matrix, `stride` elements apart; or none, at null.
template <class T> struct RowsOf {
  T* data;
  i64 stride;
  [[gnu::always_inline]] T* operator[](i64 row) const { return data + row * stride; }
  [[gnu::always_inline]] explicit operator bool() const { return data; }
};

// Numbers of one of two widths; without either, number i is i.
template <class Narrow, class Wide> struct NumbersOf {
  Narrow* narrow;
  Wide* wide;
  [[gnu::always_inline]] i64 operator[](i64 i) const {
    return narrow ? narrow[i] : wide ? wide[i] : i;
  }
  [[gnu::always_inline]] explicit operator bool() const { return narrow || wide; }
  [[gnu::always_inline]] void set(i64 i, i64 number) const {
    if (narrow) {
      narrow[i] = static_cast<i32>(number);
    } else {
      wide[i] = number;
    }
  }
};
using Numbers = NumbersOf<const i32, const i64>;
using Places = NumbersOf<i32, i64>;

// Some rows, nonzeros or columns.
struct Span {
  i64 begin, end;
};

// Y = diag(row_scale) B diag(col_scale) X, or Y += the same. Null means all ones.
template <class T, class Index> struct SpmmOperands {
  const i64* indptr;
  const Index* indices;
  i64 rows;
  RowsOf<const Sum<T>> values;  // one of each nonzero
  const Sum<T>*row_scale, *col_scale;
  RowsOf<const T> x;
  i64 x_rows;
  RowsOf<T> y;
  i64 columns;
  bool accumulate;
  bool near = false;  // whether X is read without fetching ahead (see spmm.hpp)
};

// products[e] = row_scale[i] · col_scale[j] · <g[i], x[j]> for nonzero e in row i and column j.
template <class T, class Index> struct SddmmOperands {
  const i64* indptr;
  const Index* indices;
  i64 rows;
  const Sum<T>*row_scale, *col_scale;
  RowsOf<const T> g, x;
  i64 columns;
  RowsOf<Sum<T>> products;  // one of each nonzero
};

// Matrices beside each other that share a pattern: those of x are x_stride elements apart, those of
// the other dense matrix y_stride; their values, or products, are neighbours.
struct Heads {
  i64 count, x_stride, y_stride;
};

// Index: of the list of row numbers (gather, scatter) or vertex ids (dropout).
template <class T, class Index> struct RowOperands {
  RowsOf<const T> x;
  RowsOf<T> y;
  i64 columns;
  const Index* rows;
  i64 count;
  const Sum<T>* scale;  // one factor per listed row, or null
};

struct DropoutRule {
  u64 seed;       // mix64(key)
  u64 threshold;  // dropped where the 32-bit hash is below it
  double factor;  // 1 / (1 - p)
};

// Rows that are gathered, at byte data + i · stride: matrices [width][padded heads], filled up with
// zeros to packed_columns(…), then numbers [padded heads].
struct PackedRows {
  const char* data;
  i64 stride;
};

constexpr i64 packed_columns(i64 padded, i64 width) { return (padded * width + 15) / 16 * 16; }

// Which weights are dropped: a hash of the edge's ends.
struct EdgeDropout {
  const i64 *own_ids, *other_ids;  // null: none is
  bool by_column;                  // whether the rows of the operands are sources
  u64 seed, threshold;             // as in DropoutRule
  double factor;
};

// One side of an attention: own rows, and for each of their nonzeros a row of the other side.
template <class T> struct AttentionOperands {
  const i64* indptr;
  i64 rows;
  Numbers indices;
  Numbers order;  // of each nonzero, among the numbers of edges
  i64 heads, padded, width;
  Sum<T> slope;
  PackedRows others;
  RowsOf<const T> own[2];        // plain [heads][width]
  const Sum<T>* own_numbers[2];  // plain [rows, heads]
  const Sum<T>* a;               // GATv2: [heads, width]
  const Sum<T>* edge_scores;     // [nonzeros, heads], or null
  const T* edge_features;        // GATv2: [nonzeros, heads · width], or null
  EdgeDropout dropout;
};

// Running triples of rows, plain.
template <class S> struct Triples {
  S *m, *n, *o;
  S *p, *pi;  // or null
};

enum class Ending { kStored, kMerged, kFinished };

// Where triples go. Finished ones are normalised: sums to `out`, m + log n to `lse`, and p and pi.
template <class T> struct AttentionTarget {
  Triples<Sum<T>> triples;
  Ending ending;
  T* out;
  Sum<T>* lse;
};

// Gradients in what own rows hold.
template <class T> struct AttentionGradients {
  T* rows;              // [rows, heads · width]
  Sum<T>* numbers;      // GAT: [rows, heads]
  Sum<T>* sums;         // if not null, both go here instead, as sums: [rows, heads · width + heads]
  Sum<T>* a;            // GATv2, by row: [width][padded heads], added to
  Sum<T>* edge_scores;  // as those of the operands
  T* edge_features;
};

// What is packed: matrices and numbers beside each other.
template <class T> struct PackOperands {
  i64 heads, padded, width;
  RowsOf<const T> matrices[2];
  const Sum<T>* numbers[3];
  char* packed;
  i64 stride;
};

inline constexpr i64 kAttentionTask = 2048;  // most nonzeros of a row, or a piece of one
inline constexpr i64 kAttentionChunk = 128;  // nonzeros whose weights are made at a time
inline constexpr i64 kAttentionAhead = 16;   // rows to have on their way

// Bytes that a kernel works in.
constexpr i64 attention_room(i64 padded, i64 width, i64 bytes_of_sum) {
  const i64 pointers = 8 * (2 * kAttentionTask + kAttentionAhead);
  const i64 scores = kAttentionTask * padded + 16;
  const i64 chunks = 6 * (kAttentionChunk * padded + 16);
  const i64 rows = 12 * (packed_columns(padded, width) + 16) + 16 * (padded + 16);
  return 64 * 40 + pointers + bytes_of_sum * (scores + chunks + rows);
}

// One more nonzero of some rows, after those of the pattern.
struct AttentionLoops {
  const bool* there;   // [rows], or null: there are none
  const i64* columns;  // [rows]
};

// What rows send to the sources that they weigh, and the gradients of the rows' own ends.
template <class T> struct AttentionSent {
  char* sums;  // of sources, rows as they are packed: matrix and, in GAT, numbers of scores
  i64 stride;
  Sum<T>* numbers;  // GAT: [rows, heads], added to
  T* rows;          // GATv2: [rows, heads · width], added to
};

// Nonzeros of some rows, one after another: columns, weights and gradients of scores [nonzeros,
// padded heads]. Those of row rows.begin + i are begins[i] to begins[i + 1].
template <class S> struct WeighedRows {
  Span rows;
  const i64* begins;
  i64* columns;
  S *weights, *changes;
};

// To weigh rows; to summarise a long one, and to weigh a piece of it; to add to an owner's sources.
enum class Ask { kRows, kSummary, kPiece, kScatter };
template <class S> struct WeighingTask {
  Ask ask;
  Span rows;   // of these
  Span piece;  // of the nonzeros of a row
  S* summary;  // of a row: [3, padded heads]
  S* a;        // GATv2: [width][padded heads], added to
  u32 owner, owners;
};

inline constexpr i64 kWeighed = 1024;  // nonzeros whose products are kept

constexpr i64 weighing_room(i64 padded, i64 width, i64 bytes_of_sum) {
  const i64 pointers = 8 * (2 * kAttentionTask + kAttentionAhead + kWeighed);
  const i64 numbers = 3 * (kWeighed * padded + 16) + kAttentionChunk * padded + 16;
  const i64 rows = 8 * (packed_columns(padded, width) + 16) + 8 * (padded + 16);
  return 64 * 40 + pointers + bytes_of_sum * (numbers + rows);
}

template <class T> struct WeighingKernels {
  // GAT's rows, which send to their columns, and GATv2's. `room` is memory to work in.
  void (*weigh[2])(const AttentionOperands<T>&, const AttentionLoops&, const AttentionSent<T>&,
                   const WeighedRows<Sum<T>>&, const WeighingTask<Sum<T>>&, char* room);
};

using WeighingTable = std::tuple<WeighingKernels<float>, WeighingKernels<double>>;

template <class T> struct QuantiseOperands {
  RowsOf<const T> x;
  i64 columns;
  i64 count;     // of packed rows
  Numbers rows;  // of x
  int bits;      // 16, 8, 4, 2 or 1
  const i64* ids;
  u64 seed;  // mix64(key)
  bool stochastic;
  RowsOf<T> residual;  // or none
  u8* packed;
};

template <class T> struct DequantiseOperands {
  const u8* packed;
  i64 columns;
  i64 count;
  Numbers rows;  // of y
  int bits;
  RowsOf<T> y;
};

// Sum of (arrived − x)², sum of x².
struct Lost {
  double error, size;
};

// What is made of a number x. Where it is not positive: 0, alpha · x, alpha · (exp(x) − 1).
enum class Act : int { kNone, kRelu, kLeakyRelu, kElu };

// y = dropout(act(x + bias)), each step rounded to T; y may be x.
template <class T> struct UpdateOperands {
  RowsOf<const T> x;
  RowsOf<T> y;
  i64 columns;
  i64 count;           // of rows
  const Sum<T>* bias;  // or null
  Act act;
  double alpha;
  const i64* vertex_ids;  // or null: nothing is dropped
  DropoutRule rule;
};

// dx = g · factor · act′ where it was kept, else 0; and the sums of its columns.
template <class T> struct UpdateGradients {
  RowsOf<const T> g;
  RowsOf<const T> y;  // the result; or none, without an activation
  RowsOf<T> dx;
  i64 columns;
  i64 count;
  Act act;
  double alpha;
  const i64* vertex_ids;  // or null: nothing is dropped, or a ReLU's y says what was
  DropoutRule rule;       // of which the factor counts with y as well
};

// dx[arg[i, c], c] += g[i, c] in the order of i, where arg is not negative.
template <class T> struct ExtremeAdjoint {
  RowsOf<const T> g;
  Numbers arg;
  i64 rows;
  i64 columns;
  T* dx;  // [columns of A, columns]
};

// What becomes of x of a nonzero's column and v of the nonzero: x · v, x + v, x − v, x / v, v,
// max(x + v, 0); and its adjoint in x, where the row's own w and v say whether x counts: w + v > 0.
enum class EdgeOp : int { kMul, kAdd, kSub, kDiv, kCopy, kAddRelu, kGate };

// Nonzero e has row order[e] of v; one number of v serves `width` columns: 1, or a head's.
template <class T> struct EdgeOperands {
  const i64* indptr;
  Numbers indices, order;
  i64 rows;
  RowsOf<const T> x;  // none: kCopy
  RowsOf<const T> w;  // of own rows; none but for kGate
  RowsOf<const T> v;
  i64 columns;
  i64 width;
  RowsOf<T> out;
};

// out[e] = g[i] · x[j] (kMul), g[i] where x[j] + v[e] > 0 (kGate), or g[i] + x[j] + v[e] of those
// that are not null (kAdd), for nonzero e in row i and column j.
template <class T> struct EdgeProducts {
  const i64* indptr;
  Numbers indices;
  i64 rows;
  RowsOf<const T> g, x, v;
  i64 columns;
  T* out;  // [nonzeros, columns]
};

// out[i, c] = max or min over row i, arg[i, c] = the first nonzero (or first_column + row of v)
// that has it. NaNs come first; empty rows have 0 and −1, or what earlier blocks gave.
template <class T> struct EdgeExtremes {
  EdgeOperands<T> of;
  bool largest;
  Places arg;  // [rows, columns]
  bool begun = false;
  i64 first_column = -1;  // negative: nonzeros are named
};

// A matrix whose rows lie `stride` numbers apart; without columns where there is none.
struct GemmOperand {
  const float* rows;
  i64 stride;
  i64 columns;
};

// Neighbouring columns of a result, as many as a vector has lanes or fewer.
struct GemmColumns {
  float* z;
  i64 stride;
  int lanes;
};

// Rows of z = Σ_t x[t] w[t]: w lies in panels of kGemmVectors vectors of columns, the last of which
// may be narrower. A panel has the rows of w[0], then those of w[1].
struct GemmProduct {
  GemmOperand x[2];
  const float* w;
  const GemmColumns* z;
  i64 vectors;
};
inline constexpr i64 kGemmVectors = 2;

// The sums over rows i of g[i, j] x[i, k], with the columns of two g, or of two x, side by side.
struct GemmGradient {
  GemmOperand g[2], x[2];
  i64 panel;        // rows that are summed up at a time
  i64 sums_height;  // a multiple of four
  i64 sums_stride;  // whole vectors of each x

  i64 columns() const { return g[0].columns + g[1].columns; }
};

// Of the rows whose target is not negative: Σ log Σ_c exp(x[i, c]) − x[i, target[i]], and
// dx[i, c] = factor (softmax(x[i])[c] − [c = target[i]]), 0 in other rows.
template <class T> struct CrossEntropyOperands {
  RowsOf<const T> x;
  i64 columns;
  i64 count;  // of rows
  const i64* target;
  T factor;
  RowsOf<T> dx;  // or none
};

}  // namespace spgnn
