#define SPGNN_ISA avx2
#include "update_kernel.hpp"
