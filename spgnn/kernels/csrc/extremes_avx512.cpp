#define SPGNN_ISA avx512
#include "extremes_kernel.hpp"
