// SDDMM on threads; every product is by itself, so their order does not matter.
#pragma once

#include <algorithm>

#include "kernel_table.hpp"
#include "parallel.hpp"

namespace spgnn {

template <class T, class Index>
void sddmm(const KernelTable& table, const SddmmOperands<T, Index>& a, const Heads& heads,
           int threads) {
  constexpr std::int64_t kTask = 2048;
  const auto& kernels = std::get<SpmmKernels<T, Index>>(table.spmm);
  const std::int64_t nonzeros = a.indptr[a.rows];
  for_each_task((nonzeros + kTask - 1) / kTask, threads, [&](std::int64_t task) {
    for (std::int64_t head = 0; head < heads.count; ++head) {
      auto one = a;
      one.x += head * heads.x_stride;
      one.g += head * heads.y_stride;
      one.products += head;
      kernels.sddmm(one, {task * kTask, std::min((task + 1) * kTask, nonzeros)});
    }
  });
}

}  // namespace spgnn
