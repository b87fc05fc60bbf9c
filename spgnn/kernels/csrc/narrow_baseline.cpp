#define SPGNN_ISA baseline
#include "narrow_kernel.hpp"
