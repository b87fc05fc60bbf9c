#define SPGNN_ISA baseline
#include "cross_entropy_kernel.hpp"
