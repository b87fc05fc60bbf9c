// What every instruction set provides, as tables of function pointers, and the table at work.
#pragma once

#include <stdexcept>
#include <string>
#include <tuple>

#include "instruction_sets.hpp"
#include "types.hpp"

namespace spgnn {

// Kernels for each type of elements, and for each of indices as well.
template <template <class> class Of>
using ByType = std::tuple<Of<float>, Of<double>, Of<Bfloat16>>;
template <template <class, class> class Of>
using ByIndex =
    std::tuple<Of<float, std::int32_t>, Of<float, std::int64_t>, Of<double, std::int32_t>,
               Of<double, std::int64_t>, Of<Bfloat16, std::int32_t>, Of<Bfloat16, std::int64_t>>;

// Columns of A before `end` that no earlier block has. `next` is each row's first nonzero in it,
// and then in the next block. Only the last one has sums scaled.
struct SourceBlock {
  std::int64_t* next;
  std::int64_t end;
  bool first, last;
};

template <class T, class Index>
struct SpmmKernels {
  // Finished rows of Y.
  void (*rows)(const SpmmOperands<T, Index>&, Span rows);
  // Adds what rows have in a block to their sums in Y; longer rows than a task are left.
  void (*block)(const SpmmOperands<T, Index>&, const SourceBlock&, Span rows);
  // The unscaled sum over some nonzeros of one row.
  void (*partial)(const SpmmOperands<T, Index>&, Span nonzeros, Sum<T>* sums);
  // The products of rows that belong to some nonzeros.
  void (*sddmm)(const SddmmOperands<T, Index>&, Span nonzeros);
};

template <class T, class Index>
struct RowKernels {
  // Y[i] = scale[i] X[rows[i]] for i in the span.
  void (*gather)(const RowOperands<T, Index>&, Span listed);
  // Y[rows[i]] += scale[i] X[i] in the order of i, for the rows of Y that `owner` owns.
  void (*scatter_add)(const RowOperands<T, Index>&, std::uint32_t owner, std::uint32_t owners);
};

// Y[i] = X[i] / (1 - p) where kept, 0 elsewhere.
template <class T>
using DropoutKernel = void (*)(const RowOperands<T, std::int64_t>&, const DropoutRule&,
                               Span listed);

template <class T>
struct UpdateKernels {
  void (*update)(const UpdateOperands<T>&, Span rows);
  // `sums` [columns], if not null, become those of these rows.
  void (*gradients)(const UpdateGradients<T>&, Span rows, Sum<T>* sums);
};

// On `count` neighbouring numbers, of which number i belongs to head i % heads. Arrays of sums hold
// lanes_of(heads) numbers; the first `heads` of them are results.
template <class T>
struct SegmentKernels {
  std::int64_t (*lanes_of)(std::int64_t heads);
  // Of each head: the largest number, and the sum of exp(number − largest).
  void (*summarise)(const T* x, std::int64_t count, std::int64_t heads, Sum<T>* largest,
                    Sum<T>* sum);
  // y = exp(x − largest) · factor, by head.
  void (*exponentials)(const T* x, std::int64_t count, std::int64_t heads, Sum<T>* largest,
                       Sum<T>* factor, T* y);
  // Of each head: the sum of a · b, or of a where b is null.
  void (*sum_products)(const T* a, const T* b, std::int64_t count, std::int64_t heads, Sum<T>* sum);
  // y = sum, by head.
  void (*spread)(std::int64_t count, std::int64_t heads, Sum<T>* sum, T* y);
};

// Rows of attention (docs/kernels.md). `indptr` begins at the first of the rows given; `room` is
// memory to work in.
template <class T>
struct AttentionKernels {
  using Attend = void (*)(const AttentionOperands<T>&, const AttentionTarget<T>&, Span rows,
                          const std::int64_t* indptr, char* room);
  using Backward = void (*)(const AttentionOperands<T>&, const AttentionGradients<T>&, Span rows,
                            const std::int64_t* indptr, char* room);
  void (*pack)(const PackOperands<T>&, Span rows);
  Attend attend, attend_v2;
  Backward backward[3];  // GAT's columns, GATv2's, and GATv2's rows
  // Merges a row's triple into another; writes a row's.
  void (*merge)(const Triples<Sum<T>>& into, const Triples<Sum<T>>& other, std::int64_t heads,
                std::int64_t width);
  void (*end)(const AttentionTarget<T>&, std::int64_t row, const Triples<Sum<T>>&,
              std::int64_t heads, std::int64_t width);
  // <x[h], y[h]> of one row, for each head; y is of T, or a sum.
  void (*head_products)(const T* x, const T* y, std::int64_t heads, std::int64_t width,
                        Sum<T>* products);
  void (*head_products_of_sums)(const T* x, const Sum<T>* y, std::int64_t heads, std::int64_t width,
                                Sum<T>* products);
};

// Packed rows of a span lie one after another, from the address given on.
template <class T>
struct QuantiseKernels {
  void (*quantise)(const QuantiseOperands<T>&, Span rows, std::uint8_t* packed, Lost* lost);
  void (*dequantise)(const DequantiseOperands<T>&, Span rows, const std::uint8_t* packed);
};

template <class T, class Index>
struct ExtremeKernels {
  void (*extremes)(const ExtremeOperands<T, Index>&, Span rows);
  void (*adjoint)(const ExtremeAdjoint<T>&, Span columns);
};

template <class T>
struct EdgeKernels {
  // Finished rows of sums of messages; and the sum over some nonzeros of one row.
  void (*rows)(const EdgeOperands<T>&, EdgeOp, Span rows);
  void (*partial)(const EdgeOperands<T>&, EdgeOp, std::int64_t row, Span nonzeros, Sum<T>* sums);
  void (*products)(const EdgeProducts<T>&, EdgeOp, Span nonzeros);
  void (*extremes)(const EdgeExtremes<T>&, EdgeOp, Span rows);
};

using UpdateTable = ByType<UpdateKernels>;
using AttentionTable = ByType<AttentionKernels>;
using QuantiseTable = ByType<QuantiseKernels>;
using ExtremeTable = ByIndex<ExtremeKernels>;
using EdgeTable = ByType<EdgeKernels>;

// Of dense.hpp.
struct GemmKernels;
struct CrossEntropyTable;

struct KernelTable {
  ByIndex<SpmmKernels> spmm;
  ByIndex<RowKernels> rows;
  ByType<DropoutKernel> dropout;
  ByType<SegmentKernels> segments;
  const AttentionTable* attention;
  const WeighingTable* weighing;
  const QuantiseTable* quantise;
  const ExtremeTable* extremes;
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
