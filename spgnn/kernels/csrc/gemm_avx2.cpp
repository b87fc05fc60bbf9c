#define SPGNN_ISA avx2
#include "gemm_kernel.hpp"
