#define SPGNN_ISA avx512
#include "narrow_kernel.hpp"
