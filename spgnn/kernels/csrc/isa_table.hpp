// The table of one instruction set; included by exactly one file for each.
#pragma once

#include "rows_kernel.hpp"
#include "sddmm_kernel.hpp"
#include "spmm_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T, class Index>
inline constexpr SpmmKernels<T, Index> kSpmm{spmm_rows<T, Index>, spmm_partial<T, Index>,
                                             touch_rows<T, Index>, sddmm<T, Index>};
template <class T>
inline constexpr RowKernels<T> kRows{gather_rows<T>, scatter_add_rows<T>, dropout_rows<T>};

#define SPGNN_QUOTE(name) #name
#define SPGNN_NAME_OF(macro) SPGNN_QUOTE(macro)

extern const KernelTable table{
    SPGNN_NAME_OF(SPGNN_ISA),
    {kSpmm<float, std::int32_t>, kSpmm<float, std::int64_t>, kSpmm<double, std::int32_t>,
     kSpmm<double, std::int64_t>, kSpmm<Bfloat16, std::int32_t>, kSpmm<Bfloat16, std::int64_t>},
    {kRows<float>, kRows<double>, kRows<Bfloat16>}};

}  // namespace spgnn::SPGNN_ISA
