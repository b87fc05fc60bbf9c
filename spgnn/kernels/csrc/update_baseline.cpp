#define SPGNN_ISA baseline
#include "update_kernel.hpp"
