// Which kernels draw several weighted entries at once, if any do on this machine.
#pragma once

#include "instruction_sets.hpp"
#include "lanes_types.hpp"

namespace spgnn {

// Null: one draw after the other.
inline const LaneKernels* current_lanes() {
#ifdef SPGNN_X86
  if (current_isa() == Isa::kAvx512) return &avx512::lane_kernels;
  if (current_isa() == Isa::kAvx2) return &avx2::lane_kernels;
#endif
  return nullptr;
}

}  // namespace spgnn
