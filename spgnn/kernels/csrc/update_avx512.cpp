#define SPGNN_ISA avx512
#include "update_kernel.hpp"
