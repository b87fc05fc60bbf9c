#define SPGNN_ISA baseline
#include "scatter_kernel.hpp"
