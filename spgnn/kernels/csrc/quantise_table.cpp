// Rows in few bits, of one instruction set.
#include "dequantise_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T>
inline constexpr QuantiseKernels<T> kQuantise{quantise_rows<T>, dequantise_rows<T>};

extern const QuantiseTable quantise_table;
const QuantiseTable quantise_table{kQuantise<float>, kQuantise<double>, kQuantise<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
