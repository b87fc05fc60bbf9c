// What every instruction set provides, as tables of function pointers.
#pragma once

#include <tuple>

#include "types.hpp"

namespace spgnn {

template <class T, class Index>
struct SpmmKernels {
  // Finished rows of Y, for the stored rows and the columns given.
  void (*rows)(const SpmmOperands<T, Index>&, Span rows, Span columns);
  // The unscaled sum over some nonzeros of one row; `sums` points at the first of `columns`.
  void (*partial)(const SpmmOperands<T, Index>&, Span nonzeros, Span columns, Sum<T>* sums);
  // Only reads what the product over these nonzeros reads of X (a roofline for benchmarks).
  std::uint32_t (*touch)(const SpmmOperands<T, Index>&, Span nonzeros);
  // The products of rows that belong to some nonzeros.
  void (*sddmm)(const SddmmOperands<T, Index>&, Span nonzeros);
};

template <class T>
struct RowKernels {
  // Y[i] = scale[i] X[rows[i]] for i in the span.
  void (*gather)(const RowOperands<T>&, Span listed);
  // Y[rows[i]] += scale[i] X[i] in the order of i, for the rows of Y that `owner` owns.
  void (*scatter_add)(const RowOperands<T>&, std::uint32_t owner, std::uint32_t owners);
  // Y[i] = X[i] / (1 - p) where kept, 0 elsewhere.
  void (*dropout)(const RowOperands<T>&, const DropoutRule&, Span listed);
};

struct KernelTable {
  const char* name;
  std::tuple<SpmmKernels<float, std::int32_t>, SpmmKernels<float, std::int64_t>,
             SpmmKernels<double, std::int32_t>, SpmmKernels<double, std::int64_t>,
             SpmmKernels<Bfloat16, std::int32_t>, SpmmKernels<Bfloat16, std::int64_t>>
      spmm;
  std::tuple<RowKernels<float>, RowKernels<double>, RowKernels<Bfloat16>> rows;
};

namespace baseline {
extern const KernelTable table;
}
#ifdef SPGNN_X86
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
#endif

}  // namespace spgnn
