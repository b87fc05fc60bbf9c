#define SPGNN_ISA baseline
#include "gemm_kernel.hpp"
