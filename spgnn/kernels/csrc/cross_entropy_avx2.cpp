#define SPGNN_ISA avx2
#include "cross_entropy_kernel.hpp"
