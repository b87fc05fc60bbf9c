#define SPGNN_ISA avx512
#include "cross_entropy_kernel.hpp"
