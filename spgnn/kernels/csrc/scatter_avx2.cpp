#define SPGNN_ISA avx2
#include "scatter_kernel.hpp"
