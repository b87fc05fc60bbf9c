#define SPGNN_ISA avx512
#include "isa_table.hpp"
