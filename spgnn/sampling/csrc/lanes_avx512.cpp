#define SPGNN_ISA avx512
#include "lanes_kernel.hpp"
