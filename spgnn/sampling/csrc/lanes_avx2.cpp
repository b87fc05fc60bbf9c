#define SPGNN_ISA avx2
#include "lanes_kernel.hpp"
