// What every instruction set provides, as tables of function pointers, and the table at work.
#pragma once

#include <stdexcept>
#include <string>
#include <tuple>

#include "instruction_sets.hpp"
#include "types.hpp"

namespace spgnn {

// Kernels for each type of elements, and for each of indices as well.
template <template <class> class Of> using ByType = std::tuple<Of<float>, Of<double>, Of<Bfloat16>>;
template <template <class, class> class Of>
using ByIndex = std::tuple<Of<float, i32>, Of<float, i64>, Of<double, i32>, Of<double, i64>,
                           Of<Bfloat16, i32>, Of<Bfloat16, i64>>;

// Columns of A before `end` that no earlier block has; `next`: each row's first nonzero in it.
struct SourceBlock {
  i64* next;
  i64 end;
  bool first, last;
};

template <class T, class Index> struct SpmmKernels {
  // Finished rows of Y.
  void (*rows)(const SpmmOperands<T, Index>&, Span rows);
  // Adds what rows have in a block to their sums in Y; longer rows than a task are left.
  void (*block)(const SpmmOperands<T, Index>&, const SourceBlock&, Span rows);
  // The unscaled sum over some nonzeros of one row.
  void (*partial)(const SpmmOperands<T, Index>&, Span nonzeros, Sum<T>* sums);
  // The products of rows that belong to some nonzeros.
  void (*sddmm)(const SddmmOperands<T, Index>&, Span nonzeros);
};

template <class T, class Index> struct RowKernels {
  // Y[i] = scale[i] X[rows[i]] for i in the span.
  void (*gather)(const RowOperands<T, Index>&, Span listed);
  // Y[rows[i]] += scale[i] X[i] in the order of i, for the rows of Y that `owner` owns.
  void (*scatter_add)(const RowOperands<T, Index>&, u32 owner, u32 owners);
};

// Y[i] = X[i] / (1 - p) where kept, 0 elsewhere.
template <class T>
using DropoutKernel = void (*)(const RowOperands<T, i64>&, const DropoutRule&, Span listed);

template <class T> struct UpdateKernels {
  void (*update)(const UpdateOperands<T>&, Span rows);
  // `sums` [columns], if not null, become those of these rows.
  void (*gradients)(const UpdateGradients<T>&, Span rows, Sum<T>* sums);
};

// On `count` neighbouring numbers, of which number i belongs to head i % heads. Arrays of sums hold
// lanes_of(heads) numbers; the first `heads` of them are results.
template <class T> struct SegmentKernels {
  i64 (*lanes_of)(i64 heads);
  // Of each head: the largest number, and the sum of exp(number − largest).
  void (*summarise)(const T* x, i64 count, i64 heads, Sum<T>* largest, Sum<T>* sum);
  // y = exp(x − largest) · factor, by head.
  void (*exponentials)(const T* x, i64 count, i64 heads, Sum<T>* largest, Sum<T>* factor, T* y);
  // Of each head: the sum of a · b, or of a where b is null.
  void (*sum_products)(const T* a, const T* b, i64 count, i64 heads, Sum<T>* sum);
  // y = sum, by head.
  void (*spread)(i64 count, i64 heads, Sum<T>* sum, T* y);
};

// Rows of attention (docs/kernels.md); `indptr` begins at the first; `room` is memory to work in.
template <class T> struct AttentionKernels {
  using Attend = void (*)(const AttentionOperands<T>&, const AttentionTarget<T>&, Span rows,
                          const i64* indptr, char* room);
  using Backward = void (*)(const AttentionOperands<T>&, const AttentionGradients<T>&, Span rows,
                            const i64* indptr, char* room);
  void (*pack)(const PackOperands<T>&, Span rows);
  Attend attend, attend_v2;
  Backward backward[3];  // GAT's columns, GATv2's, and GATv2's rows
  // Merges a row's triple into another; writes a row's.
  void (*merge)(const Triples<Sum<T>>& into, const Triples<Sum<T>>& other, i64 heads, i64 width);
  void (*end)(const AttentionTarget<T>&, i64 row, const Triples<Sum<T>>&, i64 heads, i64 width);
  // <x[h], y[h]> of one row, for each head; y is of T, or a sum.
  void (*head_products)(const T* x, const T* y, i64 heads, i64 width, Sum<T>* products);
  void (*head_products_of_sums)(const T* x, const Sum<T>* y, i64 heads, i64 width,
                                Sum<T>* products);
};

// Packed rows of a span lie one after another, from the address given on.
template <class T> struct QuantiseKernels {
  void (*quantise)(const QuantiseOperands<T>&, Span rows, u8* packed, Lost* lost);
  void (*dequantise)(const DequantiseOperands<T>&, Span rows, const u8* packed);
};

template <class T> struct EdgeKernels {
  // Finished rows of sums of messages; and the sum over some nonzeros of one row.
  void (*rows)(const EdgeOperands<T>&, EdgeOp, Span rows);
  void (*partial)(const EdgeOperands<T>&, EdgeOp, i64 row, Span nonzeros, Sum<T>* sums);
  void (*products)(const EdgeProducts<T>&, EdgeOp, Span nonzeros);
  void (*extremes)(const EdgeExtremes<T>&, EdgeOp, Span rows);
  void (*adjoint)(const ExtremeAdjoint<T>&, Span columns);
};

using UpdateTable = ByType<UpdateKernels>;
using AttentionTable = ByType<AttentionKernels>;
using QuantiseTable = ByType<QuantiseKernels>;
using EdgeTable = ByType<EdgeKernels>;

// What passes of a product: where y, of its shape, is not positive, it is zero. All without y.
struct GemmPassing {
  const float* y;
  i64 stride;
};

struct GemmKernels {
  i64 lanes;  // of a vector
  // Adds up the columns in `sums` [whole vectors], if there is y.
  void (*product)(const GemmProduct&, const GemmPassing&, Span rows, float* sums);
  void (*gradient)(const GemmGradient&, Span rows, float* room, float* sums);
};

// The loss of rows with a target and in the mask, and its gradient. NaN: a target is no column.
template <class T>
using CrossEntropyKernel = double (*)(const CrossEntropyOperands<T>&, const bool* mask, Span rows);

using CrossEntropyTable = std::tuple<CrossEntropyKernel<float>, CrossEntropyKernel<double>>;

struct KernelTable {
  ByIndex<SpmmKernels> spmm;
  ByIndex<RowKernels> rows;
  ByType<DropoutKernel> dropout;
  ByType<SegmentKernels> segments;
  const AttentionTable* attention;
  const WeighingTable* weighing;
  const QuantiseTable* quantise;
  const EdgeTable* edges;
  const UpdateTable* update;
  const GemmKernels* gemm;
  const CrossEntropyTable* cross_entropy;
};

namespace baseline {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
#ifdef SPGNN_ISA
namespace SPGNN_ISA {  // compiled by themselves
extern const AttentionTable attention_table;
extern const WeighingTable weighing_table;
extern const QuantiseTable quantise_table;
extern const EdgeTable edge_table;
extern const UpdateTable update_table;
extern const GemmKernels gemm_table;
extern const CrossEntropyTable cross_entropy_table;
}  // namespace SPGNN_ISA
#endif

// The kernels of an instruction set that this build has.
inline const KernelTable& table_of(Isa isa) {
#ifdef SPGNN_AVX512
  if (isa == Isa::kAvx512) return avx512::table;
#endif
#ifdef SPGNN_AVX2
  if (isa == Isa::kAvx2) return avx2::table;
#endif
#ifdef SPGNN_BASELINE
  if (isa == Isa::kBaseline) return baseline::table;
#endif
  throw std::logic_error(std::string("no kernels for ") + name_of(isa));
}

inline const KernelTable& current_table() { return table_of(current_isa()); }

}  // namespace spgnn
