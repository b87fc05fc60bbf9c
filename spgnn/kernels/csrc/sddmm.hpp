// SDDMM on threads; every product is by itself, so their order does not matter.
#pragma once

#include <algorithm>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

template <class T, class Index>
void sddmm(const KernelTable& table, const SddmmOperands<T, Index>& a, int threads) {
  constexpr std::int64_t kTask = 2048;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  const std::int64_t nonzeros = a.indptr[a.rows];
  for_each_task((nonzeros + kTask - 1) / kTask, threads, [&](std::int64_t task) {
    kernels.sddmm(a, {task * kTask, std::min((task + 1) * kTask, nonzeros)});
  });
}

}  // namespace spgnn
