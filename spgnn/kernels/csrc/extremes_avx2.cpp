#define SPGNN_ISA avx2
#include "extremes_kernel.hpp"
