#define SPGNN_ISA avx512
#include "gemm_kernel.hpp"
