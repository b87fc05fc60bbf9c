// The kernels of an instruction set.
#pragma once

#include "instruction_sets.hpp"
#include "kernel_table.hpp"

namespace spgnn {

inline const KernelTable& table_of(Isa isa) {
#ifdef SPGNN_X86
  if (isa == Isa::kAvx512) return avx512::table;
  if (isa == Isa::kAvx2) return avx2::table;
#endif
  return baseline::table;
}

inline const KernelTable& current_table() { return table_of(current_isa()); }

}  // namespace spgnn
