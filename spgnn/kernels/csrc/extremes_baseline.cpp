#define SPGNN_ISA baseline
#include "extremes_kernel.hpp"
