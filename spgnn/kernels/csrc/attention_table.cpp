// The attention of one instruction set.
#include "attention_backward_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T>
inline constexpr AttentionKernels<T> kAttention{
    pack_rows<T>,
    attend<T, false>,
    attend<T, true>,
    {attend_backward<T, Side::kColumns>, attend_backward<T, Side::kColumnsV2>,
     attend_backward<T, Side::kRowsV2>},
    merge_triple<Sum<T>>,
    end_triple<T>,
    head_products<T, T>,
    head_products<T, Sum<T>>};

extern const AttentionTable attention_table;
const AttentionTable attention_table{kAttention<float>, kAttention<double>, kAttention<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
