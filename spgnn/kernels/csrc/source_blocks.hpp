// Products in passes over blocks of the columns of A (see spmm.hpp): what drivers hand to kernels.
#pragma once

#include "kernel_table.hpp"

namespace spgnn {

// Columns of A before `end` that no earlier block has. `next` is each row's first nonzero in it,
// and then in the next block. Only the last one has sums scaled.
struct SourceBlock {
  std::int64_t* next;
  std::int64_t end;
  bool first, last;
};

// Adds what rows have in a block to their sums in Y; longer rows than a task are left.
template <class T, class Index>
using BlockKernel = void (*)(const SpmmOperands<T, Index>&, const SourceBlock&, Span rows);
using BlockTable = ByIndex<BlockKernel>;

namespace baseline {
extern const BlockTable block_table;
}
#ifdef SPGNN_X86
namespace avx2 {
extern const BlockTable block_table;
}
namespace avx512 {
extern const BlockTable block_table;
}
#endif

// Of the same instruction set.
inline const BlockTable& blocks_of([[maybe_unused]] const KernelTable& table) {
#ifdef SPGNN_X86
  if (&table == &avx512::table) return avx512::block_table;
  if (&table == &avx2::table) return avx2::block_table;
#endif
  return baseline::block_table;
}

}  // namespace spgnn
