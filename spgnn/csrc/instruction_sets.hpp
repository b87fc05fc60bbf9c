// The instruction set at work, for all loops that are compiled once for each.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace spgnn {

enum class Isa { kBaseline, kAvx2, kAvx512 };

inline const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

// All that this build and this machine have, the widest first.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> sets;
#ifdef SPGNN_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    sets.push_back(Isa::kAvx512);
  }
#endif
#ifdef SPGNN_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("popcnt")) {
    sets.push_back(Isa::kAvx2);
  }
#endif
#ifdef SPGNN_BASELINE
  sets.push_back(Isa::kBaseline);
#endif
  return sets;
}

// A build for one machine may have none that another one knows: importing it says so.
inline Isa& current_isa() {
  static Isa isa = available_isas().at(0);
  return isa;
}

inline void use_isa(const std::string& name) {
  const auto sets = available_isas();
  const auto set = std::ranges::find(sets, name, [](Isa isa) { return std::string(name_of(isa)); });
  if (set == sets.end()) throw std::invalid_argument("no instruction set " + name + " here");
  current_isa() = *set;
}

}  // namespace spgnn
