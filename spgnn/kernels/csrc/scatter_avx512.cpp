#define SPGNN_ISA avx512
#include "scatter_kernel.hpp"
