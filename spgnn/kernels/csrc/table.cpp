// The table of one instruction set.
#include "rows_kernel.hpp"
#include "segments_kernel.hpp"
#include "spmm_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T, class Index>
inline constexpr SpmmKernels<T, Index> kSpmm{spmm_rows<T, Index>, spmm_partial<T, Index>,
                                             sddmm<T, Index>};
template <class T, class Index>
inline constexpr RowKernels<T, Index> kRows{gather_rows<T, Index>, scatter_add_rows<T, Index>};
template <class T>
inline constexpr SegmentKernels<T> kSegments{lanes_of, summarise<T>, exponentials<T>,
                                             sum_products<T>, spread<T>};
// Compiled by themselves.
extern const AttentionTable attention_table;
extern const WeighingTable weighing_table;
extern const QuantiseTable quantise_table;
extern const ExtremeTable extreme_table;
extern const UpdateTable update_table;
extern const GemmKernels gemm_table;
extern const CrossEntropyTable cross_entropy_table;

extern const KernelTable table{
    {kSpmm<float, std::int32_t>, kSpmm<float, std::int64_t>, kSpmm<double, std::int32_t>,
     kSpmm<double, std::int64_t>, kSpmm<Bfloat16, std::int32_t>, kSpmm<Bfloat16, std::int64_t>},
    {kRows<float, std::int32_t>, kRows<float, std::int64_t>, kRows<double, std::int32_t>,
     kRows<double, std::int64_t>, kRows<Bfloat16, std::int32_t>, kRows<Bfloat16, std::int64_t>},
    {dropout_rows<float>, dropout_rows<double>, dropout_rows<Bfloat16>},
    {kSegments<float>, kSegments<double>, kSegments<Bfloat16>},
    &attention_table,
    &weighing_table,
    &quantise_table,
    &extreme_table,
    &update_table,
    &gemm_table,
    &cross_entropy_table};

}  // namespace spgnn::SPGNN_ISA
