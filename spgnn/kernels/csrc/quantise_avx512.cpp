#define SPGNN_ISA avx512
#include "quantise_table.hpp"
