#define SPGNN_ISA avx2
#include "isa_table.hpp"
