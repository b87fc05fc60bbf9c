// Picks the widest instruction set this machine has.
#pragma once

#include <string_view>
#include <vector>

#include "kernel_table.hpp"

namespace spgnn {

// All tables that run here, the widest first.
inline std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables;
#ifdef SPGNN_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) tables.push_back(&avx512::table);
  if (has_avx2) tables.push_back(&avx2::table);
#endif
  tables.push_back(&baseline::table);
  return tables;
}

// The table of that name, or null where this machine or build has none.
inline const KernelTable* find_table(std::string_view name) {
  for (const KernelTable* table : available_tables()) {
    if (table->name == name) return table;
  }
  return nullptr;
}

inline const KernelTable& best_table() {
  static const KernelTable* best = available_tables().front();
  return *best;
}

}  // namespace spgnn
