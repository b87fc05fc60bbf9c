#define SPGNN_ISA avx2
#include "narrow_kernel.hpp"
