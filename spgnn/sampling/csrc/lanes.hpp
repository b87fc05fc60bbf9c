// Which kernels draw several weighted entries at once, if any do on this machine.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "lanes_types.hpp"

namespace spgnn {

// All that run here, the widest first.
inline std::vector<const LaneKernels*> available_lanes() {
  std::vector<const LaneKernels*> kernels;
#ifdef SPGNN_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) kernels.push_back(&avx512::lane_kernels);
  if (has_avx2) kernels.push_back(&avx2::lane_kernels);
#endif
  return kernels;
}

// What is used; null: one draw after the other.
inline const LaneKernels*& current_lanes() {
  static const LaneKernels* current = available_lanes().empty() ? nullptr : available_lanes()[0];
  return current;
}

inline constexpr const char* kBaseline = "baseline";

inline std::vector<std::string> lane_names() {
  std::vector<std::string> names;
  for (const LaneKernels* kernels : available_lanes()) names.emplace_back(kernels->name);
  names.emplace_back(kBaseline);
  return names;
}

inline void use_lanes(const std::string& name) {
  const LaneKernels* found = nullptr;
  for (const LaneKernels* kernels : available_lanes()) {
    if (kernels->name == name) found = kernels;
  }
  if (!found && name != kBaseline) {
    throw std::invalid_argument("no instruction set " + name + " here");
  }
  current_lanes() = found;
}

}  // namespace spgnn
